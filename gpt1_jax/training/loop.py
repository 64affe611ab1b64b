"""The one host loop: cadence, metrics one step late, checkpoints, signals.

It knows nothing of tasks or losses. The host never waits for the device between steps:
while the device works on step n, the host reads the metrics of step n - 1 and puts the
batch of step n + 1 on the device.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import jax

from gpt1_jax.parallel.processes import agree
from gpt1_jax.parallel.watchdog import Watchdog
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoints import Checkpoints
from gpt1_jax.runs.console import say
from gpt1_jax.runs.records import Records
from gpt1_jax.runs.wall_time import PROGRAM
from gpt1_jax.training import signals
from gpt1_jax.training.signals import Stopped, StopSignal
from gpt1_jax.training.state import TrainState

# (params, step, stopped) -> metrics, or None if stopped() became true before the end
Evaluate = Callable[[Any, int, Callable[[], bool]], Mapping[str, Any] | None]


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
    save_also: Collection[int] = ()

    def evaluates(self, step: int) -> bool:
        """Whether the state after this step is evaluated."""
        return _due(step, self.eval_every, self.num_steps) or step in self.eval_also

    def saves(self, step: int) -> bool:
        """Whether the state after this step is saved."""
        evaluated = self.save_evaluated and self.evaluates(step)
        due = _due(step, self.checkpoint_every, self.num_steps)
        return evaluated or due or step in self.save_also


class Run(NamedTuple):
    """What the loop drives.

    Attributes:
      train_step: (state, batch) -> (state, metrics), jitted; consumes the state.
      batches: batches on the device, the next one first.
      evaluate: (params, step, stopped) -> metrics, including the one that ranks
        checkpoints, or None if stopped before the end.
      metadata: what a checkpoint at a step belongs to.
      watchdog: hears of every step, evaluation batch and save.
    """

    train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]
    batches: Iterator[Any]
    evaluate: Evaluate
    metadata: Callable[[int], Mapping[str, Any]]
    checkpoints: Checkpoints
    records: Records
    profile_dir: str
    watchdog: Watchdog


def train(run: Run, state: TrainState, cadence: Cadence) -> TrainState:
    """Trains from the state's step to `num_steps`.

    Args:
      run: the pieces of the run.
      state: the state to start from; donated.
      cadence: when to do what.

    Returns:
      The final state, which is also saved.

    Raises:
      Stopped: after a signal, once the state is saved.
      FloatingPointError: after too many non-finite updates in a row; the last good
        checkpoint stays as it is.
      FolderInUse: if another process took over the run folder.
    """
    step = int(state.step)
    pending: dict[str, jax.Array] | None = None  # metrics not yet read
    records = run.records
    profiler = _Profiler(run.profile_dir, cadence)
    with signals.catch() as stop, stop.deferred(), profiler, PROGRAM.training():
        if step and cadence.evaluates(step):
            _catch_up(run, state, stop)
        batches, train_step = _one_ahead(run.batches), _compiled_first(run.train_step)
        while step < cadence.num_steps:
            run.watchdog.hear()
            lock.check_owned()
            profiler.before(step + 1)
            state, metrics = train_step(state, next(batches))
            if pending is not None:
                _read(pending, step, records, cadence)
            pending, step = metrics, step + 1
            stopping = stop.requested(step)
            evaluating = cadence.evaluates(step) and not stopping
            saving = cadence.saves(step) or stopping
            if not (evaluating or saving):
                continue
            _read(pending, step, records, cadence)
            pending = None
            if saving:  # first, so that a long evaluation cannot lose the state
                _save(run, step, state)
            if evaluating:
                _evaluate(run, state, stop)
            if stopping or stop.received():
                _save(run, step, state)
                _stop(run, step)
            records.publish()
            records.pause_clock()
    with PROGRAM.on("checkpoints"):
        run.checkpoints.wait()
    return state


def _evaluate(run: Run, state: TrainState, stop: StopSignal) -> bool:
    """Evaluates a state and records the result; returns whether it finished."""
    step = int(state.step)

    def stopped() -> bool:
        run.watchdog.hear()
        return stop.received()

    with PROGRAM.on("evaluation"):
        metrics = run.evaluate(state.params, step, stopped)
    if metrics is None:
        return False
    lock.check_owned()
    with PROGRAM.on("checkpoints"):
        run.checkpoints.measured(step, metrics[run.checkpoints.best.metric])
    run.records.write({"step": step, **metrics})
    return True


def _save(run: Run, step: int, state: TrainState) -> None:
    run.watchdog.hear()
    lock.check_owned()
    with PROGRAM.on("checkpoints"):
        run.checkpoints.save(step, state, run.metadata(step))


def _compiled_first(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same step; the time of its first call is not counted as training."""
    calls = itertools.count()

    def timed(state: TrainState, batch: Any) -> Any:
        if next(calls):
            return step(state, batch)
        with PROGRAM.on("compilation of the step"):
            return step(state, batch)

    return timed


def _due(step: int, every: int, num_steps: int) -> bool:
    return step % every == 0 or step == num_steps


def _one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches, each requested (and so copied) one step early."""
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
        say(
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


def _stop(run: Run, step: int) -> NoReturn:
    run.checkpoints.wait()
    run.records.publish()
    raise Stopped(f"stopped by a signal; step {step} is saved.")


def _catch_up(run: Run, state: TrainState, stop: StopSignal) -> None:
    """Runs the evaluation that a stop skipped, as if there had been no stop.

    Also the first one of a run that continues another's steps.
    """
    step = int(state.step)
    if agree(run.records.recorded(run.checkpoints.best.metric, step)):
        return
    if not _evaluate(run, state, stop):
        _save(run, step, state)
        _stop(run, step)


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
