"""What pre-training and fine-tuning share: from a plan to a trained run.

The host loop knows nothing of tasks or losses. The host never waits for the device
between steps: while the device works on step n, the host reads the metrics of step
n - 1 and puts the batch of step n + 1 on the device.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from gpt1_jax.config import (
    CheckpointConfig,
    DistributedConfig,
    LogConfig,
    ModelConfig,
    TrainConfig,
)
from gpt1_jax.data.windows import BatchSource, read_ahead
from gpt1_jax.model import costs, language_model
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import (
    check_batch_size,
    check_tensor_parallelism,
    data_parallelism,
    state_sharding,
    state_share,
    tensor_parallelism,
    to_global_batch,
)
from gpt1_jax.parallel.processes import (
    EXIT_AGAIN,
    Watchdog,
    agree,
    is_lost,
    is_main_process,
)
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoint_files import Best, abstract_state
from gpt1_jax.runs.checkpoints import Checkpoints
from gpt1_jax.runs.console import say
from gpt1_jax.runs.milestones import Milestones
from gpt1_jax.runs.records import Records, Throughput
from gpt1_jax.runs.resume import Identity, check_same
from gpt1_jax.runs.wall_time import PROGRAM
from gpt1_jax.training import signals
from gpt1_jax.training.signals import Stopped, StopSignal
from gpt1_jax.training.state import TrainState
from gpt1_jax.training.steps import Step

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


_MEMORY_SHARE = 0.75  # of a device's memory, for what training is known to need


class TrainingConfig(Protocol):
    """The sections that every training job has."""

    @property
    def train(self) -> TrainConfig: ...
    @property
    def checkpoint(self) -> CheckpointConfig: ...
    @property
    def log(self) -> LogConfig: ...
    @property
    def distributed(self) -> DistributedConfig: ...


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything decided about a run before its first step.

    Attributes:
      config: the sections of training, checkpoints, log and processes.
      folder: the run folder.
      identity: what its checkpoints belong to.
      mesh: the device mesh.
      seed: for the dropout masks.
      num_steps: updates in the whole run.
      shapes: the state's shapes and dtypes (`jax.ShapeDtypeStruct`).
      init: makes the state before the first step, from `init_arguments()`.
      init_arguments: returns arrays; called only if there is no checkpoint.
      step: the jitted training step, as returned by `jit_step`.
      batches: this host's rows of each batch, by step.
      evaluate: see `Evaluate`.
      evaluate_every: updates between evaluations.
      evaluate_also: further updates to evaluate after.
      save_evaluated: whether every evaluated state is saved.
      kept: the steps that are kept for good, and how much text is read by a step; None
        where the text is not counted.
      best: the metric that ranks checkpoints.
      throughput: what a step processes.
    """

    config: TrainingConfig
    folder: epath.Path
    identity: Identity
    mesh: jax.sharding.Mesh
    seed: int
    num_steps: int
    shapes: TrainState
    init: Callable[..., TrainState]
    init_arguments: Callable[[], tuple[Any, ...]]
    step: Step
    batches: BatchSource
    evaluate: Evaluate
    evaluate_every: int
    best: Best
    throughput: Throughput
    evaluate_also: tuple[int, ...] = ()
    save_evaluated: bool = False
    kept: Milestones | None = None

    def metadata(self, step: int) -> dict[str, Any]:
        """What is saved beside the state of a step."""
        read = self.kept.metadata(step) if self.kept else {}
        return {**self.identity.metadata(step), **read}


def fit(plan: Plan) -> None:
    """Trains to the end of a plan, from the newest checkpoint if there is one.

    Raises:
      Stopped: after a signal, once the state is saved.
      FloatingPointError: if training has broken down.
      ValueError: if the checkpoints belong to another run, or all are damaged; or if
        the processes have prepared different text.
      OSError: if the disk is full.
    """
    check_same(
        {
            "the tokenizer": plan.identity.tokenizer,
            **{f"the {name}": each for name, each in plan.identity.digests.items()},
        }
    )
    checkpoints = Checkpoints(plan.folder, plan.config.checkpoint, plan.best)
    with _closed_after(checkpoints):
        state = _start(plan, checkpoints)
        if is_main_process():
            plan.identity.write_documents(plan.folder)
        first_step = int(state.step)
        records = Records(
            plan.folder,
            first_step,
            plan.num_steps,
            plan.throughput,
            plan.config.log.tensorboard,
            plan.kept.text.train_size if plan.kept else None,
        )
        seed = jnp.uint32(plan.seed)
        with contextlib.closing(records), _watchdog(plan) as watchdog:
            run = Run(
                train_step=lambda state, batch: plan.step(state, batch, seed),
                batches=_on_devices(plan, first_step),
                evaluate=plan.evaluate,
                metadata=plan.metadata,
                checkpoints=checkpoints,
                records=records,
                profile_dir=str(plan.folder / "profile"),
                watchdog=watchdog,
            )
            train(run, state, _cadence(plan))


@contextlib.contextmanager
def _closed_after(checkpoints: Checkpoints) -> Iterator[None]:
    """Waits for the save under way, unless another process of the save is gone."""
    try:
        yield
    except BaseException as error:
        if not is_lost(error):
            checkpoints.close()
        raise
    checkpoints.close()


def _watchdog(plan: Plan) -> Watchdog:
    """Ends a run that no longer moves, as when one process of several hangs."""
    minutes = plan.config.distributed.stuck_minutes
    stuck = (
        "stuck: no step, evaluation batch or save within config.distributed."
        f"stuck_minutes={minutes}; above is what each thread was doing. Run the same "
        "command again to resume."
    )
    return Watchdog(60 * minutes, stuck, EXIT_AGAIN, traces=True)


def _start(plan: Plan, checkpoints: Checkpoints) -> TrainState:
    """The state of the newest sound checkpoint, or a fresh one."""
    sharding = state_sharding(plan.mesh, plan.shapes)
    target = abstract_state(plan.shapes, sharding)

    def check(saved: Mapping[str, Any]) -> None:
        plan.identity.check(saved, plan.folder)

    restored = checkpoints.restore(target, check)
    if restored is not None:
        say(f"Resuming from the checkpoint of step {int(restored.step):,}.")
        return restored
    return jax.jit(plan.init, out_shardings=sharding)(*plan.init_arguments())


def _on_devices(plan: Plan, first_step: int) -> Iterator[Any]:
    """Batches on the devices, from `first_step` on."""

    def put(array: np.ndarray) -> jax.Array:
        return to_global_batch(array, plan.mesh)

    for local in read_ahead(plan.batches, first_step):
        yield jax.tree.map(put, local)


def _cadence(plan: Plan) -> Cadence:
    config = plan.config
    return Cadence(
        num_steps=plan.num_steps,
        log_every=config.log.every_steps,
        eval_every=plan.evaluate_every,
        checkpoint_every=config.checkpoint.every_steps,
        max_nonfinite_steps=config.train.max_nonfinite_steps,
        profile_first_step=config.log.profile_first_step,
        profile_steps=config.log.profile_steps,
        eval_also=plan.evaluate_also,
        save_evaluated=plan.save_evaluated,
        save_also=plan.kept.targets if plan.kept else (),
    )


def check_sharing(
    train: TrainConfig, eval_size: int, model: ModelConfig, mesh: jax.sharding.Mesh
) -> None:
    """Refuses batches and models that the devices cannot share evenly."""
    check_tensor_parallelism(mesh, language_model.shared_units(model))
    parts = max(1, train.accumulation_steps)
    check_batch_size("config.train.batch_size", train.batch_size, mesh, parts)
    check_batch_size("config.eval.batch_size", eval_size, mesh)


def check_memory(
    train: TrainConfig, eval_size: int, model: ModelConfig, mesh: jax.sharding.Mesh
) -> None:
    """Refuses sizes that no device of this machine can hold.

    Args:
      train: the training batch and its parts.
      eval_size: sequences that are evaluated at a time, over all devices.
      model: configuration of the model to train.
      mesh: the device mesh.

    Raises:
      ValueError: naming the size, what it needs at least and the memory there is.
    """
    names = ["num_layers", "mlp_dim", "max_seq_len"]
    if model.kind == "lstm":
        names = ["lstm_units"]
    sizes = [f"config.model.{n}={getattr(model, n)}" for n in ("embed_dim", *names)]
    devices.require_memory(
        "Training this model",
        costs.train_state_bytes(model) * state_share(mesh),
        "That is for parameters, gradients and optimizer alone; lower "
        f"{', '.join(sizes)} or config.tokenizer.vocab_size={model.vocab_size}.",
    )
    check_train_batch(train, model, mesh)
    devices.require_memory(
        f"config.eval.batch_size={eval_size}",
        eval_size // data_parallelism(mesh) * costs.eval_activation_bytes(model),
        "Lower it.",
    )


def check_train_batch(
    train: TrainConfig, model: ModelConfig, mesh: jax.sharding.Mesh, num_seqs: int = 1
) -> None:
    """Refuses a training batch that no device of this machine can hold.

    Args:
      train: the batch and its parts.
      model: its sizes, with the `max_seq_len` of the shortest sequence.
      mesh: the device mesh.
      num_seqs: sequences per example.

    Raises:
      ValueError: naming the batch, what it needs at least and the memory there is.
    """
    tokens = train.batch_size // data_parallelism(mesh) * num_seqs * model.max_seq_len
    read = costs.forward_bytes(model) // tensor_parallelism(mesh)
    parts = train.accumulation_steps  # 0: as many as it takes
    devices.require_memory(
        f"config.train.batch_size={train.batch_size}",
        tokens * max(4, read // parts if parts else 0),  # an id has 4 bytes
        "Lower it, or compute it in more parts with config.train.accumulation_steps.",
    )


def accumulation_steps(
    train: TrainConfig, model: ModelConfig, mesh: jax.sharding.Mesh, num_seqs: int = 1
) -> int:
    """The configured number of parts of a batch, or the fewest that fit in memory.

    Args:
      train: its batch size and, if not 0, its `accumulation_steps`.
      model: its sizes, with the `max_seq_len` of the longest batch.
      mesh: the device mesh.
      num_seqs: sequences per example.
    """
    if train.accumulation_steps:
        return train.accumulation_steps
    per_device = train.batch_size // data_parallelism(mesh)
    state = costs.train_state_bytes(model) * state_share(mesh)
    room = _MEMORY_SHARE * devices.memory_bytes() - state
    example_bytes = num_seqs * costs.train_activation_bytes(model)
    fitting = max(1, int(room // example_bytes))
    return next(
        parts
        for parts in range(1, per_device + 1)
        if per_device % parts == 0 and per_device // parts <= fitting
    )
