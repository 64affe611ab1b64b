"""The features job, as its user runs it."""

import json

import jax
import numpy as np
import pytest

import gpt1_jax
from gpt1_jax.data.tokenizers import special_tokens
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.inference.features import Reader
from gpt1_jax.model import interventions
from gpt1_jax.studies.words import features

LINES = ["abc de fghij", "", "Gh  ab.", "  cde ab fgh ij abc de  "]
WORDS = [line.split() for line in LINES]

hidden_states = jax.jit(interventions.hidden_states, static_argnums=0)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.fixture
def ask(run_job, tmp_path):
    """A function from values to the arrays and attributes of the .npz file."""

    def run(source, **values):
        output = tmp_path / "out.npz"
        run_job("features", **{"input": str(source), "output": str(output), **values})
        with np.load(output, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return arrays, json.loads(str(arrays.pop("attributes")))

    return run


@pytest.fixture(scope="module")
def model(pretrained):
    return gpt1_jax.load(str(pretrained))


def test_words_of_lines_have_their_place_and_state(ask, text, model):
    arrays, attributes = ask(text)
    words = [word for line in WORDS for word in line]
    assert arrays["word"].tolist() == words
    assert arrays["line"].tolist() == [1] * 3 + [3] * 2 + [4] * 6
    whole = text.read_text()
    places = zip(arrays["start"], arrays["end"], strict=True)
    assert [whole[start:end] for start, end in places] == words
    states = model.hidden_states(LINES[0])
    ends = np.cumsum([len(model.encode(word)) for word in WORDS[0]]) - 1
    for layer in (0, 1):
        rows = arrays[f"layer_{layer}"]
        assert rows.shape == (11, 16) and rows.dtype == np.float32
        np.testing.assert_allclose(rows[:3], states[layer, ends], atol=1e-5)
    assert attributes["layers"] == [0, 1] and attributes["step"] == 12
    assert attributes["tokenizer"] == model.tokenizer.digest
    assert attributes["overlap"] == 20


def test_a_long_text_is_read_in_windows_that_overlap(ask, tmp_path, model):
    path, longest = tmp_path / "long.txt", model.config.max_seq_len
    words = [word for line in WORDS for word in line] * 4
    path.write_text(" ".join(words))
    arrays, _ = ask(path, layers=(1,), overlap=5)
    window, num_windows = [], 1
    for row, word in zip(arrays["layer_1"], words, strict=True):
        ids = model.tokenizer.encode(word)
        if len(window) + len(ids) > longest:
            window, num_windows = window[-5:], num_windows + 1
        window = [*window, *ids]
        padded = np.zeros((1, longest), np.int32)
        padded[0, : len(window)] = window
        states = hidden_states(model.config, model.params, padded)[1]
        np.testing.assert_allclose(row, states[0, len(window) - 1], atol=1e-5)
    assert num_windows > 2


def test_given_words_keep_their_rows_and_texts_stay_apart(ask, tmp_path, model):
    words = ["abc", "de fg", "hij", "abc", "de"]
    path = tmp_path / "words.csv"
    texts = zip("aabba", words, strict=True)
    path.write_text("item,word\n" + "".join(f"{a},{b}\n" for a, b in texts))
    columns = {"words_column": "word", "text_column": "item"}
    arrays, _ = ask(path, layers=(1,), **columns)
    assert arrays["word"].tolist() == words
    assert arrays["line"].tolist() == [1, 1, 2, 2, 3]
    assert {"start", "layer_0"}.isdisjoint(arrays)
    for number, phrase in ((1, "abc de fg"), (3, "hij abc"), (4, "de")):
        expected = model.hidden_states(phrase)[1, -1]
        np.testing.assert_allclose(arrays["layer_1"][number], expected, atol=1e-5)


@pytest.mark.parametrize("rows", ["last", "mean"])
def test_lines_have_one_state_each(ask, text, tmp_path, model, rows):
    table = tmp_path / "lines.jsonl"
    filled = [line for line in LINES if line]
    table.write_text("".join(json.dumps({"of": line}) + "\n" for line in filled))
    arrays, _ = ask(text, rows=rows)
    assert arrays["text"].tolist() == filled
    assert arrays["line"].tolist() == [1, 3, 4]
    states = [model.hidden_states(line) for line in filled]
    for layer in (0, 1):
        each = [of_line[layer] for of_line in states]
        expected = [x.mean(0) if rows == "mean" else x[-1] for x in each]
        np.testing.assert_allclose(arrays[f"layer_{layer}"], expected, atol=1e-5)
    again, _ = ask(table, rows=rows, lines_column="of")
    np.testing.assert_array_equal(again["layer_1"], arrays["layer_1"])
    assert again["line"].tolist() == [1, 2, 3]


def test_the_extract_token_is_read_as_in_fine_tuning(ask, text, finetuned):
    arrays, _ = ask(text, rows="extract", layers=(1,), init_from=str(finetuned))
    model = gpt1_jax.load(str(finetuned))
    special = special_tokens(model.tokenizer.vocab_size)
    ids = [special.start, *model.encode(LINES[0]), special.extract]
    reader = Reader(model.config, model.params, (1,))
    ((_, states),) = reader([ReadingWindow(ids, 0, spans=[(len(ids) - 1, len(ids))])])
    np.testing.assert_allclose(arrays["layer_1"][0], states[0, 0], atol=1e-5)


def test_attention_maps_are_kept_for_each_line(ask, text, model):
    arrays, _ = ask(text, rows="last", attention=True)
    filled = [line for line in LINES if line]
    for number, line in enumerate(filled):
        np.testing.assert_array_equal(arrays[f"tokens_{number}"], model.encode(line))
        maps = arrays[f"attention_{number}"]
        np.testing.assert_allclose(maps, model.attention(line), atol=1e-5)


def test_float16_is_rounded(ask, text):
    exact, _ = ask(text)
    rounded, _ = ask(text, output_dtype="float16")
    assert rounded["layer_1"].dtype == np.float16
    np.testing.assert_array_equal(
        rounded["layer_1"], exact["layer_1"].astype(np.float16)
    )


def test_what_is_too_large_for_float16_is_refused():
    large = np.full((1, 2), 1e5, np.float32)
    with pytest.raises(ValueError, match="layer 3 is too large for float16"):
        features._narrowed(large, "float16", 3)


@pytest.mark.parametrize(
    ("content", "values", "message"),
    [
        ("ab", {"layers": (0, 2)}, r"no layer 2: .* 0 \(the embedding\) to 1"),
        ("ab", {"rows": "extract"}, "the job 'pretrain', which has no extract token"),
        ("ab", {"init_from": "no/run"}, "no/run is not a run folder"),
        ("ab", {"input": "a.doc"}, r"input='a.doc' must end in .txt \(text\) or"),
        ("ab", {"lines_column": "text"}, "='text' names a column, but .* plain"),
        ("ab", {"overlap": 40}, "overlap=40 does not go with windows of 40"),
        ("\n \n", {"rows": "mean"}, "text.txt holds no word"),
        ("ab\n\u00ad\n", {}, r"txt:2: nothing is left of '.xad'"),
        (f"ab\n{'x' * 90}", {}, r"txt:2: the word 'x+\.\.\.x+' has \d+ tokens; "),
        (f"ab\n{'x ' * 90}", {"rows": "last"}, r"txt:2: the line has \d+ .* reads 40"),
    ],
    ids=ascii,
)
def test_bad_texts_and_values_are_refused(
    ask, text, tmp_path, monkeypatch, content, values, message
):
    """Before anything is read by the model, or written."""
    monkeypatch.setattr(features, "open_arrays", None)  # which would be called
    text.write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ask(text, **values)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
