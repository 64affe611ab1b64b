"""Texts of different lengths, together: what is computed is what each alone gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from made_up_tokenizer import Characters
from tiny_models import LSTM, drawn_params

from gpt1_jax.errors import UserError
from gpt1_jax.inference.forward import forward_ids, forward_texts, sum_over_tokens
from gpt1_jax.model import interventions
from gpt1_jax.model.interventions import add, keep_heads, mean, replace, zero

TOKENIZER = Characters()
TEXTS = {"one": "a bad cab", "two": "ab", "three": "dab a"}  # 7, 2 and 4 tokens
LENGTHS = [7, 2, 4]


@pytest.fixture(scope="module")
def config(tiny_model_config):
    return tiny_model_config(vocab_size=260, max_seq_len=12)


@pytest.fixture(scope="module")
def params_of():
    return functools.cache(
        lambda config: jax.tree.map(lambda leaf: 4 * leaf, drawn_params(config))
    )


@pytest.fixture(scope="module")
def run(config, params_of):
    """`run(texts, record, edits)`: the `Forward` of some of the texts."""

    def run(names, record=(), edits=None):
        texts = {name: TEXTS[name] for name in names}
        return forward_texts(config, params_of(config), TOKENIZER, texts, record, edits)

    return run


def test_shapes_are_those_of_the_longest_text(run):
    found = run(TEXTS, ["*"])
    ids = [TOKENIZER.encode(text) for text in TEXTS.values()]
    assert [len(row) for row in ids] == LENGTHS
    assert found.logits.shape == (3, 7, 256)  # of the tokenizer's tokens
    assert found.ids.tolist() == [row + [-1] * (7 - len(row)) for row in ids]
    assert found.tokens[1:] == [["a", "b "], ["d", "a", "b ", "a "]]
    shapes = {name: found.recorded[name].shape for name in found.recorded}
    expected = {
        "wte": (260, 32),
        "wpe": (12, 32),
        "embedding": (3, 7, 32),
        "h_1/attn/probs": (3, 2, 7, 7),
        "h_1/attn/heads": (3, 7, 2, 16),
        "h_0/mlp/hidden": (3, 7, 128),
    }
    assert expected.items() <= shapes.items()
    assert {x.dtype for x in found.recorded.values()} == {np.dtype("float32")}


def test_activations_come_in_the_order_of_the_computation(run):
    """Not in that of their names, in which h_10 would come before h_2."""
    names = ["wte", "embedding", "h_0/attn/q", "h_0/attn/k", "h_0/ln_1/out", "h_0/out"]
    found = run(TEXTS, ["*"]).recorded
    assert [name for name in found if name in names] == names


VECTOR = np.random.default_rng(0).normal(size=32)
EDITS = {
    "embedding": replace(VECTOR, words=1),
    "h_0/attn/heads": mean(heads=1),
    "h_0/out": add(VECTOR, positions=-1),
    "h_1/attn/probs": mean(positions=-1),
    "h_1/attn/heads": keep_heads(1),
    "h_1/ln_1/out": lambda x: x + 1,
    "h_1/mlp/out": mean(positions=[0, -2]),
}


def test_texts_together_are_what_each_is_alone(run):
    """Places count from the end of each text, and means are over its own tokens."""
    record = ["h_0/out", "h_1/attn/probs"]
    together, clean = (run(TEXTS, record, edits) for edits in (EDITS, None))
    for place, (name, length) in enumerate(zip(TEXTS, LENGTHS, strict=True)):
        alone = run([name], record, EDITS)
        logits = together.logits[place, :length]
        np.testing.assert_allclose(logits, alone.logits[0], atol=1e-5)
        for activation in record:
            one, other = (each.recorded[activation] for each in (together, alone))
            one = one[place, ..., :length, : other.shape[-1]]
            np.testing.assert_allclose(one, other[0], atol=1e-5)
    assert np.abs(together.logits - clean.logits).max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "dtype"), [("transformer", "bfloat16"), ("lstm", "float32")]
)
def test_an_edit_that_returns_its_argument_changes_no_bit_beside_padding(
    tiny_model_config, params_of, kind, dtype
):
    """Of shorter texts; no length of the longest is padded where there may be edits."""
    more = LSTM if kind == "lstm" else {}
    model = tiny_model_config(vocab_size=260, max_seq_len=12, dtype=dtype, **more)
    rows, seen = {"one": [*range(7)], "two": [4, 3]}, set()

    def same(x):
        seen.update(x.shape)
        return x

    def run(edits=None):
        arguments = model, params_of(model), rows, ["*"], edits
        found = forward_ids(*arguments, with_logits=True, few_programs=bool(edits))
        return {"logits": found.logits, **found.recorded}

    clean, found = run(), run({"*": same})
    assert 7 in seen and 8 not in seen
    for name, x in clean.items():
        assert x.dtype == np.float32
        np.testing.assert_array_equal(found[name], x, err_msg=name)


def test_other_values_and_texts_of_these_lengths_compile_nothing(config, params_of):
    traced = []

    def scaled(factor, x):
        traced.append(x)
        return factor * x

    def logits(factor, position, rows):
        edits = {
            "h_0/out": Partial(scaled, jnp.float32(factor)),
            "h_1/attn/heads": zero(heads=position, positions=[position]),
            "h_0/attn/heads": keep_heads([position]),
            "h_0/mlp/out": add(jnp.full(32, factor), positions=[position]),
            "h_1/mlp/out": mean(positions=position),
            "h_1/out": replace(jnp.full(32, factor), positions=[[position], [0]]),
        }
        arguments = config, params_of(config), rows, (), edits
        return forward_ids(*arguments, with_logits=True).logits

    first = logits(2.0, 0, {"a": [1, 2, 3], "b": [4]})
    second = logits(3.0, 1, {"c": [4, 3, 2], "d": [1, 0]})
    assert len(traced) == 1 and (first != second).any()


def test_texts_of_similar_lengths_share_a_program_without_edits(
    config, params_of, monkeypatch
):
    traced, forward = [], interventions.forward

    def noted(*arguments, **sites):
        traced.append(arguments)
        return forward(*arguments, **sites)

    monkeypatch.setattr(interventions, "forward", noted)
    for length in (5, 7, 8):
        rows = {"row": [*range(length)]}
        found = forward_ids(config, params_of(config), rows, ["h_0/attn/v"])
        assert found.recorded["h_0/attn/v"].shape == (1, length, 2, 16)
        assert found.logits.shape == (1, length, 0)
    assert len(traced) == 1


def test_the_sum_over_tokens_leaves_padding_out(run):
    found = run(TEXTS, ["*"])

    def some(*names):
        return found._replace(recorded={name: found.recorded[name] for name in names})

    count, sums = sum_over_tokens(some("h_0/attn/heads", "h_1/out", "embedding"))
    assert count == sum(LENGTHS)
    for name in sums:
        texts = zip(found.recorded[name], LENGTHS, strict=True)
        expected = sum(row[:length].sum(0) for row, length in texts)
        np.testing.assert_allclose(sums[name], expected, atol=1e-4)
    for name in ("h_0/attn/probs", "wpe"):
        with pytest.raises(UserError, match=f"^{name} has no mean over tokens; leave"):
            sum_over_tokens(some(name))


def test_heads_by_truth_values_are_refused():
    with pytest.raises(UserError, match="got truth values; give it numbers of heads"):
        zero(heads=[True, False])


class Joined(Characters):
    """A token reaches across the space between words."""

    marks_word_ends = False

    def encode(self, text):
        return super().encode(text.replace(" ", "_"))


def test_texts_that_cannot_be_read_are_refused(config, params_of, tiny):
    params = params_of(config)

    def refused(texts, message, edits=None, tokenizer=TOKENIZER, config=config):
        with pytest.raises(UserError, match=message):
            forward_texts(config, params, tokenizer, texts, (), edits)

    refused({}, r"^There is no text; pass one or more\.$")
    long = r"^TextS\[1\] has 13 tokens; this model reads 12\. Pass a shorter one\.$"
    refused({"texts[0]": "a", "texts[1]": "a" * 13}, long.replace("TextS", "Texts"))
    huge = tiny(vocab_size=10**13, max_seq_len=12)
    memory = r"^A batch of 3 texts of up to 7 tokens takes .* Pass fewer at a time\.$"
    refused(TEXTS, memory, config=huge)
    heads = r"^The edit of h_\*/attn/v is at heads 2; there are 2, counted from 0\.$"
    for edit in (zero(heads=[0, 2]), keep_heads(2)):
        refused(TEXTS, heads, {"h_*/attn/v": edit})
    positions = r"^The edit of h_0/out is at positions -8; there are 7, counted"
    refused(TEXTS, positions, {"h_0/out": add(1.0, positions=[[6], [0], [-8]])})
    words = r"names words, but where they are is not known"
    refused(TEXTS, words, {"h_0/out": zero(words=0)}, Joined())
