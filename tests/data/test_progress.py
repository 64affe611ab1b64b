"""Progress where there is no terminal."""

import time

import pytest

from gpt1_jax.data import progress
from gpt1_jax.data.progress import Bar


@pytest.fixture
def timed():
    """Makes a bar, and what has it do so many units in so many seconds."""
    now = [100.0]

    def make(*arguments, **values):
        bar = Bar(*arguments, **values)
        bar._time = lambda: now[0]
        bar.start_t = bar.last_print_t = now[0]

        def passes(seconds, number):
            now[0] += seconds
            bar.update(number)

        return bar, passes

    return make


def test_lines_come_now_and_then(timed, capsys):
    bar, passes = timed("tokenise", 80_000_000, "B", unit_scale=True)
    for _ in range(8):
        passes(5.0, 10_000_000)
    passes(30.0, 30_000_000)  # compressed text may be more
    bar.close()
    _, passes = timed("validate", 100, "batch", active=False)
    passes(1000.0, 50)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "tokenise: 20.0MB of 80.0MB, 00:30 left.",
        "tokenise: 40.0MB of 80.0MB, 00:20 left.",
        "tokenise: 60.0MB of 80.0MB, 00:10 left.",
        "tokenise: 80.0MB of 80.0MB, 00:00 left.",
        "tokenise: 110MB of 80.0MB, 00:00 left.",
    ]
    assert not captured.out


def test_each_long_step_has_a_line_and_what_is_known_of_it_counts(timed, capsys):
    bar, passes = timed("train", 1_000, "step", initial=500)
    passes(60.0, 1)  # compilation
    bar.seconds_each = 12.0
    passes(12.0, 1)
    bar.said()
    passes(9.0, 1)
    bar.close()
    assert capsys.readouterr().err.splitlines() == [
        "train: 501 of 1,000 steps, 8:19:00 left.",
        "train: 502 of 1,000 steps, 1:39:36 left.",
    ]
    _, passes = timed("train", 100_000, "step")
    for _ in range(8_640):  # a day, whose lines are a hundredth of it apart
        passes(10.0, 1)
    assert 100 < len(capsys.readouterr().err.splitlines()) < 600


def test_only_what_takes_long_is_said(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)
    with progress.said_if_long("short"):
        pass
    with progress.said_if_long("long"):
        time.sleep(0.2)
    assert capsys.readouterr().err == "long\n"


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
