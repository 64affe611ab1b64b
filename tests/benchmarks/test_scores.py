"""The script scores pairs, tasks and text as transformers does, and says so."""

import json

import numpy as np
import pytest
from tiny_tasks import write_lines, write_task

PARADIGMS = ("anaphor_gender_agreement", "sentential_subject_island")


@pytest.fixture
def blimp(tmp_path):
    """Two paradigms of ten pairs of made-up words, as BLiMP's files have them."""
    rng = np.random.default_rng(0)
    words = ["boats", "little", "garden", "sailing", "rain", "the", "Who", "."]
    folder = tmp_path / "blimp"
    folder.mkdir()
    for name in PARADIGMS:
        pairs = []
        for number in range(10):
            good, bad = (" ".join(rng.choice(words, rng.integers(2, 6))) for _ in "ab")
            pair = {"sentence_good": good, "sentence_bad": f"{bad} ,"}
            pairs.append({**pair, "UID": name, "pairID": str(number)})
        write_lines(folder / f"{name}.jsonl", pairs)
    return folder


@pytest.fixture
def record(pretrained, tmp_path):
    """`record(study, *flags)`: what the script writes about a tiny run."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.peers import scores

    def run(study, *flags):
        output = tmp_path / "scores.json"
        common = ("--ways=eager", "--batches=16,64", "--rounds=1")
        scores.main(
            [study, f"--run={pretrained}", f"--output={output}", *common, *flags]
        )
        found = json.loads(output.read_text())
        ours, peer = (found["results"][name] for name in ("gpt1_jax", "transformers"))
        assert len(ours["seconds"]) == len(peer["seconds"]) == 1
        assert len(peer["trial"]) == (2 if study == "surprisal" else 4)
        assert found["agreement"]["most_token_nats"] < 1e-5
        assert found["agreement"]["most_nats"] < 1e-4
        return found["agreement"]

    return run


def test_pairs_have_the_scores_of_transformers(record, blimp):
    found = record("minimal_pairs", f"--data={blimp}", f"--tasks={'+'.join(PARADIGMS)}")
    assert (found["examples"], found["windows"]) == (20, 40)
    assert found["decisions"] == 0 or found["most_margin"] < 2e-4
    assert found["read_differently"] == 0


def test_answers_to_tasks_have_the_scores_of_transformers(record, tmp_path):
    for task in ("sst2", "cola"):
        write_task(tmp_path, task)
    found = record("zero_shot", f"--data={tmp_path}", "--tasks=sst2+cola")
    # CoLA's threshold is chosen on its 32 training examples.
    assert (found["examples"], found["windows"]) == (12, 12 * 2 + 32 + 12)
    assert found["decisions"] == 0 or found["most_margin"] < 2e-4


def test_words_have_the_surprisal_of_transformers(record, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the little boats were sailing in the rain .\n" * 20)
    found = record("surprisal", f"--data={text}")
    assert found["tokens"] > 200
    assert found["ranks"] <= 2
    assert found["most_entropy"] < 1e-4
