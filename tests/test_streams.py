"""Standard output and standard error that fail."""

import sys

import pytest
from tiny_run import run_program

from gpt1_jax import streams

SHOWING = """
import sys
from gpt1_jax import streams
from gpt1_jax.data import progress

streams.open_streams()
if {may_fail}:
    streams.output_may_fail()
file = open({path!r}, "w")
progress.show_line("café" * 40_000)
print("beside", file=sys.stderr)
print("x" * 70_000)
file.write("reached")
print("at the end, not flushed", end="")
print("at the end, not flushed", end="", file=sys.stderr)
"""
BROKEN, FULL, CLOSED = "Broken pipe", "No space left on device", "Bad file descriptor"


@pytest.mark.parametrize("may_fail", [True, False])
@pytest.mark.parametrize(
    ("redirected", "output", "said"),
    [
        ("| head -c 1 > /dev/null", BROKEN, True),
        ("> /dev/full", FULL, True),
        ("2> /dev/full", "", False),
        (">&-", CLOSED, True),
        ("<&- >&- 2>&-", CLOSED, False),
    ],
)
def test_output_that_fails_ends_only_a_job_that_has_no_other(
    tmp_path, redirected, output, said, may_fail
):
    """At once, without a word to a closed pipe; never when the interpreter ends.

    The file opened next never takes the number of a closed stream.
    """
    file = tmp_path / "file"
    code = SHOWING.format(may_fail=may_fail, path=str(file))
    status, shown = run_program(program=("-c", code), redirected=redirected)
    goes_on = may_fail or not output
    assert status == (0 if goes_on else 1), shown
    assert file.read_text() == ("reached" if goes_on else "")
    assert ("Traceback" in shown) == (said and not goes_on and output != BROKEN)
    refused = f"cannot be written ({output}); write to a file, as with --config.output"
    goes = f"gpt1_jax: standard output cannot be written ({output}); the job goes on."
    assert (goes in shown) == (said and goes_on)
    assert (refused in shown) == (said and not goes_on and output != BROKEN)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252:strict", "utf-8"])
def test_what_an_encoding_lacks_is_escaped(encoding):
    code = "from gpt1_jax import streams; from gpt1_jax.data import progress; "
    code += r"streams.open_streams(); progress.show_line('\u6f22\ud800 \u0142')"
    env = {"PYTHONIOENCODING": encoding}
    status, shown = run_program(program=("-c", code), env=env)
    assert status == 0, shown
    expected = "漢\\ud800 ł" if encoding == "utf-8" else "\\u6f22\\ud800 \\u0142"
    assert shown.rstrip("\n") == expected


def test_streams_of_others_stay(capsys):
    """As of a notebook, or of a test."""
    before = sys.stdout, sys.stderr
    streams.open_streams()
    assert (sys.stdout, sys.stderr) == before
