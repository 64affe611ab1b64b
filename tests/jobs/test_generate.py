"""The generation job, as its user runs it."""

import io
import json
import shutil

import pytest
from tiny_run import job_config
from tiny_tasks import read_lines

from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import generate


@pytest.fixture
def ask(pretrained, corpus_dir, capsys):
    """A function from values to what the job prints."""
    given = {"sampling.max_new_tokens": 6}
    given["compilation_cache_dir"] = str(corpus_dir / "xla")

    def run(folder=pretrained, **values):
        values = {"init_from": str(folder), **given, **values}
        generate.run(job_config("generate", **values), "")
        printed = capsys.readouterr()
        run.said = printed.err
        return printed.out

    return run


def test_a_prompt_is_continued_word_by_word(ask, monkeypatch):
    printed = []
    original = generate.Generator.stream

    def stream(*arguments):
        for words in original(*arguments):
            printed.append(words)
            yield words

    monkeypatch.setattr(generate.Generator, "stream", stream)
    out = ask(prompt="abc de")
    assert out == f"abc de {''.join(printed)}\n" and len(printed) > 1


def test_prompts_of_a_file_become_json_lines(ask, tmp_path):
    prompts = ["abc de", "gh", "a b c d e"]
    path, output = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    more = {"num_return_sequences": 2, "log_probs": True}
    assert ask(input=str(path), output=str(output), **more) == f"Wrote {output}\n"
    found = read_lines(output)
    assert [each["prompt"] for each in found] == [p for p in prompts for _ in "12"]
    assert [each["seed"] for each in found] == [0, 1] * 3
    for each in found:
        assert len(each["tokens"]) == len(each["log_probs"]) == 6
        assert each["finish_reason"] == "length" and each["text"]


def test_standard_input_is_read_and_texts_are_printed(ask, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc de\ngh\n")))
    blocks = ask().strip().split("\n\n")
    assert len(blocks) == 2 and blocks[0].startswith("abc de ")


def test_a_conversation_ends_with_the_input(ask, monkeypatch):
    typed = iter(["abc de", ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def answer(shown):
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    out = ask()
    assert "Ctrl-D ends" in out and "abc de " in out


def test_a_context_that_slides_is_announced(ask):
    out = ask(prompt="abc de", **{"sampling.max_new_tokens": 60})
    assert out.startswith("The context of 40 tokens slides")
    assert "slides" not in ask(prompt="abc de")


def test_sizes_that_no_memory_holds_are_refused_before_anything_is_printed(ask, capsys):
    text = {"prompt": "abc de"}
    with pytest.raises(UserError, match=r"num_return_sequences=1000000000 takes.*host"):
        ask(num_return_sequences=10**9, **text)
    for number in (1, 2):
        with pytest.raises(UserError, match=r"^batch_size=1000000000 takes at least"):
            ask(batch_size=10**9, num_return_sequences=number, **text)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"input": "no/such/file"}, "no/such/file cannot be read"),
        ({"prompt": "a", "batch_size": 0}, "batch_size=0 must be positive"),
        ({"prompt": "a", "sampling.top_p": 0.0}, "top_p=0.0 must lie in"),
        ({"prompt": "a", "sampling.temperature": 0.0}, "temperature=0.0 must be pos"),
    ],
    ids=str,
)
def test_bad_input_is_refused(ask, values, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ask(**values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", "holds no prompt"),
        (b'{"text": "a"}\n', "there is no column 'prompt'; the columns are text"),
        (b'{"prompt": null}\n', "the column 'prompt' holds no text"),
    ],
)
def test_bad_files_of_prompts_are_refused(ask, tmp_path, content, message):
    path = tmp_path / ("p.jsonl" if content.startswith(b"{") else "p.txt")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ask(input=str(path))


def test_a_run_that_was_moved_or_fine_tuned_generates(
    ask, pretrained, finetuned, tmp_path
):
    """In another type, if that is asked for."""
    assert ask(finetuned, prompt="abc de", dtype="bfloat16").startswith("abc de ")
    moved = shutil.copytree(pretrained, tmp_path / "moved")
    assert ask(moved, prompt="abc de").startswith("abc de ")
    assert f"Reading step 12, the newest, of {moved}.\n" == ask.said


def test_escapes_that_are_generated_do_not_reach_a_terminal(ask, monkeypatch, tmp_path):
    decode = SentencePieceTokenizer.decode
    monkeypatch.setattr(
        SentencePieceTokenizer, "decode", lambda *given: "\x1b[31m " + decode(*given)
    )
    for more in ({}, {"num_return_sequences": 2}):
        out = ask(prompt="abc", **more)
        assert "abc \\x1b[31m " in out and "\x1b" not in out
    output = tmp_path / "out.jsonl"
    ask(prompt="abc", output=str(output))
    assert read_lines(output)[0]["text"].startswith("\x1b[31m ")
