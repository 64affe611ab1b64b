"""The host loop on a state that only counts, with all around it made up."""

import contextlib
import os
import signal
import time
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from gpt1_jax.config.sections import LogConfig
from gpt1_jax.data.shards import SplitCounts
from gpt1_jax.errors import UserError
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


def stop():
    """As somebody does who wants to end the program."""
    os.kill(os.getpid(), signal.SIGTERM)


class Diary:
    """Checkpoints and records that note what is asked of them."""

    step_seconds = None

    def __init__(self, known=()):
        self.events, self.saved, self.known = [], [], dict(known)
        self.saved_at = time.monotonic()

    def save(self, step, state, metadata):
        self.saved_at = time.monotonic()
        if step not in self.saved:
            self.saved.append(step)
            self.events.append(f"save {step}")

    def add_score(self, step, score):
        self.events.append(f"measured {step}")

    def write(self, record):
        self.known[record["step"]] = record["valid_loss"]

    def scores(self, name):
        return self.known

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
    before=lambda step: None,
    at=(),
    eval_every=3,
    eval_also=(),
    save_evaluated=False,
    patience=0,
    losses=(),
    checkpoint_every=3,
    every_minutes=0.0,
    **overrides,
):
    """A run of six steps.

    `before` is called with the number of steps taken before each; `at` is {step: what
    happens while it is evaluated}. `losses` are {step: its validation loss}, of other
    steps 1.
    """

    def step(state, batch, seed):
        before(int(state.step))
        metrics = {"loss": 1.0, "grad_norm": 1.0, "nonfinite_in_row": 0}
        return State(state.step + 1), jax.tree.map(jnp.asarray, metrics)

    def evaluate(params, step, stopped):
        diary.events.append(f"evaluate {step}")
        if step in at:
            at[step]()
        return None if stopped() else {"valid_loss": dict(losses).get(step, 1.0)}

    config = SimpleNamespace(
        train=SimpleNamespace(max_nonfinite_steps=3),
        checkpoint=SimpleNamespace(
            every_steps=checkpoint_every, every_minutes=every_minutes
        ),
        log=LogConfig(2, False, False, 0, 0),
    )
    values = dict(
        config=config,
        folder=epath.Path("run"),
        identity=Identity({}, "tokenizer"),
        num_steps=6,
        computation=fit.Computation(None, None, None, step, seed=0),
        batches=None,
        evaluation=fit.Evaluation(
            evaluate, LOWEST_LOSS, eval_every, eval_also, save_evaluated, patience
        ),
        throughput=Throughput("tokens", 1),
    )
    return fit.Run(**{**values, **overrides})


def train(diary, first_step=0, batches=range(100), watchdog=None, **overrides):
    """Trains to the end; what the loop asks for is noted in the diary."""
    run = make_run(diary, **overrides)
    watchdog = watchdog or Watchdog(0, "", 0)
    state = State(jnp.int32(first_step))
    return fit.train(run, state, iter(batches), fit.Host(diary, diary, watchdog))


def test_a_state_is_saved_before_it_is_evaluated():
    """And metrics are read one step late, and recorded when due."""
    diary = Diary()
    assert int(train(diary).step) == 6
    assert diary.events == [
        *("train 2", "save 3", "evaluate 3", "measured 3", "train 4"),
        *("train 6", "save 6", "evaluate 6", "measured 6"),
    ]


@pytest.mark.parametrize(("minutes", "saved"), [(6, [2, 3, 5, 6, 7]), (0, [3, 6, 7])])
def test_a_state_is_saved_by_the_clock_too(monkeypatch, minutes, saved):
    """Here each step takes three minutes; a save at step 3 starts the clock again."""
    now = [0.0]

    def slow(step):
        now[0] += 180

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(fit, "PROGRAM", WallTime())
    diary = Diary()
    train(diary, before=slow, every_minutes=minutes, num_steps=7)
    assert diary.saved == saved


def test_the_next_batch_is_put_on_the_device_before_its_step():
    asked, diary = [], Diary()
    batches = (asked.append(f"batch {n}") or n for n in range(100))
    train(diary, before=lambda n: asked.append(f"step {n}"), batches=batches)
    assert asked[:5] == ["batch 0", "batch 1", "step 0", "batch 2", "step 1"]


def test_a_signal_between_evaluations_saves_at_once():
    diary = Diary()
    with pytest.raises(Stopped, match="step 2 is saved"):
        train(diary, before=lambda step: step == 1 and stop())
    assert diary.saved == [2] and "evaluate 2" not in diary.events


@pytest.mark.parametrize("checkpoint_every", [3, 100])
def test_a_signal_in_an_evaluation_is_made_up_for(checkpoint_every):
    """But what is recorded is not evaluated again."""
    diary = Diary()
    with pytest.raises(Stopped, match="step 3 is saved"):
        train(diary, at={3: stop}, checkpoint_every=checkpoint_every)
    assert diary.saved == [3] and "measured 3" not in diary.events
    later = Diary()
    train(later, first_step=3)
    assert later.events[:2] == ["evaluate 3", "measured 3"]
    later = Diary(known={3: 1.0})
    train(later, first_step=3)
    assert "evaluate 3" not in later.events
    begun = Diary()  # at the step of its origin, which is not saved in its folder yet
    with pytest.raises(Stopped, match="step 3 is saved"):
        train(begun, first_step=3, at={3: stop})
    assert begun.saved == [3]


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


LOSSES = {1: 3.0, 2: 2.0, 3: 2.0, 4: 2.5, 5: 1.0, 6: 2.0, 7: 1.0, 8: 4.0}
OF_PATIENCE = dict(eval_every=1, checkpoint_every=100, losses=LOSSES, num_steps=9)


@pytest.mark.parametrize(
    ("patience", "end", "best"),
    [(0, 9, 0), (1, 3, 2), (3, 8, 5), (4, 9, 0)],
)
def test_a_run_ends_after_evaluations_without_a_better_score(
    patience, end, best, capsys
):
    """An equal score is no better; the state at the end and the best one are saved."""
    diary = Diary()
    assert train(diary, patience=patience, **OF_PATIENCE).step == end
    assert diary.saved == ([*range(1, end + 1)] if patience else [9])
    said = capsys.readouterr().out
    assert ("Ending early" in said) == (end < 9)
    if end < 9:
        assert said.startswith(
            f"Ending early, at step {end} of 9: valid_loss is best at step {best}, and "
            f"no better in {patience} evaluation{'s' * (patience > 1)} since (config.ev"
        )


def test_a_score_that_is_no_number_is_no_better():
    losses = {1: float("nan"), 2: 1.0, 3: float("nan"), 4: float("-inf"), 5: 0.5}
    given = {**OF_PATIENCE, "losses": losses}
    assert train(Diary(), patience=2, **given).step == 4


@pytest.mark.parametrize("stop_at", [1, 3, 4])
@pytest.mark.parametrize("within", ["the step", "the evaluation", "the record"])
def test_a_run_that_was_stopped_ends_early_at_the_same_step(stop_at, within):
    """Here after step 4, whenever a signal comes; then there is nothing left to do."""

    def stop_in(place, step):
        if (place, step) == (within, stop_at):
            stop()

    class Stopping(Diary):
        def write(self, record):
            super().write(record)
            stop_in("the record", record["step"])

    diary, given = Stopping(), {**OF_PATIENCE, "patience": 2}
    with pytest.raises(Stopped, match=f"step {stop_at} is saved"):
        train(
            diary,
            before=lambda step: stop_in("the step", step + 1),
            at={stop_at: lambda: stop_in("the evaluation", stop_at)},
            **given,
        )
    for _ in range(2):
        later = Diary(known=diary.known)
        assert train(later, first_step=stop_at, **given).step == 4
        assert [*later.known] == [1, 2, 3, 4]
        diary, stop_at = later, 4
    assert later.events == []


def test_all_processes_end_early_as_the_main_one_does(monkeypatch):
    """The others have no records, and ask it after each evaluation."""
    asked = []

    def agree(value):
        asked.append(value)
        return len(asked) == 3  # before the first step, then after steps 3 and 6

    class OfAnother(Diary):
        def scores(self, name):
            return {}

    monkeypatch.setattr(fit, "agree", agree)
    assert train(OfAnother(), patience=1, num_steps=20).step == 6
    assert asked == 3 * [False]


def test_patience_that_cannot_end_a_run_is_refused():
    for patience, evaluations in ((0, 0), (1, 2), (3, 9)):
        fit.check_patience(patience, evaluations)
    for patience, evaluations in ((1, 0), (1, 1), (9, 9)):
        with pytest.raises(UserError, match=f"={patience} .* has {evaluations}"):
            fit.check_patience(patience, evaluations)


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
