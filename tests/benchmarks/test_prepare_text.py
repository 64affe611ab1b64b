"""The script encodes the same text with each tokenizer."""

import json

from benchmarks.peers import prepare_text


def test_the_script_times_tokenizers_on_the_same_text(make_text, tmp_path):
    (tmp_path / "text.txt").write_text(make_text(2400))
    output = tmp_path / "times.json"
    prepare_text.main(
        [
            f"--texts={tmp_path}/*.txt",
            "--variants=sentencepiece,tokenizers",
            "--vocab_size=480",
            "--rounds=1",
            f"--output={output}",
        ]
    )
    results = json.loads(output.read_text())["results"]
    assert [*results] == ["sentencepiece", "tokenizers"]
    assert all(each["ids"] >= 2400 for each in results.values())
    assert all(len(each["seconds"]) == 1 for each in results.values())
