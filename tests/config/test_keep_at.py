"""After how much text a checkpoint is kept: read from the configuration, or refused."""

import pytest
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.config.keep_at import Target, parse

M = 10**6


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", ()),
        ("1M", (M,)),
        ("2.5M, 300,1k", (300, 1000, 2_500_000)),
        ("1M:4M:+1M", (M, 2 * M, 3 * M, 4 * M)),
        ("1M:4M:+2M", (M, 3 * M)),  # up to the last at most
        ("1M:1B:*10", (M, 10 * M, 100 * M, 1000 * M)),
        ("1:10:*1.5", (1, 2, 3, 5, 8)),  # 1.5, 2.25, 3.375, 5.0625, 7.59375
        ("1k:3k:+1k,2k:8k:*2", (1000, 2000, 3000, 4000, 8000)),  # 2k but once
        ("0.5k:1.5k:+0.5k", (500, 1000, 1500)),
    ],
)
def test_counts_and_ranges_are_read_in_order(text, counts):
    assert parse("key", text) == counts


def test_the_targets_of_both_tracks_of_the_challenge():
    config = config_lib.load(load_config("babylm").to_dict())
    names = [target.short for target in config.checkpoint.targets()]
    ones, tens = (list(range(1, 11)), list(range(20, 101, 10)))
    hundreds = list(range(200, 1001, 100))
    assert names == [f"{count}M" for count in (*ones, *tens, *hundreds)]


@pytest.mark.parametrize(
    "part",
    [
        *("a", "-1", "0", "1.5", "1m", "1 M", "1e6", "\u0661", "1M:2M", "1M:2M:1M"),
        *("2M:1M:+1", "1:5:+0", "1:5:+0.5", "1:5:*1", "1:5:*0.5", "1:5:-1", ""),
        *("1:2:+1:2", "0:5:+1"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_way_out(part):
    with pytest.raises(ValueError) as error:
        parse("config.checkpoint.keep_at_words", f"1k,{part}")
    message = str(error.value)
    assert message.startswith(f"config.checkpoint.keep_at_words={f'1k,{part}'!r}: ")
    assert f"{part!r} is neither a whole count" in message
    assert "1M:10M:+1M" in message and "\n" not in message


@pytest.mark.parametrize("text", ["1:1B:+1", "1:600:+1,1001:1600:+1", "1:9:*1.0001"])
def test_too_many_are_refused_at_once(text):
    with pytest.raises(ValueError, match=r"more than 1,000 counts.*larger steps"):
        parse("key", text)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"keep_at_words": "ten"}, r"config.checkpoint.keep_at_words='ten': 'ten' is"),
        ({"keep_at_tokens": "1M:"}, r"config.checkpoint.keep_at_tokens='1M:': '1M:'"),
        (
            {"keep_at_words": "1M", "keep_at_tokens": "2M"},
            r"keep_at_words='1M' and config.checkpoint.keep_at_tokens='2M': set one",
        ),
        (
            {"keep_at_tokens": "1M", "keep_at_steps": "2k"},
            r"keep_at_tokens='1M' and config.checkpoint.keep_at_steps='2k': set one",
        ),
        ({"keep_at_steps": "1M:"}, r"config.checkpoint.keep_at_steps='1M:': '1M:'"),
    ],
)
def test_a_configuration_is_checked_when_it_is_loaded(overrides, message):
    config = load_config("paper")
    config.checkpoint.update(overrides)
    with pytest.raises(ValueError, match=message):
        config_lib.load(config.to_dict())


def test_targets_have_the_unit_that_is_set():
    config = load_config("paper")
    assert config_lib.load(config.to_dict()).checkpoint.targets() == ()
    for unit in ("words", "tokens", "steps"):
        config.checkpoint[f"keep_at_{unit}"] = "2k"
        targets = config_lib.load(config.to_dict()).checkpoint.targets()
        assert targets == (Target(2000, unit),)
        config.checkpoint[f"keep_at_{unit}"] = ""


def test_a_million_updates_are_kept_as_figure_2_spaces_them():
    config = config_lib.load(load_config("paper_1m").to_dict())
    *most, end = config.checkpoint.targets()
    spaced = [Target(m * 10**k, "steps") for k in (3, 4, 5) for m in (1, 2, 5)]
    assert most == spaced and end == Target(config.train.num_steps, "steps")


@pytest.mark.parametrize(
    ("amount", "short"),
    [
        (7, "7"),
        (999, "999"),
        (1000, "1k"),
        (20_500, "20.5k"),
        (10 * M, "10M"),
        (2_500_000, "2.5M"),
        (1_234_567, "1.234567M"),
        (1000 * M, "1000M"),
    ],
)
def test_a_short_name_says_the_amount_exactly(amount, short):
    target = Target(amount, "words")
    assert target.short == short and str(target) == f"{short} words"
    assert parse("key", short) == (amount,)
