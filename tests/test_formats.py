"""What is read again says its format; another one is refused in a line."""

import pytest

import gpt1_jax
from gpt1_jax import formats
from gpt1_jax.errors import UserError

FORMATS = [each for each in vars(formats).values() if isinstance(each, formats.Format)]


def refused(format, values):
    with pytest.raises(UserError) as error:
        format.check(values, "runs/a")
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"runs/a is {format.name} ")
    assert line.endswith(f", or {format.again}.")
    assert f"gpt1_jax {gpt1_jax.__version__} reads format {format.number}. " in line
    return line


@pytest.mark.parametrize("format", FORMATS, ids=lambda each: each.name)
def test_this_format_is_read_and_another_refused_with_the_version_that_reads_it(format):
    number = 2 if format is formats.CORPUS else 1
    assert format.stamp() == {"format": number, "gpt1_jax": gpt1_jax.__version__}
    format.check({"format": number, "gpt1_jax": "1.7.2", "other": "key"}, "runs/a")
    line = refused(format, {"format": 3, "gpt1_jax": "1.3.0"})
    assert "of format 3, written by gpt1_jax 1.3.0; " in line
    assert "Use gpt1_jax 1.3.0, or " in line


def test_what_says_no_format_is_older_than_1_0():
    line = refused(formats.RUN_FOLDER, {"job": "pretrain"})
    assert "without the number of its format, written by a version of gpt1_jax" in line
    assert "before 1.0.0; " in line and "Use the version that wrote" in line


@pytest.mark.parametrize(
    "values",
    [
        {"format": "1", "gpt1_jax": "1.0.0"},
        {"format": True, "gpt1_jax": "1.0.0"},
        {"format": 1.0},
        {"format": [1] * 1000, "gpt1_jax": "1.0.0\nTraceback"},
        {"format": 2, "gpt1_jax": "9" * 1000},
    ],
    ids=["text", "bool", "float", "list", "long"],
)
def test_odd_values_are_refused_in_a_short_line(values):
    line = refused(formats.TOKENIZER, values)
    assert len(line) < 300
