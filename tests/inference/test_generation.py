"""Continuations as text: whole, word by word, up to a stop string."""

import pytest
from made_up_tokenizer import Numbers
from tiny_models import drawn_params, sampling_config

from gpt1_jax.errors import UserError
from gpt1_jax.inference.generation import Generator

PROMPTS = ["3 1 4", "", "1 5 9 2 6 5"]


@pytest.fixture(scope="module")
def model(tiny_model_config):
    return tiny_model_config(vocab_size=2000, num_layers=1, max_seq_len=32)


@pytest.fixture(scope="module")
def params(model):
    return drawn_params(model)


def make(model, **values):
    return Generator(model, Numbers(), sampling_config(**values), batch_size=4)


def test_continuations_come_in_order_with_their_tokens(model, params):
    """An empty prompt is a newline."""
    found = make(model)(params, PROMPTS, [7, 8, 9])
    assert [each.prompt for each in found] == PROMPTS
    assert [each.seed for each in found] == [7, 8, 9]
    for each in found:
        assert each.text == " ".join(map(str, each.tokens))
        assert len(each.tokens) == len(each.log_probs) == 8
        assert max(each.log_probs) < 0 and each.finish_reason == "length"
    (newline,) = make(model)(params, ["0"], [8])
    assert newline.tokens == found[1].tokens


class Spaced(Numbers):
    """The number of a token is written behind a space, unless it begins the text."""

    marks_word_ends = False


@pytest.mark.parametrize(
    ("tokenizer", "stop"),
    [(Numbers(), "{3}"), (Numbers(), "{2} "), (Spaced(), " {0}")],
    ids=["a word", "its space too", "its space in front"],
)
def test_a_stop_string_ends_the_text_behind_it(model, params, tokenizer, stop):
    def generate(*stop_strings):
        config = sampling_config(stop_strings=stop_strings)
        generator = Generator(model, tokenizer, config, batch_size=4)
        (found,) = generator(params, ["3 1 4"], [0])
        assert "".join(generator.stream(params, "3 1 4", 0)) == found.text
        return found

    whole = generate()
    stop = stop.format(*whole.tokens)
    ended = generate("no", stop)
    assert ended.finish_reason == "stop"
    assert ended.text == whole.text[: whole.text.index(stop) + len(stop)]
    assert whole.tokens[: len(ended.tokens)] == ended.tokens
    assert stop not in tokenizer.decode(ended.tokens[:-1])
    assert len(ended.log_probs) == len(ended.tokens)


def test_streamed_words_are_whole_and_make_up_the_text(model, params):
    """With the space that begins it."""
    generator = Generator(model, Numbers(), sampling_config(), round_size=1)
    (whole,) = generator(params, ["3 1 4"], [5])
    *words, last = generator.stream(params, "3 1 4", 5)
    assert words == [f"{token} " for token in whole.tokens[:-1]]
    assert "".join([*words, last]) == whole.text
    generator = Generator(model, Spaced(), sampling_config(max_new_tokens=2))
    (found,) = generator(params, ["3 1 4"], [0])
    assert generator.separator == ""
    assert found.text == "".join(f" {token}" for token in found.tokens)
    assert "".join(generator.stream(params, "3 1 4", 0)) == found.text


def test_what_outgrows_the_context_is_known(model):
    generator = make(model)  # 8 more tokens, of 32
    assert not generator.outgrows(["1 " * 25])
    assert generator.outgrows(["1", "1 " * 26])


@pytest.mark.parametrize("seed", [-1, 2**32 - 1])
def test_seeds_outside_of_32_bits_are_refused(model, params, seed):
    with pytest.raises(UserError, match="seed="):
        make(model).several(params, ["3"], 2, seed)
