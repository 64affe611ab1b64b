"""Trains one run to its end, for pre-training and fine-tuning alike.

`fit` resumes or starts what a `Run` describes, and `train` is its loop on the host. The
loop knows nothing of tasks or losses. While the device works on step n, the host reads
the metrics of step n - 1 and puts the batch of step n + 1 on the device; it waits for
the device only where something is due between two steps: see `make_hooks`.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from etils import epath

from gpt1_jax.config.sections import LogConfig, TrainingConfig
from gpt1_jax.data.progress import said_if_long
from gpt1_jax.data.windows import BatchSource, read_ahead
from gpt1_jax.errors import UserError
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import state_sharding, to_global_batch
from gpt1_jax.parallel.processes import (
    EXIT_AGAIN,
    Watchdog,
    agree,
    is_lost,
    is_main_process,
)
from gpt1_jax.runs import lock, signals
from gpt1_jax.runs.checkpoint_files import Best, abstract_state, since_best
from gpt1_jax.runs.checkpoints import Checkpoints
from gpt1_jax.runs.console import about, say
from gpt1_jax.runs.forms import Forms, form_names
from gpt1_jax.runs.milestones import Milestones
from gpt1_jax.runs.records import Records, Throughput, trackers_in_use
from gpt1_jax.runs.resume import Identity, check_same
from gpt1_jax.runs.signals import Stopped, StopSignal
from gpt1_jax.runs.wall_time import PROGRAM, TRAINING
from gpt1_jax.training.state import TrainState
from gpt1_jax.training.steps import Step

# (params, step, stopped) -> metrics, or None if stopped() became true before the end
Evaluate = Callable[[Any, int, Callable[[], bool]], Mapping[str, Any] | None]


_SHORT = 1e13  # floating-point operations, for which no time is announced


@dataclasses.dataclass(frozen=True)
class Computation:
    """How the states of a run are computed.

    Attributes:
      mesh: the device mesh.
      shapes: the state's shapes and dtypes (`jax.ShapeDtypeStruct`).
      init: makes the state before the first step, given its sharding; called only if
        there is no checkpoint.
      step: the training step, jitted by `jit_step`.
      seed: seed of the dropout masks.
      forms: the forms of attention and LayerNorm that the step uses.
    """

    mesh: jax.sharding.Mesh
    shapes: TrainState
    init: Callable[[TrainState], TrainState]
    step: Step
    seed: int
    forms: Forms = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """When and how the states of a run are evaluated and ranked.

    Attributes:
      evaluate: computes the metrics of a state, the one in `best` among them.
      best: the metric that ranks checkpoints.
      every: updates between evaluations.
      also: further steps to evaluate.
      saves: whether every evaluated state is saved.
      patience: the run ends after so many evaluations in a row without a better score,
        and saves every evaluated state; 0: never.
    """

    evaluate: Evaluate
    best: Best
    every: int
    also: tuple[int, ...] = ()
    saves: bool = False
    patience: int = 0


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run before its first step.

    Attributes:
      config: the job's configuration.
      folder: the run folder.
      identity: identifies the training that the checkpoints belong to.
      num_steps: updates in the whole run.
      computation: how its states are computed.
      batches: this host's rows of each batch, by step.
      evaluation: how its states are evaluated.
      throughput: the amount of data that a step processes.
      milestones: the checkpoints kept for good; None if text is not counted.
    """

    config: TrainingConfig
    folder: epath.Path
    identity: Identity
    num_steps: int
    computation: Computation
    batches: BatchSource
    evaluation: Evaluation
    throughput: Throughput
    milestones: Milestones | None = None

    def evaluates(self, step: int) -> bool:
        """Whether the state after this step is evaluated; each milestone is."""
        due = self._due(step, self.evaluation.every)
        return due or step in self.evaluation.also

    def saves(self, step: int) -> bool:
        """Whether the state after this step is saved; each milestone is."""
        due = self._due(step, self.config.checkpoint.every_steps)
        with_scores = self.evaluation.saves or self.evaluation.patience > 0
        return due or (with_scores and self.evaluates(step))

    def _due(self, step: int, every: int) -> bool:
        if self.milestones and step in self.milestones.by_step:
            return True
        return step > 0 and (step % every == 0 or step == self.num_steps)

    def metadata(self, step: int) -> dict[str, Any]:
        """The metadata saved with the state of a step."""
        text_read = self.milestones.metadata(step) if self.milestones else {}
        forms = {"forms": form_names(self.computation.forms)}
        return {**self.identity.metadata(step), **text_read, **forms}


class Host(NamedTuple):
    """Receives the loop's states and metrics."""

    checkpoints: Checkpoints  # saves states and notes their scores
    records: Records  # notes metrics
    watchdog: Watchdog  # is told of every step, evaluation batch and save


def check_patience(patience: int, evaluations: int) -> None:
    """Refuses a patience that cannot end a run before its last step.

    Args:
      patience: `config.eval.patience`.
      evaluations: how many there are before the last step.

    Raises:
      UserError: if there are too few.
    """
    if 0 < patience >= evaluations:
        raise UserError(
            f"config.eval.patience={patience} needs more than {patience} evaluations "
            f"before the last step, and this run has {evaluations}. Evaluate more "
            "often, train for longer, or use a smaller patience (0: none)."
        )


def how_long(training: float, validation: float, patience: int) -> tuple[str, float]:
    """About how long a run takes here, to a factor of about two.

    Args:
      training, validation: the floating-point operations of each.
      patience: as of `Evaluation`.

    Returns:
      A line, and the seconds; "" and 0 if the run is short, or the device unknown.
    """
    total = training + validation
    if total < _SHORT or not (rate := devices.likely_flops()):
        return "", 0.0
    at_most = "at most " * (patience > 0)
    takes = f"Takes: {at_most}about {about(total / rate)} here"
    return f"{takes}, {validation / total:.0%} of it validation.", total / rate


def fit(run: Run) -> tuple[int, int]:
    """Trains a run to its end, from the newest checkpoint if there is one.

    Returns:
      The steps that it continued from and ended at; the same if it had finished.

    Raises:
      Stopped: after a signal, once the state is saved.
      FloatingPointError: if training has diverged.
      ValueError: if the checkpoints belong to another run, or all are damaged; or if
        the processes have prepared different text.
      OSError: if the disk is full.
    """
    digests = {"tokenizer": run.identity.tokenizer, **run.identity.digests}
    check_same({f"the {name}": digest for name, digest in digests.items()})
    checkpoints = Checkpoints(run.folder, run.config.checkpoint, run.evaluation.best)
    with _closed_after(checkpoints):
        state = _first_state(run, checkpoints)
        if is_main_process():
            run.identity.write_documents(run.folder)
        first_step = int(state.step)
        records = Records(
            run.folder,
            first_step,
            run.num_steps,
            run.throughput,
            trackers_in_use(run.config.log),
            run.milestones.train_size if run.milestones else {},
            run.computation.forms,
        )
        watchdog = _watchdog(run.config.distributed.stuck_minutes)
        with contextlib.closing(records), watchdog:
            host = Host(checkpoints, records, watchdog)
            state = train(run, state, batches_on_devices(run, first_step), host)
    return first_step, int(state.step)


@contextlib.contextmanager
def _closed_after(checkpoints: Checkpoints) -> Iterator[None]:
    """Waits for the save in progress, unless another process of the save is gone."""
    try:
        yield
    except BaseException as error:
        if not is_lost(error):
            checkpoints.close()
        raise
    checkpoints.close()


def _first_state(run: Run, checkpoints: Checkpoints) -> TrainState:
    """The state of the newest sound checkpoint, or a fresh one."""
    computation = run.computation
    sharding = state_sharding(computation.mesh, computation.shapes)
    check = functools.partial(run.identity.check, folder=run.folder)
    restored = checkpoints.restore(abstract_state(computation.shapes, sharding), check)
    if restored is None:
        return computation.init(sharding)
    say(f"Resuming from the checkpoint of step {int(restored.step):,}.")
    return restored


def _watchdog(minutes: float) -> Watchdog:
    """Ends a run that makes no progress, as when one process of several hangs."""
    stuck = (
        "stuck: no step, evaluation batch or save within config.distributed."
        f"stuck_minutes={minutes}; above is what each thread was doing. Run the same "
        "command again to resume."
    )
    return Watchdog(60 * minutes, stuck, EXIT_AGAIN, traces=True)


def batches_on_devices(run: Run, first_step: int) -> Iterator[Any]:
    """Batches on the devices, from `first_step` on."""
    for local in read_ahead(run.batches, first_step):
        yield to_global_batch(local, run.computation.mesh)


def train(
    run: Run, state: TrainState, batches: Iterator[Any], host: Host
) -> TrainState:
    """Trains from the state's step to the end of the run.

    Args:
      state: the state to start from; donated.
      batches: batches on the devices, that of the next step first.

    Returns:
      The final state, which is also saved.

    Raises:
      Stopped: after a signal, once the state is saved.
      FloatingPointError: after too many non-finite updates in a row; the last good
        checkpoint stays as it is.
      FolderInUse: if another process took over the run folder.
    """
    step, seed = int(state.step), jnp.uint32(run.computation.seed)
    metrics = _Metrics(run, host.records)
    with signals.catch() as stop, stop.deferred(), PROGRAM.on(TRAINING):
        profiler = _Profiler(str(run.folder / "profile"), run.config.log)
        hooks = make_hooks(run, step, host, stop, profiler)
        with profiler:
            _call(hooks, step, state, metrics)  # what a stop has skipped
            batches = _one_ahead(batches)
            train_step = _first_call_timed(run.computation.step)
            ended = _is_out_of_patience(run, host, step)
            while step < run.num_steps and not ended:
                host.watchdog.hear()
                lock.check_owned()
                state, values = train_step(state, next(batches), seed)
                step += 1
                metrics.follow(step, values)
                stop.ask(step)
                _call(hooks, step, state, metrics)
                ended = run.evaluates(step) and _is_out_of_patience(run, host, step)
    with PROGRAM.on("checkpoints"):
        host.checkpoints.wait()
    return state


class Hook(NamedTuple):
    """Something that the loop does between two steps, beside reading the metrics."""

    due: Callable[[int], bool]  # whether to do it after a step
    do: Callable[[TrainState], None] | None = None  # its time is not the steps'


def _call(
    hooks: Sequence[Hook], step: int, state: TrainState, metrics: "_Metrics"
) -> None:
    for hook in hooks:
        if hook.due(step):
            metrics.read()
            if hook.do:
                with metrics.records.paused():
                    hook.do(state)


def make_hooks(
    run: Run, first_step: int, host: Host, stop: StopSignal, profiler: "_Profiler"
) -> Sequence[Hook]:
    """The hooks of a run that continues from `first_step`, in the order of their calls.

    A state is saved before it is evaluated, so that a long evaluation cannot lose it.
    """
    log_every, best = run.config.log.every_steps, run.evaluation.best.metric

    def logs(step: int) -> bool:
        return step % log_every == 0

    def saves(step: int) -> bool:
        due = run.saves(step) and (step > first_step or step == 0)  # else it is saved
        return due or stop.requested or _is_late(run, host, step)

    def evaluates(step: int) -> bool:
        """Whether to evaluate; the first state only if a stop has prevented it."""
        if stop.requested or not run.evaluates(step):
            return False
        return step > first_step or not agree(step in host.records.scores(best))

    def ends(step: int) -> bool:
        return stop.requested or stop.received()

    return (
        Hook(logs),
        Hook(profiler.due, profiler.switch),
        Hook(saves, functools.partial(_save, run, host)),
        Hook(evaluates, functools.partial(_evaluate, run, host, stop)),
        Hook(ends, functools.partial(_end, run, host)),
    )


def _is_late(run: Run, host: Host, step: int) -> bool:
    """Whether a save is due by the clock; several processes agree now and then."""
    minutes = run.config.checkpoint.every_minutes
    if not minutes or (jax.process_count() > 1 and step % run.config.log.every_steps):
        return False
    return agree(time.monotonic() - host.checkpoints.saved_at >= 60 * minutes)


def _save(run: Run, host: Host, state: TrainState) -> None:
    host.watchdog.hear()
    lock.check_owned()
    step = int(state.step)
    with PROGRAM.on("checkpoints"):
        host.checkpoints.save(step, state, run.metadata(step))


def _evaluate(run: Run, host: Host, stop: StopSignal, state: TrainState) -> None:
    """Evaluates a state and records its metrics, unless a signal prevents it."""
    step = int(state.step)

    def stopped() -> bool:
        host.watchdog.hear()
        return stop.received()

    with PROGRAM.on("evaluation"):
        metrics = run.evaluation.evaluate(state.params, step, stopped)
    if metrics is None:
        stop.requested = True
        return
    lock.check_owned()
    with PROGRAM.on("checkpoints"):
        host.checkpoints.add_score(step, metrics[run.evaluation.best.metric])
    host.records.write({"step": step, **metrics})


def _is_out_of_patience(run: Run, host: Host, step: int) -> bool:
    """Whether the run ends early, at this step; a line says so.

    Recorded scores decide, so that a run that resumes ends at the same step. All
    processes follow the main one, which alone has these scores.
    """
    patience, (metric, highest) = run.evaluation.patience, run.evaluation.best
    if not patience or step == run.num_steps:
        return False
    evaluated = since_best(host.records.scores(metric), highest)
    if not agree(len(evaluated) > patience):
        return False
    if evaluated:
        best, *later = evaluated
        say(
            f"Ending early, at step {step:,} of {run.num_steps:,}: {metric} is best at "
            f"step {best:,}, and no better in {len(later):,} evaluation"
            f"{'s' * (len(later) > 1)} since (config.eval.patience={patience})."
        )
    return True


def _end(run: Run, host: Host, state: TrainState) -> NoReturn:
    _save(run, host, state)
    host.checkpoints.wait()
    raise Stopped(f"stopped by a signal; step {int(state.step)} is saved.")


class _Metrics:
    """Reads the metrics of each step while the device works on the next."""

    def __init__(self, run: Run, records: Records):
        self._run, self.records = run, records
        self._pending: tuple[int, Mapping[str, jax.Array]] | None = None

    def follow(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Reads the metrics of the step before; keeps these, which may not be ready."""
        self.read()
        self._pending = step, metrics

    def read(self) -> None:
        """Waits for the last step's metrics, and records them if that is due.

        Raises:
          FloatingPointError: after too many non-finite updates in a row.
        """
        if self._pending is None:
            return
        (step, metrics), self._pending = self._pending, None
        values = {name: value.item() for name, value in jax.device_get(metrics).items()}
        self.records.step_done(step)
        if in_row := values["nonfinite_in_row"]:
            say(
                f"WARNING: step {step} gave loss {values['loss']} and gradient norm "
                f"{values['grad_norm']}; its update was skipped."
            )
        if in_row >= self._run.config.train.max_nonfinite_steps:
            found = f"loss {values['loss']:.6g}"
            if math.isfinite(values["loss"]):
                found = f"gradient norm {values['grad_norm']:.6g}, at a {found}"
            raise FloatingPointError(
                f"{in_row} updates in a row up to step {step} were not finite "
                f"({found}). The checkpoints are intact; start a new run with a lower "
                "--config.optimizer.learning_rate or another --config.seed."
            )
        if step % self._run.config.log.every_steps == 0:
            self.records.train(step, values)


def _one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches, each requested (and so copied) one step early."""
    ahead = next(batches, None)
    while ahead is not None:
        current, ahead = ahead, next(batches, None)
        yield current


def _first_call_timed(step: Step) -> Step:
    """The same step; the time of its first call is not counted as training."""
    calls = itertools.count()

    def timed(state: TrainState, batch: Any, seed: jax.Array) -> Any:
        if next(calls):
            return step(state, batch, seed)
        say_so = said_if_long("Compiling the training step.")
        with PROGRAM.on("compilation of the step"), say_so:
            return step(state, batch, seed)

    return timed


class _Profiler(contextlib.AbstractContextManager):
    """Traces `profile_steps` steps from `profile_first_step` on, if asked to."""

    def __init__(self, directory: str, config: LogConfig):
        self._directory = directory
        first, number = config.profile_first_step, config.profile_steps
        self._switches = (first - 1, first - 1 + number) if number else ()
        self._tracing = False

    def due(self, step: int) -> bool:
        """Whether the trace begins or ends after a step."""
        return step in self._switches

    def switch(self, state: TrainState) -> None:
        """Begins or ends the trace."""
        del state
        if self._tracing:
            jax.profiler.stop_trace()
        else:
            jax.profiler.start_trace(self._directory)
        self._tracing = not self._tracing

    def __exit__(self, *exception: object) -> None:
        if self._tracing:
            jax.profiler.stop_trace()
