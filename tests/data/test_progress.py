"""Progress where there is no terminal."""

import pytest

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
