"""The script scores pairs, tasks and text as transformers does, and says so."""

import json

import pytest
from tiny_tasks import write_lines, write_task

PARADIGMS = ("anaphor_gender_agreement", "sentential_subject_island")


@pytest.mark.parametrize(
    ("study", "tasks", "examples", "windows"),
    [
        ("minimal_pairs", "+".join(PARADIGMS), 20, 40),
        # CoLA's threshold is chosen on its 32 training examples.
        ("zero_shot", "sst2+cola", 12, 12 * 2 + 32 + 12),
        ("surprisal", "", None, None),
    ],
)
def test_scores_are_those_of_transformers(
    pretrained, tmp_path, study, tasks, examples, windows
):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from benchmarks.peers import scores

    for name in PARADIGMS:
        texts = [(f"boats {'rain ' * (n % 3)}{n}.", f"the {n} ,") for n in range(10)]
        keys = ("sentence_good", "sentence_bad", "UID", "pairID")
        pairs = [(*pair, name, str(n)) for n, pair in enumerate(texts)]
        rows = [dict(zip(keys, pair, strict=True)) for pair in pairs]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    for name in ("sst2", "cola"):
        write_task(tmp_path, name)
    text = tmp_path / "text.txt"
    text.write_text("the little boats were sailing in the rain .\n" * 20)
    data = f"--data={tmp_path}" if tasks else f"--data={text}"
    chosen = [f"--tasks={tasks}"] if tasks else []
    output = tmp_path / "scores.json"
    common = ("--ways=eager", "--batches=16,64", "--rounds=1", f"--output={output}")
    scores.main([study, f"--run={pretrained}", data, *chosen, *common])
    record = json.loads(output.read_text())
    for name in ("gpt1_jax", "transformers"):
        assert len(record["results"][name]["seconds"]) == 1
    found = record["agreement"]
    assert found["most_token_nats"] < 1e-5 and found["most_nats"] < 1e-4
    if tasks:
        assert (found["examples"], found["windows"]) == (examples, windows)
        assert found["decisions"] == 0 or found["most_margin"] < 2e-4
    else:
        assert found["tokens"] > 200 and found["ranks"] <= 2
        assert found["most_entropy"] < 1e-4
