"""The script scores pairs as transformers does, and says so."""

import json

import numpy as np
import pytest
from tiny_tasks import write_lines

PARADIGMS = ("anaphor_gender_agreement", "sentential_subject_island")
WAYS = ("--ways=eager", "--batches=2,8", "--rounds=2")


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


def test_the_script_finds_scores_equal_to_transformers(pretrained, blimp, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.peers import minimal_pairs

    output = tmp_path / "pairs.json"
    minimal_pairs.main(
        [
            f"--run={pretrained}",
            f"--blimp={blimp}",
            f"--tasks={'+'.join(PARADIGMS)}",
            f"--output={output}",
            *WAYS,
        ]
    )
    record = json.loads(output.read_text())
    agreement = record["agreement"]
    assert (agreement["pairs"], agreement["paradigms"]) == (20, 2)
    assert agreement["most_nats"] < 1e-4
    assert agreement["decisions"] == 0 or agreement["most_margin"] < 2e-4
    assert agreement["read_differently"] == 0
    ours, peer = (record["results"][name] for name in ("gpt1_jax", "transformers"))
    assert ours["accuracy"] == peer["accuracy"]
    assert len(ours["seconds"]) == len(peer["seconds"]) == 2
    assert len(peer["trial"]) == 4  # two losses, two sizes
