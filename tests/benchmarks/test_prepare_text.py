"""The script encodes the same text with each tokenizer, and from each format."""

import json

import pytest

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
            "--cores=2",
            f"--output={output}",
        ]
    )
    results = json.loads(output.read_text())["results"]
    assert [*results] == ["sentencepiece", "tokenizers"]
    assert all(each["ids"] >= 2400 for each in results.values())
    assert all(len(each["seconds"]) == 1 for each in results.values())


def test_the_script_prepares_the_same_text_in_files_of_each_format(
    make_text, tmp_path, monkeypatch
):
    pytest.importorskip("backports.zstd")
    monkeypatch.setattr(
        prepare_text, "_in_new_process", lambda work, *arguments: work(*arguments)
    )
    (tmp_path / "text.txt").write_text(make_text(2400))
    output = tmp_path / "times.json"
    prepare_text.main(
        [
            f"--texts={tmp_path}/*.txt",
            f"--formats={','.join(prepare_text.FORMATS)}",
            "--vocab_size=480",
            "--rounds=1",
            f"--output={output}",
        ]
    )
    results = json.loads(output.read_text())["results"]
    assert [*results] == [*prepare_text.FORMATS]
    assert len({each["ids"] for each in results.values()}) == 1
    sizes = {form: each["file_bytes"] for form, each in results.items()}
    assert max(sizes["gz"], sizes["xz"], sizes["zst"]) < sizes["plain"] < sizes["jsonl"]
