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
    found = make(model)(params, PROMPTS, [7, 8, 9])
    assert [each.prompt for each in found] == PROMPTS
    assert [each.seed for each in found] == [7, 8, 9]
    for each in found:
        assert each.text == " ".join(map(str, each.tokens))
        assert len(each.tokens) == len(each.log_probs) == 8
        assert max(each.log_probs) < 0 and each.finish_reason == "length"


def test_an_empty_prompt_is_a_newline(model, params):
    empty, newline = make(model)(params, ["", "0"], [1, 1])
    assert empty.tokens == newline.tokens


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_stop_string_ends_the_text_behind_it(model, params, place):
    (whole,) = make(model)(params, ["3 1 4"], [0])
    stop = str(whole.tokens[place])
    (ended,) = make(model, stop_strings=("no", stop))(params, ["3 1 4"], [0])
    assert ended.finish_reason == "stop"
    assert ended.text == whole.text[: whole.text.index(stop) + len(stop)]
    assert whole.tokens[: len(ended.tokens)] == ended.tokens
    assert len(ended.log_probs) == len(ended.tokens)


def test_streamed_words_are_whole_and_make_up_the_text(model, params):
    config = sampling_config()
    generator = Generator(model, Numbers(), config, batch_size=4, round_size=1)
    (whole,) = generator(params, ["3 1 4"], [5])
    words = list(generator.stream(params, "3 1 4", 5))
    assert "".join(words) == whole.text
    assert words == [f"{token} " for token in whole.tokens[:-1]] + [
        str(whole.tokens[-1])
    ]


def test_a_streamed_text_ends_at_a_stop_string_too(model, params):
    (whole,) = make(model)(params, ["3 1 4"], [0])
    stop = f"{whole.tokens[2]} "
    generator = make(model, stop_strings=(stop,))
    (ended,) = generator(params, ["3 1 4"], [0])
    assert "".join(generator.stream(params, "3 1 4", 0)) == ended.text
    assert ended.text.endswith(stop)


def test_what_outgrows_the_context_is_known(model):
    generator = make(model)  # 8 more tokens, of 32
    assert not generator.outgrows(["1 " * 25])
    assert generator.outgrows(["1", "1 " * 26])


class Spaced(Numbers):
    """The number of a token is written behind a space, unless it begins the text."""

    marks_word_ends = False


def test_a_continuation_keeps_the_space_that_begins_it(model, params):
    generator = Generator(model, Spaced(), sampling_config(max_new_tokens=2))
    (found,) = generator(params, ["3 1 4"], [0])
    assert generator.separator == "" and found.text.startswith(" ")
    assert found.text == "".join(f" {token}" for token in found.tokens)
    assert "".join(generator.stream(params, "3 1 4", 0)) == found.text


def test_a_stop_string_may_begin_with_the_space_of_the_first_word(model, params):
    generator = Generator(model, Spaced(), sampling_config(max_new_tokens=4))
    (whole,) = generator(params, ["3 1 4"], [0])
    stop = f" {whole.tokens[0]}"
    config = sampling_config(max_new_tokens=4, stop_strings=(stop,))
    (ended,) = Generator(model, Spaced(), config)(params, ["3 1 4"], [0])
    assert (ended.text, ended.finish_reason) == (stop, "stop")
    assert ended.tokens == whole.tokens[:1]


def test_a_stop_is_looked_for_in_new_tokens_alone(model, params, monkeypatch):
    """Not again in each text that had none."""
    lengths = []
    (whole,) = make(model)(params, ["3 1 4"], [0])
    decode = Numbers.decode
    monkeypatch.setattr(
        Numbers,
        "decode",
        lambda self, ids: lengths.append(len(ids)) or decode(self, ids),
    )
    config = sampling_config(stop_strings=(f" {whole.tokens[-1]}",))
    generator = Generator(model, Numbers(), config, round_size=4)
    (ended,) = generator(params, ["3 1 4"], [0])
    assert ended.finish_reason == "stop" and len(whole.tokens) == 8
    assert lengths == [4, 8, 5, 6, 7, 8, 8]


@pytest.mark.parametrize("seed", [-1, 2**32, 2**32 - 1])
def test_seeds_outside_of_32_bits_are_refused(model, params, seed):
    with pytest.raises(UserError, match="seed="):
        make(model).several(params, ["3"], 2, seed)
