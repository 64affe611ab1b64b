"""A run in a notebook."""

import dataclasses
import functools
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import all_logits
from tiny_run import ROOT

import gpt1_jax
from gpt1_jax.errors import UserError
from gpt1_jax.model.interventions import zero

TEXT = "the abcd of efgh and a"


@pytest.fixture(scope="module")
def model(pretrained):
    return gpt1_jax.load(str(pretrained))


def test_importing_the_package_imports_nothing_heavy():
    code = "import gpt1_jax, sys; print({'jax', 'numpy', 'flax'} & {*sys.modules})"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
    assert printed == "set()\n"


def test_a_run_folder_is_loaded(model, pretrained):
    assert model.run.step == 12 and model.config.max_seq_len == 40
    assert str(pretrained) in repr(model) and "12,112 parameters>" in repr(model)
    assert gpt1_jax.load(str(pretrained), step=8).run.step == 8
    assert gpt1_jax.load(str(pretrained), step="best").run.step in (8, 12)


def test_logits_are_those_of_each_token_and_tell_the_likeliest_next(model):
    ids = model.tokenizer.encode(TEXT)
    assert "".join(model.tokens(TEXT)) == TEXT.replace(" ", "")
    expected = all_logits(model.config, model.params, np.asarray([ids]))[0]
    assert model.logits(TEXT).shape == (len(ids), 512) == (len(model.tokens(TEXT)), 512)
    np.testing.assert_allclose(model.logits(TEXT), expected, atol=1e-5)
    probs = np.asarray(jax.nn.softmax(model.logits(TEXT)[-1]))
    found = model.next_tokens(TEXT, k=5)
    best = np.argsort(-probs)[:5]
    assert [word for word, _ in found] == [model.tokenizer.decode([i]) for i in best]
    np.testing.assert_allclose([p for _, p in found], probs[best], rtol=1e-5)


def test_hidden_states_end_in_the_one_that_is_scored(model, pretrained):
    """They are float32 whatever the model computes in."""
    states = model.hidden_states(TEXT)
    assert states.shape == (2, len(model.tokenizer.encode(TEXT)), 16)
    scores = states[-1] @ np.asarray(model.params["wte"]).T
    np.testing.assert_allclose(scores, model.logits(TEXT), atol=1e-5)
    other = gpt1_jax.load(str(pretrained))
    other.config = dataclasses.replace(model.config, dtype="bfloat16")
    rough = other.hidden_states(TEXT)
    assert states.dtype == rough.dtype == np.float32
    assert 1e-6 < np.abs(states - rough).max() < 0.2


def test_features_are_the_states_at_word_ends(model):
    ends = np.cumsum([len(model.encode(word)) for word in TEXT.split()]) - 1
    states = model.hidden_states(TEXT)
    np.testing.assert_allclose(model.features(TEXT, 1), states[1, ends], atol=1e-5)
    alone = model.hidden_states("the abcd")[0, -1]
    few = model.features(TEXT, 0, context_words=1)
    assert few.shape == (6, 16)
    np.testing.assert_allclose(few[1], alone, atol=1e-5)
    assert len(model.features("ab cd\n\n" * 60, 1)) == 120


def test_forward_of_a_text_is_what_its_own_methods_give(model):
    maps, states = "h_0/attn/probs", ["embedding", "h_0/out"]
    found = model.forward(TEXT, [maps, *states, "wpe"])
    assert found.tokens == model.tokens(TEXT)
    assert found.ids.tolist() == model.encode(TEXT)
    np.testing.assert_allclose(found.logits, model.logits(TEXT), atol=1e-5)
    probs = model.attention(TEXT)
    assert probs.shape == (1, 2, len(found.ids), len(found.ids))
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(probs, np.tril(probs))
    np.testing.assert_array_equal(found.recorded[maps], probs[0])
    found_states = [found.recorded[name] for name in states]
    np.testing.assert_allclose(found_states, model.hidden_states(TEXT), atol=1e-5)
    assert found.recorded["wpe"].shape == (40, 16)
    several = model.forward([TEXT, "ab"], ["h_0/out"])
    short = len(model.encode("ab"))
    assert [len(tokens) for tokens in several.tokens] == [len(found.ids), short]
    assert several.recorded["h_0/out"].shape == (2, len(found.ids), 16)
    np.testing.assert_allclose(several.logits[1, :short], model.logits("ab"), atol=1e-5)
    one = model.forward(("ab",))
    assert one.logits.shape == (1, short, 512) and one.recorded == {}


def test_mean_activations_are_those_over_all_tokens(model):
    texts, record = [TEXT, "ab", "cd\nef"], ["h_0/out", "h_0/attn/heads"]
    rows = [model.forward(text, record).recorded for text in texts]
    found = model.mean_activations(iter(texts), record, batch_size=2)
    assert list(found) == ["h_0/attn/heads", "h_0/out"]
    for name, mean in found.items():
        expected = np.concatenate([row[name] for row in rows]).mean(axis=0)
        np.testing.assert_allclose(mean, expected, atol=1e-6)


def test_a_fine_tuned_run_is_a_language_model_too(finetuned):
    model = gpt1_jax.load(str(finetuned))
    found = model.forward(TEXT, ["wte"], {"h_0/out": zero(positions=-1)})
    assert found.recorded["wte"].shape[0] == model.tokenizer.vocab_size + 3
    assert found.logits.shape[1] == model.tokenizer.vocab_size
    assert model.generate(TEXT, max_new_tokens=4)
    np.testing.assert_array_equal(found.logits[-1], 0)
    assert (found.logits[:-1] != 0).all()


def log_probs_after_a_newline(model, text):
    ids = [model.tokenizer.newline_id, *model.tokenizer.encode(text)]
    scores = all_logits(model.config, model.params, np.asarray([ids]))[0, :, :512]
    return np.asarray(jax.nn.log_softmax(scores))[range(len(ids) - 1), ids[1:]]


def test_log_probs_are_those_of_the_text_after_the_context(model):
    encode = model.tokenizer.encode
    log_probs = model.log_probs(" cd ab", context="ab ab.")
    expected = log_probs_after_a_newline(model, "ab ab. cd ab")
    count = len(encode("cd ab"))
    assert log_probs.shape == (count,)
    np.testing.assert_allclose(log_probs, expected[-count:], atol=1e-5)
    alone = model.log_probs("ab ab. cd ab")
    np.testing.assert_allclose(alone, expected, atol=1e-5)
    long = model.log_probs("ab " * 200)  # read in windows
    assert len(long) == len(encode("ab " * 200)) and np.isfinite(long).all()


def test_surprisal_of_words_is_that_of_their_tokens(model):
    text = f"{TEXT}!\nEnd."
    found = model.surprisal(text)
    assert [each.word for each in found] == text.split()
    assert [text[each.start : each.end] for each in found] == text.split()
    assert [(each.line, each.sentence) for each in found] == [(1, 1)] * 6 + [(2, 2)]
    expected = -log_probs_after_a_newline(model, "End.").sum()
    assert found[-1].nats == pytest.approx(expected, abs=1e-4)
    columns = dict(zip(found[0]._fields, zip(*found, strict=True), strict=True))
    assert len(columns["bits"]) == 7 and columns["bits"][0] > 0


def test_surprisal_takes_the_ways_of_reading_by_name(model):
    apart = model.surprisal("abcd, efgh", punctuation="apart", first_word="unscored")
    assert [each.word for each in apart] == ["abcd", ",", "efgh"]
    assert np.isnan(apart[0].nats) and apart[1].nats > 0


def test_texts_are_continued(model):
    one = model.generate(TEXT, max_new_tokens=5)
    assert isinstance(one, str) and one
    assert model.generate([TEXT, "x"], max_new_tokens=5)[0] == one
    how = dict(max_new_tokens=5, do_sample=True, num_return_sequences=3)
    several = model.generate(TEXT, **how)
    assert len(set(several)) == 3
    assert model.generate([TEXT, "x"], **how)[:3] == several
    assert model.generate(TEXT, seed=1, **how)[:2] == several[1:]


@pytest.mark.parametrize("set_leaf", [False, True], ids=["all", "one in place"])
def test_new_parameters_are_used_everywhere(pretrained, set_leaf):
    model, before = (gpt1_jax.load(str(pretrained)) for _ in range(2))
    names = ("generate", "next_tokens", "log_probs", "hidden_states", "forward")

    def answers(model):
        return [str(getattr(model, name)(TEXT)) for name in names]

    old = answers(model)
    if set_leaf:
        model.params["wte"] = -model.params["wte"]
    else:
        negate = jax.jit(functools.partial(jax.tree.map, jnp.negative))
        model.params = negate(model.params)
    before.params = model.params  # without an answer from the old ones
    new = answers(model)
    assert new == answers(before)
    assert all(a != b for a, b in zip(new, old, strict=True))


def test_a_new_configuration_is_used_everywhere(pretrained):
    model, fresh = (gpt1_jax.load(str(pretrained)) for _ in range(2))
    how = dict(max_new_tokens=5, do_sample=True, num_return_sequences=3)
    model.generate(TEXT, **how)
    for each in (model, fresh):
        each.config = dataclasses.replace(each.config, dtype="bfloat16")
    made = model._for_generation["h_0"]["mlp"]["c_fc"]["kernel"]
    assert jax.tree.leaves(made)[0].dtype == "bfloat16"
    assert model.generate(TEXT, **how) == fresh.generate(TEXT, **how)


@pytest.mark.parametrize("ask", ["forward", "logits", "hidden_states", "attention"])
def test_a_text_longer_than_the_context_has_tokens_but_no_states(model, ask):
    assert len(model.tokens("\n" * 81)) == 81
    with pytest.raises(ValueError, match=r"has 81 tokens; this model reads 40"):
        getattr(model, ask)("\n" * 81)


def test_the_lines_of_the_readme_run_as_printed(
    pretrained, tmp_path, monkeypatch, capsys
):
    (tmp_path / "runs/pretrain").mkdir(parents=True)
    (tmp_path / "runs/pretrain/quickstart").symlink_to(pretrained)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    exec(code, {})
    assert "(2, " in capsys.readouterr().out.splitlines()[-1]


def test_several_texts_are_scored_apart(model):
    texts = (TEXT, "ab cd\nef", TEXT)
    for reading in ({}, {"context": "text"}, {"punctuation": "apart"}):
        for text, words in zip(texts, model.surprisal(texts, **reading), strict=True):
            alone = model.surprisal(text, **reading)
            places = [[word[:6] for word in each] for each in (words, alone)]
            assert places[0] == places[1]
            nats = [[word.nats for word in each] for each in (words, alone)]
            np.testing.assert_allclose(*nats, rtol=1e-5)
    for text, scores in zip(texts, model.log_probs([*texts], "a "), strict=True):
        np.testing.assert_allclose(scores, model.log_probs(text, "a "), rtol=1e-5)
    assert model.surprisal([]) == model.log_probs([]) == model.generate([]) == []


@pytest.mark.parametrize(
    ("method", "given", "options", "says"),
    [
        ("features", "\n ", {"layer": 1}, "text holds no word"),
        ("mean_activations", [], {"record": ["wpe"]}, "^There is no text; pass on"),
        ("mean_activations", [TEXT], {"record": ["h_0/attn/*"]}, "/probs has no mean"),
        ("surprisal", "a", {"context": "page"}, r"config.context='page' is not known"),
        ("surprisal", "a", {"foo": 1, "bar": 2}, "no option bar, foo; there are conte"),
        ("surprisal", " \n", {}, "the text holds no word"),
        ("surprisal", [TEXT, " \n"], {}, r"^texts\[1\] holds no word\.$"),
        ("surprisal", "a\n" + "ab" * 41, {}, r"the text:2: .* has 81 tokens; this mod"),
        ("generate", "a", {"foo": 1}, "no option foo; there are num_return_seq"),
        ("generate", "a", {"stop_strings": ("of \ud800",)}, "is half of a character"),
    ],
)
def test_what_cannot_be_computed_is_refused(model, method, given, options, says):
    with pytest.raises(ValueError, match=says):
        getattr(model, method)(given, **options)


@pytest.mark.parametrize("method", ["forward", "surprisal", "log_probs", "generate"])
def test_other_than_texts_are_refused_in_one_line(model, method):
    call = getattr(model, method)
    several = "a str, or a list or tuple of them, as list(column) makes."
    for given, message in (
        (None, f"text is of type NoneType; pass {several}"),
        (b"", f"text is of type bytes; pass {several}"),
        ([TEXT, {}], "texts[1] is of type dict; pass a str."),
    ):
        with pytest.raises(UserError) as found:
            call(given)
        assert str(found.value) == message
    with pytest.raises(UserError, match=r"'\\ud800' .* is half of a character.*\Z"):
        call(["a", "of \ud800"])


ONE = ("encode", "tokens", "logits", "next_tokens", "hidden_states", "attention")


@pytest.mark.parametrize("method", [*ONE, "features", "log_probs"])
def test_other_than_one_text_is_refused_in_one_line(model, method):
    call = getattr(model, method)
    if method == "features":
        call = functools.partial(call, layer=1)
    if method == "log_probs":
        call = functools.partial(call, TEXT)  # the context
    for value in (None, b"ab", ["ab"]):
        with pytest.raises(UserError, match=r"^\w+ is of type \w+; pass a str\.$"):
            call(value)
    with pytest.raises(UserError, match=r"'\\ud800' .* is half of a character.*\Z"):
        call("of \ud800")
