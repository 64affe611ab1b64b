"""The script scores sentences by lm_eval's class and by ours, and compares them."""

import pytest


@pytest.mark.slow
def test_the_script_measures_both(run_script, pretrained, tmp_path):
    for package in ("lm_eval", "torch", "transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("the abcd of efgh\na b c\n" * 40)
    flags = (str(pretrained), str(sentences), "--variants=hf_16,ours", "--rounds=2")
    printed, record = run_script("peers.eval_harness", *flags)
    for name in ("hf_16", "ours"):
        result = record["results"][name]
        assert len(result["seconds"]) == 2
        rate = 80 / result["median_seconds"]
        assert result["sentences_per_second"] == pytest.approx(rate)
    assert "| ours | " in printed
