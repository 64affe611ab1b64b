"""The script encodes the same text with each tokenizer, and from each format."""

import json

import pytest

from benchmarks.peers import prepare_text


@pytest.fixture
def results(make_text, tmp_path, monkeypatch):
    """`results(*flags)`: of one round on a short text."""
    monkeypatch.setattr(
        prepare_text, "_in_new_process", lambda work, *arguments: work(*arguments)
    )
    (tmp_path / "text.txt").write_text(make_text(2400))
    output = tmp_path / "times.json"
    files = (f"--texts={tmp_path}/*.txt", f"--output={output}")

    def run(*flags):
        prepare_text.main([*files, "--vocab_size=480", "--rounds=1", *flags])
        return json.loads(output.read_text())["results"]

    return run


def test_the_script_times_tokenizers_on_the_same_text(results):
    found = results("--variants=sentencepiece,tokenizers", "--cores=2")
    assert [*found] == ["sentencepiece", "tokenizers"]
    for each in found.values():
        assert each["ids"] >= 2400 and len(each["seconds"]) == 1


def test_the_script_prepares_the_same_text_in_files_of_each_format(results):
    pytest.importorskip("backports.zstd")
    found = results(f"--formats={','.join(prepare_text.FORMATS)}")
    assert [*found] == [*prepare_text.FORMATS]
    assert len({each["ids"] for each in found.values()}) == 1
    sizes = {form: each["file_bytes"] for form, each in found.items()}
    assert max(sizes["gz"], sizes["xz"], sizes["zst"]) < sizes["plain"] < sizes["jsonl"]
