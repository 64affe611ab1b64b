"""The one host loop: cadence, metrics one step late, checkpoints, signals.

It knows no task and no loss. The device is never waited for between steps: while it
works on step n, the host reads the metrics of step n - 1 and puts the batch of step
n + 1 on the device.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
from jax.experimental import multihost_utils

from gpt1_jax.parallel import processes
from gpt1_jax.training.checkpoint import Checkpoints
from gpt1_jax.training.records import Records
from gpt1_jax.training.state import TrainState

EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: stopped by a signal, run again to resume

TrainStep = Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]


class Stopped(Exception):
    """The run was stopped by a signal, after its state was saved."""


class StopSignal:
    """Turns SIGTERM and SIGINT into a request that the loop honours between steps.

    A second signal of the same kind takes its usual effect at once. In runs of
    several processes JAX itself catches SIGTERM and all processes agree on a step.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if jax.process_count() == 1:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        self._received = number
        signal.signal(number, self._previous[number])

    def requested(self, step: int) -> bool:
        """Whether the run is to stop after this step; the same on all processes."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._received is not None

    @property
    def received(self) -> bool:
        """Whether a signal has arrived at this process."""
        return self._received is not None


class Cadence(NamedTuple):
    """Steps between events, and where the run ends."""

    num_steps: int
    log_every: int
    eval_every: int
    checkpoint_every: int
    max_nonfinite_steps: int
    profile_first_step: int
    profile_steps: int
    eval_also: tuple[int, ...] = ()
    save_evaluated: bool = False  # whether every evaluated state is saved

    def evaluates(self, step: int) -> bool:
        """Whether the state after this step is evaluated."""
        return _due(step, self.eval_every, self.num_steps) or step in self.eval_also

    def saves(self, step: int) -> bool:
        """Whether the state after this step is saved."""
        evaluated = self.save_evaluated and self.evaluates(step)
        return evaluated or _due(step, self.checkpoint_every, self.num_steps)


class Run(NamedTuple):
    """What the loop drives.

    train_step: (state, batch) -> (state, metrics), jitted; consumes the state.
    batches: batches on the device, the next one first.
    evaluate: (state, stop) -> metrics, among them the one that `checkpoints` tells the
      best by, or None if stopped before the end.
    metadata: what a checkpoint at a step belongs to.
    """

    train_step: TrainStep
    batches: Iterator[Any]
    evaluate: Callable[[TrainState, StopSignal], Mapping[str, Any] | None]
    metadata: Callable[[int], Mapping[str, Any]]
    checkpoints: Checkpoints
    records: Records
    profile_dir: str


def train(run: Run, state: TrainState, cadence: Cadence) -> TrainState:
    """Trains from the state's step to `num_steps`.

    Args:
      run: the pieces of the run.
      state: to start from; donated.
      cadence: when to do what.

    Returns:
      The final state, which is also saved.

    Raises:
      Stopped: after a signal, once the state is saved.
      FloatingPointError: after too many updates in a row were not finite; the last
        good checkpoint stays as it is.
    """
    step = int(state.step)
    pending: dict[str, jax.Array] | None = None  # metrics not yet read
    records = run.records
    with StopSignal() as stop, _Profiler(run.profile_dir, cadence) as profiler:
        if step and cadence.evaluates(step):
            _catch_up(run, state, stop)
        batches = _one_ahead(run.batches)
        while step < cadence.num_steps:
            profiler.before(step + 1)
            state, metrics = run.train_step(state, next(batches))
            if pending is not None:
                _read(pending, step, records, cadence)
            pending, step = metrics, step + 1
            stopping = stop.requested(step)
            evaluating = cadence.evaluates(step)
            saving = cadence.saves(step) or stopping
            if not (evaluating or saving):
                continue
            _read(pending, step, records, cadence)
            pending, measured = None, None
            if evaluating and not stopping:
                measured = run.evaluate(state, stop)
                stopping = stop.received
            if measured:
                records.write({"step": step, **measured})
            if saving or stopping:
                _save(run, state, measured)
            records.publish()
            records.pause_clock()
            if stopping:
                _stop(run, step)
    run.checkpoints.wait()
    return state


def _due(step: int, every: int, num_steps: int) -> bool:
    return step % every == 0 or step == num_steps


def _one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches, each asked for (and so copied) one step before its turn."""
    ahead = next(batches, None)
    while ahead is not None:
        current, ahead = ahead, next(batches, None)
        yield current


def _read(
    metrics: Mapping[str, jax.Array], step: int, records: Records, cadence: Cadence
) -> None:
    """Waits for a step's metrics, checks that they are finite, records them if due."""
    values = {name: value.item() for name, value in jax.device_get(metrics).items()}
    records.step_done(step)
    in_row = values["nonfinite_in_row"]
    if in_row:
        records.say(
            f"WARNING: step {step} gave loss {values['loss']} and gradient norm "
            f"{values['grad_norm']}; its update was skipped."
        )
    if in_row >= cadence.max_nonfinite_steps:
        raise FloatingPointError(
            f"{in_row} updates in a row up to step {step} were not finite (loss "
            f"{values['loss']}). The checkpoints are intact; start a new run with a "
            "lower --config.optimizer.learning_rate or another --config.seed."
        )
    if step % cadence.log_every == 0:
        records.train(step, values)


def _save(run: Run, state: TrainState, measured: Mapping[str, Any] | None) -> None:
    best = measured[run.checkpoints.best.metric] if measured else None
    run.checkpoints.save(state, run.metadata(int(state.step)), best)


def _stop(run: Run, step: int) -> NoReturn:
    run.checkpoints.wait()
    raise Stopped(f"stopped by a signal; step {step} is saved.")


def _catch_up(run: Run, state: TrainState, stop: StopSignal) -> None:
    """Makes up for the evaluation that a signal left out, as if there had been none."""
    step = int(state.step)
    if processes.agree(run.records.recorded(run.checkpoints.best.metric, step)):
        return
    measured = run.evaluate(state, stop)
    if measured is None:
        _stop(run, step)
    _save(run, state, measured)
    run.checkpoints.wait()  # what is recorded is not evaluated a third time
    run.records.write({"step": step, **measured})


class _Profiler(contextlib.AbstractContextManager):
    """Traces `profile_steps` steps from `profile_first_step` on, if asked to."""

    def __init__(self, directory: str, cadence: Cadence):
        self._directory = directory
        self._first = cadence.profile_first_step
        self._end = self._first + cadence.profile_steps
        self._tracing = False

    def before(self, step: int) -> None:
        if step == self._first and self._end > self._first:
            jax.profiler.start_trace(self._directory)
            self._tracing = True
        elif step == self._end:
            self._stop()

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
