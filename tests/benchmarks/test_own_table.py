"""The script trains this package and a peer on an imbalanced table."""

import json

import pytest


@pytest.fixture
def sst2(tmp_path):
    """A folder like that of SST-2: two sentences in three are positive."""
    folder = tmp_path / "sst2"
    folder.mkdir()
    for split, number in (("train", 300), ("dev", 90)):
        rows = [
            {"sentence": f"a b c {'d' * n} ", "label": int(n % 3 > 0), "idx": n}
            for n in range(number)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)
    return folder


@pytest.mark.slow
def test_the_script_trains_both(run_script, pretrained, sst2):
    for package in ("pandas", "torch", "transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    flags = (str(pretrained), str(sst2), "--rows=100", "--seeds=0")
    printed, record = run_script("peers.own_table", *flags)
    ours = ["ours", "ours, with the auxiliary objective"]
    assert list(record["results"]) == [*ours, "transformers' Trainer"]
    for name, result in record["results"].items():
        assert len(result["seconds"]) == 1 and 0 <= result["macro_f1"][0] <= 1
        assert f"| {name} | {result['lines']} |" in printed
