"""Progress where there is no terminal, and output that fails."""

import pytest
from tiny_run import run_program

from gpt1_jax.data import progress
from gpt1_jax.data.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    return Clock


def test_progress_prints_a_line_now_and_then(clock, capsys):
    with Progress(80_000_000, active=True) as shown:
        for _ in range(8):
            clock.now += 10.0
            shown.update(10_000_000)
    assert capsys.readouterr().out.splitlines() == [
        "Tokenised 20.0 of 80.0 MB, 1.00 MB/s, 60 s left.",
        "Tokenised 40.0 of 80.0 MB, 1.00 MB/s, 40 s left.",
        "Tokenised 60.0 of 80.0 MB, 1.00 MB/s, 20 s left.",
        "Tokenised 80.0 of 80.0 MB, 1.00 MB/s, 0 s left.",
    ]


@pytest.mark.parametrize(
    ("terminal", "term", "without"),
    [(True, "xterm", False), (True, "dumb", True), (False, "xterm", True)],
)
def test_bars_need_a_terminal_that_moves_its_cursor(
    monkeypatch, terminal, term, without
):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", term)
    assert progress.without_bars() is without


def test_progress_of_compressed_text_never_counts_below_zero(clock, capsys):
    with Progress(1_000_000, active=True) as shown:
        clock.now += 30.0
        shown.update(3_000_000)
    assert capsys.readouterr().out.endswith("0 s left.\n")


def test_progress_of_other_processes_is_silent(clock, capsys):
    with Progress(100, active=False) as shown:
        clock.now += 1000.0
        shown.update(50)
    assert capsys.readouterr() == ("", "")


SHOWING = """
import sys
from gpt1_jax.data import progress

progress.open_streams()
if {may_fail}:
    progress.output_may_fail()
progress.show_line("café" * 40_000)
print("beside", file=sys.stderr)
print("x" * 70_000)
open({path!r}, "w").write(f"on: {{progress.failed_streams()}}")
print("at the end, not flushed", end="")
print("at the end, not flushed", end="", file=sys.stderr)
"""
BROKEN, FULL, CLOSED = "Broken pipe", "No space left on device", "Bad file descriptor"


@pytest.mark.parametrize("may_fail", [True, False])
@pytest.mark.parametrize(
    ("redirected", "output", "error"),
    [
        ("| true", BROKEN, ""),
        ("| head -c 1 > /dev/null", BROKEN, ""),
        ("> /dev/full", FULL, ""),
        ("2> /dev/full", "", FULL),
        ("> /dev/full 2>&1", FULL, FULL),
        (">&-", CLOSED, ""),
        ("<&- 2>&-", "", CLOSED),
        ("<&- >&- 2>&-", CLOSED, CLOSED),
    ],
)
def test_output_that_fails_ends_only_a_job_that_has_no_other(
    tmp_path, redirected, output, error, may_fail
):
    """At once and with an exception; never when the interpreter ends."""
    file = tmp_path / "file"
    code = SHOWING.format(may_fail=may_fail, path=str(file))
    status, shown = run_program(program=("-c", code), redirected=redirected)
    goes_on = may_fail or not output
    assert status == (0 if goes_on else 1), shown
    assert file.exists() == goes_on
    if goes_on:
        found = {"standard output": output, "standard error": error}
        assert file.read_text() == f"on: { {k: v for k, v in found.items() if v} }"
    said = f"standard output cannot be written ({output}); "
    said += "the job goes on." if may_fail else "write to a file, as with --config.o"
    assert (said in shown) == bool(output and not error)
    assert ("Traceback" in shown) == (not goes_on and not error)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252:strict", "utf-8"])
def test_what_an_encoding_lacks_is_escaped(encoding):
    code = "from gpt1_jax.data import progress; progress.open_streams(); "
    code += r"progress.show_line('\u6f22\ud800 \u0142')"
    status, shown = run_program(
        program=("-c", code), env={"PYTHONIOENCODING": encoding}
    )
    assert status == 0, shown
    expected = "漢\\ud800 ł" if encoding == "utf-8" else "\\u6f22\\ud800 \\u0142"
    assert shown.rstrip("\n") == expected


def test_a_full_pipe_that_does_not_wait_is_waited_for():
    """Another program may have set it so."""
    code = """
import os
from gpt1_jax.data import progress

os.set_blocking(1, False)
progress.open_streams()
progress.show_line("line " * 100_000)
"""
    status, shown = run_program(
        program=("-c", code), redirected="| (sleep 1; tail -c 7)"
    )
    assert (status, shown) == (0, " line \n")


def test_streams_of_others_stay(capsys):
    """As of a notebook, or of a test."""
    before = progress.sys.stdout, progress.sys.stderr
    progress.open_streams()
    assert (progress.sys.stdout, progress.sys.stderr) == before
