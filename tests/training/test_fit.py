"""The host loop, and what is refused before it."""

import dataclasses
import os
import signal
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from gpt1_jax.errors import UserError
from gpt1_jax.model import costs
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.parallel.processes import Watchdog
from gpt1_jax.runs.checkpoint_files import LOWEST_LOSS
from gpt1_jax.runs.wall_time import WallTime
from gpt1_jax.training import fit
from gpt1_jax.training.signals import Stopped


class State(NamedTuple):
    step: jnp.ndarray
    params: str = "params"


class Diary:
    """Checkpoints and records that note what is asked of them."""

    best = LOWEST_LOSS

    def __init__(self, known=()):
        self.events, self.saved, self.known = [], [], set(known)

    def save(self, step, state, metadata):
        if step not in self.saved:
            self.saved.append(step)
            self.events.append(f"save {step}")

    def measured(self, step, score):
        self.events.append(f"measured {step}")

    def write(self, record):
        self.known.add(record["step"])

    def recorded(self, name, step):
        return step in self.known

    def train(self, step, metrics):
        self.events.append(f"train {step}")

    def wait(self):
        pass

    step_done = lambda self, step: None  # noqa: E731
    publish = pause_clock = wait


def make_run(diary, *, loss=1.0, in_row=0, at=None, asked=None):
    """A run of the loop; `at` is {step: what happens while it is evaluated}."""

    def train_step(state, batch):
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

    def batches():
        for number in range(100):
            if asked is not None:
                asked.append(("batch", number))
            yield number

    watchdog = Watchdog(0, "", 0)
    return fit.Run(train_step, batches(), evaluate, dict, diary, diary, "", watchdog)


def cadence(**overrides):
    values = dict(
        num_steps=6,
        log_every=2,
        eval_every=3,
        checkpoint_every=3,
        max_nonfinite_steps=3,
        profile_first_step=0,
        profile_steps=0,
    )
    return fit.Cadence(**{**values, **overrides})


def train_diary(diary, first_step=0, run=None, **overrides):
    run = run or make_run(diary)
    run = run._replace(metadata=lambda step: {})
    return fit.train(run, State(jnp.int32(first_step)), cadence(**overrides))


def test_a_state_is_saved_before_it_is_evaluated():
    diary = Diary()
    assert int(train_diary(diary).step) == 6
    assert [event for event in diary.events if "train" not in event] == [
        *("save 3", "evaluate 3", "measured 3"),
        *("save 6", "evaluate 6", "measured 6"),
    ]


def test_an_evaluation_that_fails_does_not_lose_the_state():
    diary = Diary()

    def fail():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        train_diary(diary, run=make_run(diary, at={3: fail}))
    assert diary.saved == [3]


def test_metrics_are_read_one_step_late_and_recorded_when_due():
    diary = Diary()
    train_diary(diary, eval_every=100, checkpoint_every=100)
    assert [event for event in diary.events if "train" in event] == [
        "train 2",
        "train 4",
        "train 6",
    ]


def test_the_next_batch_is_put_on_the_device_before_its_step():
    asked, diary = [], Diary()
    train_diary(diary, run=make_run(diary, asked=asked), num_steps=3)
    assert asked[:4] == [("batch", 0), ("batch", 1), ("step", 0), ("batch", 2)]


def test_a_signal_between_evaluations_saves_at_once():
    diary = Diary()
    run = make_run(diary)
    step = run.train_step

    def signalled(state, batch):
        if int(state.step) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(state, batch)

    with pytest.raises(Stopped, match="step 2 is saved"):
        train_diary(diary, run=run._replace(train_step=signalled))
    assert diary.saved == [2] and "evaluate 2" not in diary.events


@pytest.mark.parametrize("checkpoint_every", [3, 100])
def test_a_signal_in_an_evaluation_is_made_up_for(checkpoint_every):
    def stop():
        os.kill(os.getpid(), signal.SIGTERM)

    diary = Diary()
    with pytest.raises(Stopped, match="step 3 is saved"):
        train_diary(
            diary,
            run=make_run(diary, at={3: stop}),
            checkpoint_every=checkpoint_every,
        )
    assert diary.saved == [3] and "measured 3" not in diary.events
    later = Diary()
    train_diary(later, first_step=3)
    assert later.events[:2] == ["evaluate 3", "measured 3"]


def test_what_is_recorded_is_not_evaluated_again():
    diary = Diary(known={3})
    train_diary(diary, first_step=3)
    assert "evaluate 3" not in diary.events


def test_too_many_skipped_updates_stop_the_run():
    diary = Diary()
    run = make_run(diary, loss=float("nan"), in_row=3)
    with pytest.raises(FloatingPointError, match=r"3 updates in a row up to step 1"):
        train_diary(diary, run=run)
    assert diary.saved == []


def test_cadence_evaluates_and_saves_when_due():
    due = cadence(num_steps=7, eval_every=3, checkpoint_every=4, eval_also=(2,))
    assert [s for s in range(1, 8) if due.evaluates(s)] == [2, 3, 6, 7]
    assert [s for s in range(1, 8) if due.saves(s)] == [4, 7]
    always = due._replace(save_evaluated=True)
    assert [s for s in range(1, 8) if always.saves(s)] == [2, 3, 4, 6, 7]
    also = due._replace(save_also={1: "a", 4: "b"})
    assert [s for s in range(1, 8) if also.saves(s)] == [1, 4, 7]
    assert [s for s in range(1, 8) if also.evaluates(s)] == [2, 3, 6, 7]


def test_the_watchdog_hears_of_steps_evaluation_batches_and_saves():
    class Listener(Watchdog):
        def hear(self):
            heard.append(len(diary.events))

    heard, diary = [], Diary()
    run = make_run(diary)._replace(watchdog=Listener(0, "", 0))
    train_diary(diary, run=run, num_steps=3)
    assert len(heard) == 3 + 1 + 1


def test_the_time_is_divided_among_training_evaluation_and_checkpoints(monkeypatch):
    monkeypatch.setattr(fit, "PROGRAM", WallTime())
    diary = Diary()
    train_diary(diary, run=make_run(diary, at={3: lambda: time.sleep(0.6)}))
    said = fit.PROGRAM.summary()
    assert "evaluation 1 s" in said and "checkpoints 0 s" in said
    assert "compilation of the step 0 s" in said


@pytest.mark.parametrize(
    ("memory_sequences", "parts"), [(1000, 1), (8.5, 1), (4.5, 2), (1.5, 8), (0.1, 8)]
)
def test_the_batch_is_cut_as_memory_asks(
    tiny_config, tiny_model_config, monkeypatch, memory_sequences, parts
):
    model = tiny_model_config()
    needed = costs.train_activation_bytes(model)
    state = costs.train_state_bytes(model)
    memory = (memory_sequences * needed + state) / fit._MEMORY_SHARE
    monkeypatch.setattr(devices, "memory_bytes", lambda: int(memory))
    mesh = make_mesh(devices=jax.devices()[:1])
    chosen = fit.accumulation_steps(tiny_config().train, model, mesh)
    assert chosen == parts
    given = tiny_config(train__accumulation_steps=4)
    assert fit.accumulation_steps(given.train, model, mesh) == 4


def test_sizes_that_cannot_fit_are_refused_with_the_estimate(
    tiny_config, tiny_model_config
):
    model, train = tiny_model_config(), tiny_config().train
    mesh = make_mesh()
    fit.check_memory(train, 8, model, mesh)
    with pytest.raises(UserError, match=r"takes at least .* GB.*num_layers=1000000"):
        large = dataclasses.replace(model, num_layers=1_000_000)
        fit.check_memory(train, 8, large, mesh)
    with pytest.raises(UserError, match=r"eval\.batch_size=80000000 takes at least"):
        fit.check_memory(train, 80_000_000, model, mesh)


@pytest.mark.parametrize("parts", [0, 1, 10**6])
def test_a_training_batch_that_cannot_fit_is_refused(
    tiny_config, tiny_model_config, parts
):
    """However many parts it is computed in, all of its tokens are there at once."""
    model, mesh = tiny_model_config(), make_mesh()
    train = tiny_config(train__batch_size=8 * 10**12, train__accumulation_steps=parts)
    with pytest.raises(UserError, match=r"train\.batch_size=8000000000000 takes"):
        fit.check_train_batch(train.train, model, mesh)


def test_a_training_batch_fits_in_the_memory_of_its_parts(
    tiny_config, tiny_model_config, monkeypatch
):
    model, mesh = tiny_model_config(), make_mesh(devices=jax.devices()[:1])
    sequence = costs.forward_bytes(model) * model.max_seq_len
    monkeypatch.setattr(devices, "memory_bytes", lambda: 4 * sequence)
    for parts, fits in ((0, True), (1, False), (2, True)):
        train = tiny_config(train__accumulation_steps=parts).train
        assert train.batch_size == 8
        if fits:
            fit.check_train_batch(train, model, mesh)
        else:
            with pytest.raises(UserError, match="accumulation_steps"):
                fit.check_train_batch(train, model, mesh)
