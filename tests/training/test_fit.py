"""The host loop on a state that only counts, with all around it made up."""

import contextlib
import os
import signal
import time
import types
from typing import NamedTuple

import jax.numpy as jnp
import pytest
from etils import epath

from gpt1_jax.config.sections import LogConfig
from gpt1_jax.data.shards import SplitCounts
from gpt1_jax.parallel.processes import Watchdog
from gpt1_jax.runs.checkpoint_files import LOWEST_LOSS
from gpt1_jax.runs.milestones import schedule_milestones
from gpt1_jax.runs.records import Throughput
from gpt1_jax.runs.resume import Identity
from gpt1_jax.runs.signals import Stopped
from gpt1_jax.runs.wall_time import WallTime
from gpt1_jax.training import fit


class State(NamedTuple):
    step: jnp.ndarray
    params: str = "params"


class Diary:
    """Checkpoints and records that note what is asked of them."""

    step_seconds = None

    def __init__(self, known=()):
        self.events, self.saved, self.known = [], [], set(known)
        self.saved_at = time.monotonic()

    def save(self, step, state, metadata):
        self.saved_at = time.monotonic()
        if step not in self.saved:
            self.saved.append(step)
            self.events.append(f"save {step}")

    def add_score(self, step, score):
        self.events.append(f"measured {step}")

    def write(self, record):
        self.known.add(record["step"])

    def recorded(self, name, step):
        return step in self.known

    def train(self, step, metrics):
        self.events.append(f"train {step}")

    def wait(self):
        pass

    def step_done(self, step):
        pass

    @contextlib.contextmanager
    def paused(self):
        yield


def make_run(
    diary,
    *,
    loss=1.0,
    in_row=0,
    at=None,
    asked=None,
    log_every=2,
    eval_every=3,
    eval_also=(),
    save_evaluated=False,
    train_step=None,
    checkpoint_every=3,
    every_minutes=0.0,
    **overrides,
):
    """A run of six steps; `at` is {step: what happens while it is evaluated}."""

    def step(state, batch, seed):
        if asked is not None:
            asked.append(("step", batch))
        metrics = {
            "loss": jnp.float32(loss),
            "grad_norm": jnp.float32(1.0),
            "nonfinite_in_row": jnp.int32(in_row),
        }
        return State(state.step + 1), metrics

    def evaluate(params, step, stopped):
        diary.events.append(f"evaluate {step}")
        if at and step in at:
            at[step]()
        return None if stopped() else {"valid_loss": 1.0}

    config = types.SimpleNamespace(
        train=types.SimpleNamespace(max_nonfinite_steps=3),
        checkpoint=types.SimpleNamespace(
            every_steps=checkpoint_every, every_minutes=every_minutes
        ),
        log=LogConfig(log_every, False, False, 0, 0),
    )
    values = dict(
        config=config,
        folder=epath.Path("run"),
        identity=Identity({}, "tokenizer"),
        num_steps=6,
        computation=fit.Computation(None, None, None, train_step or step, seed=0),
        batches=None,
        evaluation=fit.Evaluation(
            evaluate, LOWEST_LOSS, eval_every, eval_also, save_evaluated
        ),
        throughput=Throughput("tokens", 1),
    )
    return fit.Run(**{**values, **overrides})


def train(diary, first_step=0, asked=None, watchdog=None, **overrides):
    """Trains to the end; what the loop asks for is noted in `asked` and the diary."""

    def batches():
        for number in range(100):
            if asked is not None:
                asked.append(("batch", number))
            yield number

    run = make_run(diary, asked=asked, **overrides)
    watchdog = watchdog or Watchdog(0, "", 0)
    state = State(jnp.int32(first_step))
    return fit.train(run, state, batches(), fit.Host(diary, diary, watchdog))


def test_a_state_is_saved_before_it_is_evaluated():
    diary = Diary()
    assert int(train(diary).step) == 6
    assert [event for event in diary.events if "train" not in event] == [
        *("save 3", "evaluate 3", "measured 3"),
        *("save 6", "evaluate 6", "measured 6"),
    ]


def test_a_state_is_saved_by_the_clock_too(monkeypatch):
    """Here each step takes three minutes; a save at step 3 starts the clock again."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    diary = Diary()
    step = make_run(diary).computation.step

    def slow(state, batch, seed):
        now[0] += 180
        return step(state, batch, seed)

    train(diary, train_step=slow, every_minutes=6, checkpoint_every=3, num_steps=7)
    assert diary.saved == [2, 3, 5, 6, 7]
    diary = Diary()
    train(diary, train_step=slow, every_minutes=0, checkpoint_every=3, num_steps=7)
    assert diary.saved == [3, 6, 7]


def test_an_evaluation_that_fails_does_not_lose_the_state():
    diary = Diary()

    def fail():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        train(diary, at={3: fail})
    assert diary.saved == [3]


def test_metrics_are_read_one_step_late_and_recorded_when_due():
    diary = Diary()
    train(diary, eval_every=100, checkpoint_every=100)
    assert [event for event in diary.events if "train" in event] == [
        "train 2",
        "train 4",
        "train 6",
    ]


def test_the_next_batch_is_put_on_the_device_before_its_step():
    asked, diary = [], Diary()
    train(diary, asked=asked, num_steps=3)
    assert asked[:4] == [("batch", 0), ("batch", 1), ("step", 0), ("batch", 2)]


def test_a_signal_between_evaluations_saves_at_once():
    diary = Diary()
    step = make_run(diary).computation.step

    def signalled(state, batch, seed):
        if int(state.step) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(state, batch, seed)

    with pytest.raises(Stopped, match="step 2 is saved"):
        train(diary, train_step=signalled)
    assert diary.saved == [2] and "evaluate 2" not in diary.events


@pytest.mark.parametrize("checkpoint_every", [3, 100])
def test_a_signal_in_an_evaluation_is_made_up_for(checkpoint_every):
    def stop():
        os.kill(os.getpid(), signal.SIGTERM)

    diary = Diary()
    with pytest.raises(Stopped, match="step 3 is saved"):
        train(diary, at={3: stop}, checkpoint_every=checkpoint_every)
    assert diary.saved == [3] and "measured 3" not in diary.events
    later = Diary()
    train(later, first_step=3)
    assert later.events[:2] == ["evaluate 3", "measured 3"]


def test_what_is_recorded_is_not_evaluated_again():
    diary = Diary(known={3})
    train(diary, first_step=3)
    assert "evaluate 3" not in diary.events


def test_too_many_skipped_updates_stop_the_run():
    diary = Diary()
    with pytest.raises(FloatingPointError, match=r"3 updates in a row up to step 1"):
        train(diary, loss=float("nan"), in_row=3)
    assert diary.saved == []


def test_a_run_evaluates_and_saves_when_due():
    given = dict(num_steps=7, eval_every=3, checkpoint_every=4, eval_also=(2,))
    run = make_run(Diary(), **given)
    assert [s for s in range(8) if run.evaluates(s)] == [2, 3, 6, 7]
    assert [s for s in range(8) if run.saves(s)] == [4, 7]
    always = make_run(Diary(), save_evaluated=True, **given)
    assert [s for s in range(8) if always.saves(s)] == [2, 3, 4, 6, 7]
    counts = SplitCounts(1, tokens=40, words=30, bytes=200)
    milestones = schedule_milestones("steps", (0, 1, 4), 8, counts, num_steps=7)
    also = make_run(Diary(), milestones=milestones, **given)
    assert [s for s in range(8) if also.saves(s)] == [0, 1, 4, 7]
    assert [s for s in range(8) if also.evaluates(s)] == [0, 1, 2, 3, 4, 6, 7]


def test_the_watchdog_hears_of_steps_evaluation_batches_and_saves():
    class Listener(Watchdog):
        def hear(self):
            heard.append(len(diary.events))

    heard, diary = [], Diary()
    train(diary, watchdog=Listener(0, "", 0), num_steps=3)
    assert len(heard) == 3 + 1 + 1


def test_the_time_is_divided_among_training_evaluation_and_checkpoints(monkeypatch):
    monkeypatch.setattr(fit, "PROGRAM", WallTime())
    diary = Diary()
    train(diary, at={3: lambda: time.sleep(0.6)})
    said = fit.PROGRAM.summary()
    assert "evaluation 1 s" in said and "checkpoints 0 s" in said
    assert "compilation of the step 0 s" in said
