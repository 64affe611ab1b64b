"""How the time of a program is divided."""

import time

import pytest

from gpt1_jax.runs.wall_time import TRAINING, WallTime


@pytest.fixture
def clock(monkeypatch):
    """`clock(seconds)` lets time pass."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: sum(now))
    return now.append


def test_each_moment_counts_once_though_a_part_fails(clock):
    times = WallTime()
    clock(7)
    with pytest.raises(ValueError, match="broken"), times.on(TRAINING):
        clock(50)
        with times.on("evaluation"):
            clock(20)
            with times.on("checkpoints"):
                clock(1)
            clock(10)
        clock(6)
        raise ValueError("broken")
    clock(2)
    with times.on(TRAINING):
        clock(4)
    assert times.summary() == (
        "Time: 100 s, 60% of it in training steps; evaluation 30 s, the rest 9 s, "
        "checkpoints 1 s."
    )


def test_laps_divide_the_time(clock):
    times = WallTime()
    clock(1)
    assert times.summary() == "", "without training there is nothing to say"
    with times.on(TRAINING):
        clock(5)
        assert times.lap() == {"the rest": 1, TRAINING: 5}
        clock(3)
    clock(2)
    assert times.lap() == {"the rest": 2, TRAINING: 3}
    assert times.lap() == {"the rest": 0, TRAINING: 0}
    assert times.summary().startswith("Time: 11 s, 73% of it")
