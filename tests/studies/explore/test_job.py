"""The page to look inside models: what it holds, and what it refuses."""

import base64
import json
import re

import jax
import numpy as np
import pytest
from tiny_run import job_config

import gpt1_jax
from gpt1_jax.data.words import Word, lines_of, split_words
from gpt1_jax.errors import UserError
from gpt1_jax.inference.surprisal import word_windows
from gpt1_jax.studies.explore import job as explore
from gpt1_jax.studies.explore.inside import Inside, joined, look_inside
from gpt1_jax.studies.explore.page import (
    MOST_BYTES,
    ExploredRun,
    ExploredStep,
    make_page,
)

TEXT = "\n".join(["the quick fox walked home", "she said: never mind the rain!"] * 6)


def make(folders, output, /, **overrides):
    """The data on the page that the job writes."""
    runs = ",".join(map(str, folders))
    values = {"runs": runs, "text": TEXT, "output": str(output), **overrides}
    explore.run(job_config("explore", **values), "")
    return page_data(output.read_text())


def page_data(html):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html)
    return json.loads(found[1])


def unpacked(text, dtype, *shape):
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


@pytest.fixture(scope="module")
def windows_and_model(pretrained):
    """A text longer than the context of 40 tokens, in windows."""
    model = gpt1_jax.load(str(pretrained))
    words = split_words(model.tokenizer, lines_of(TEXT, "text"))
    newline = model.tokenizer.newline_id
    return list(word_windows(words, explore._READING, model.config, newline)), model


def test_what_is_inside_is_what_the_model_does(windows_and_model):
    """In the first window, all is that of the functions for notebooks."""
    windows, model = windows_and_model
    inside = look_inside(
        model.config, model.params, model.tokenizer.vocab_size, windows
    )
    first = list(windows[0].ids)
    text = f"\n{model.tokenizer.decode(first[1:])}"
    logits = model.logits(text)
    probs = np.asarray(jax.nn.softmax(logits))
    assert len(probs) == len(first)
    assert inside.bits[0] == inside.ranks[0] == 0 == inside.expected_probs[0].max()
    for place in range(1, len(first)):
        before, ids = probs[place - 1], inside.expected_ids[place]
        np.testing.assert_allclose(inside.expected_probs[place], before[ids], 1e-4)
        np.testing.assert_allclose(before[ids], np.sort(before)[:-11:-1], 1e-4)
    attention = model.attention(text)
    there = np.take_along_axis(attention, inside.sources[:, :, : len(first)], -1)
    np.testing.assert_allclose(inside.weights[:, :, : len(first)], there, atol=1e-6)
    np.testing.assert_allclose(there[..., 0], attention.max(-1), atol=1e-6)


def test_tokens_and_positions_go_on_from_window_to_window(windows_and_model):
    windows, model = windows_and_model
    ids, spans = joined(windows)
    newline, encode = model.tokenizer.newline_id, model.tokenizer.encode
    lines = [(newline, *encode(line)) for line in TEXT.split("\n")]
    assert len(windows) > 2 and ids == [token for line in lines for token in line]
    words = [ids[first:stop] for first, stop in spans]
    assert words == [encode(word) for word in TEXT.split()]
    inside = look_inside(model.config, model.params, 300, windows)
    assert inside.sources.shape == (*model.attention("a").shape[:2], len(ids), 8)
    places = np.arange(len(ids))[:, None]
    used = inside.weights > 0
    assert (inside.sources <= places)[used].all()
    assert (inside.sources > places - model.config.max_seq_len)[used].all()
    assert (inside.sources >= inside.begins[:, None])[used].all()
    assert (places.flat - inside.begins).max() < model.config.max_seq_len
    assert inside.begins[-1] == len(ids) - len(windows[-1].ids) > 0
    assert inside.similarity.shape == (model.config.depth + 1,) * 2
    np.testing.assert_allclose(np.diag(inside.similarity), 1, rtol=1e-5)


def test_the_page_has_the_numbers_of_the_model(pretrained, pretrained_lstm, tmp_path):
    data = make([pretrained, pretrained_lstm], tmp_path / "page.html")
    assert data["lines"] == [line.split() for line in TEXT.split("\n")]
    words = TEXT.split()
    for run, folder in zip(data["runs"], (pretrained, pretrained_lstm), strict=True):
        assert run["name"] == str(folder) and run["steps"] == [8, 12]
        assert run["samples"][-1] and len(run["tokens"]) == run["spans"][-1][1]
        bits = unpacked(run["bits"], "<f4", 2, -1)
        ranks = unpacked(run["ranks"], "<u4", 2, -1)
        for number, step in enumerate(run["steps"]):
            model = gpt1_jax.load(str(folder), step)
            expected = model.surprisal(TEXT, context="text")
            assert len(expected) == len(words)
            found = [bits[number, slice(*span)].sum() for span in run["spans"]]
            np.testing.assert_allclose(found, [w.bits for w in expected], 1e-5)
            firsts = [ranks[number, first] for first, _ in run["spans"]]
            assert firsts == [w.rank for w in expected]
        shape = 2, -1, run["numExpected"]
        tokens = unpacked(run["expectedTokens"], "<u2", *shape)
        probs = unpacked(run["expectedProbs"], "<u2", *shape) / 65535
        for (text, share), token, prob in zip(
            model.next_tokens("\n"), tokens[1, 1], probs[1, 1], strict=True
        ):
            spelled = run["vocabulary"][token]
            assert spelled.removesuffix("·") in (text, "▁", "↵")
            assert prob == pytest.approx(share, abs=1e-4)
    assert [run["layers"] for run in data["runs"]] == [1, 0]


def test_text_of_a_stranger_is_text(pretrained, tmp_path):
    text = '</script><script>alert("1")</script> <b>&amp;\u202e it\'s'
    data = make([pretrained], tmp_path / "page.html", text=text)
    html = (tmp_path / "page.html").read_text()
    assert data["lines"] == [text.split()]
    assert html.count("<script") == 2 and "alert" in html
    assert "http" not in re.sub(r"http://www.w3.org/2000/svg", "", html)


def test_a_page_of_the_paper_s_size_is_no_larger_than_promised():
    """300 words and 15 steps of two models of 12 layers and heads."""
    random = np.random.default_rng(0)
    tokens = 391
    inside = Inside(
        random.random(tokens),
        random.integers(40478, size=tokens),
        random.integers(40478, size=(tokens, 10)),
        random.random((tokens, 10)),
        random.integers(tokens, size=(12, 12, tokens, 8)),
        random.random((12, 12, tokens, 8)),
        random.random((13, 13)),
        np.zeros(tokens, np.int32),
    )
    run = ExploredRun(
        name="run",
        about="",
        ids=[7] * tokens,
        spans=[(i, i + 1) for i in range(300)],
        spelled=lambda token: f"token{token}",
        steps=[ExploredStep(step, inside) for step in range(15)],
        samples={0: "a sample " * 20},
    )
    page, attention = make_page([Word(word="word " * 300)], [run, run])
    assert 5_000_000 < len(page.encode()) < MOST_BYTES
    assert "at the last step; with that of all steps the page would have" in attention
    data = page_data(page)["runs"][0]
    weights = unpacked(data["weights"], "<u2", 12, 12, tokens, 8)
    np.testing.assert_allclose(weights / 65535, inside.weights, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"text": " \n"}, "config.text is empty"),
        ({"text": "a " * 1001}, "config.text has 1,001 words; a page shows up to"),
        ({"text": "a \x00 b"}, "nothing is left of"),
        ({"runs": "run,run"}, "names a run twice"),
        ({"output": "page.txt"}, r"must end in \.html"),
    ],
    ids=ascii,
)
def test_what_cannot_be_shown_is_refused(pretrained, tmp_path, overrides, message):
    page = tmp_path / "page.html"
    with pytest.raises((UserError, FileNotFoundError), match=message):
        make([pretrained], page, **overrides)
    assert not page.exists()
