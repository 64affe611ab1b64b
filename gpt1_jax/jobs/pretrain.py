"""The pre-training job: from text to a trained model (sec. 3.1)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from etils import epath

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.data import windows
from gpt1_jax.data.corpus import prepare_corpus
from gpt1_jax.data.shards import Corpus, TokenReader
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import MissingPackage, find_named
from gpt1_jax.model import costs
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import gathered, make_mesh
from gpt1_jax.parallel.processes import host_rows, is_main_process
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoint_files import (
    LOWEST_LOSS,
    newest_metadata,
    saved_steps,
    state_bytes,
)
from gpt1_jax.runs.checkpoints import refuse_name
from gpt1_jax.runs.console import say
from gpt1_jax.runs.forms import choose_forms, saved_forms, say_forms
from gpt1_jax.runs.milestones import announce_milestones, schedule_milestones
from gpt1_jax.runs.records import (
    METRICS_FILE,
    SESSIONS_FILE,
    Throughput,
    by_step,
    read_metrics,
    read_sessions,
    steps_taken_over,
)
from gpt1_jax.runs.resume import Identity, begin_run, check_same, saved_digests
from gpt1_jax.training.fit import (
    Computation,
    Evaluate,
    Evaluation,
    Run,
    check_patience,
    fit,
    how_long,
)
from gpt1_jax.training.initial_state import (
    PretrainOrigin,
    check_end,
    describe_origin,
    init_pretrain_state,
    pretrain_state_shapes,
    resolve_origin,
)
from gpt1_jax.training.memory import accumulation_steps, check_memory, check_sharing
from gpt1_jax.training.optimizer import (
    check_optimizer,
    describe_defaults,
    make_optimizer,
)
from gpt1_jax.training.steps import jit_step, make_pretrain_step
from gpt1_jax.training.validation import Validation, describe_loss, loss_metrics

_BUILTIN_WARNING = """\
WARNING: this recipe is for a corpus of your own. The built-in one, documentation found
on this machine, is fine for a first try but too small for GPT-1. Name a corpus with
  --config.data.source=text --config.data.train='books/train/*.txt'
  or --config.data.source=tfds --config.data.train=lm1b:train
and see configs/pretrain.py:quickstart for a run that takes minutes."""

# These show how training is going. They are found by name; training works without.
_GUESTS = {
    "sampled text": "gpt1_jax.inference.generation:TextSampler",
    "plot of the loss": "gpt1_jax.report.loss_plot:plot_loss",
}

_FASTER_IN_BFLOAT16 = (
    "This CPU has units for bfloat16: small models trained 1.4 to 2 times as fast on "
    "such CPUs with --config.model.dtype=bfloat16."
)


def run(config: PretrainConfig, workdir: str) -> None:
    """Pre-trains in a run folder, or continues the run already in it.

    Args:
      config: the run's configuration.
      workdir: the run folder, created if missing.

    Raises:
      ValueError, OSError: if the configuration, data or folder cannot be used, before
        any long work.
      Stopped: after a signal, once the state is saved.
      FloatingPointError: if training has diverged.
    """
    folder = run_folder.locate_run(workdir)
    refuse_name(folder, to_save=True)
    check_optimizer(config.optimizer)
    with lock.owned(folder):
        config, origin = resolve_origin(config, folder)
        config = begin_run(folder, config)
        devices.configure(config.train.matmul_precision, config.train.compilation_cache)
        prepared, corpus, tokenizer = prepare_run(config, folder, origin)
        run_folder.write_config_and_tokenizer(folder, config, tokenizer)
        _announce(config, prepared, corpus, tokenizer, origin)
        known = by_step(read_metrics(folder / METRICS_FILE), LOWEST_LOSS.metric)
        first_step, last_step = fit(prepared)
        if is_main_process():
            say(_what_was_done(folder, first_step, last_step, last_step in known))
            plot_loss = _find_guest("plot of the loss")
            drawn = folder, "loss", "nats per token", None, config.figure
            if plot_loss and (plot := plot_loss(*drawn)):
                say(f"Loss curve: {plot}")


def _what_was_done(
    folder: epath.Path, first_step: int, last_step: int, was_evaluated: bool
) -> str:
    """The last line of the job: what this session has added to the run."""
    if first_step < last_step:
        return f"Done: {_steps(last_step)}, in {folder}."
    if not was_evaluated:
        return f"Done: evaluated step {last_step:,}, the last, in {folder}."
    return f"Nothing to do: the run in {folder} had finished at step {last_step:,}."


def _steps(number: int) -> str:
    return f"{number:,} step{'s' * (number != 1)}"


def prepare_run(
    config: PretrainConfig, folder: epath.Path, origin: PretrainOrigin | None
) -> tuple[Run, Corpus, Tokenizer]:
    """Prepares the text and everything else of the run, without touching its folder.

    Args:
      config: the run's configuration.
      folder: the run folder.
      origin: the run that it starts from; None if there is none or if it resumes.

    Raises:
      UserError, OSError: if the text or the configuration cannot be used.
    """
    train, batch_size = config.train, config.train.batch_size
    mesh = make_mesh(config.mesh.sharding)
    configured = config.model.with_vocab_size(config.tokenizer.vocab_size)
    check_sharing(train, config.eval.batch_size, mesh)
    check_memory(train, config.optimizer, config.eval.batch_size, configured, mesh)
    if config.model.is_full_size and config.data.source == "builtin":
        say(_BUILTIN_WARNING)
    own_tokenizer = run_folder.own_tokenizer(folder)
    if origin and not own_tokenizer:
        own_tokenizer = origin.run.folder / "tokenizer"
    corpus, tokenizer = prepare_corpus(
        config.data,
        config.tokenizer,
        own_tokenizer=own_tokenizer,
        progress=is_main_process(),
        is_main=is_main_process(),
    )
    check_same({"the prepared text": corpus.digest})

    model = config.model.with_vocab_size(tokenizer.vocab_size)
    tokens_per_step = batch_size * model.max_seq_len
    num_steps = _count_steps(config, corpus)
    check_end(origin, num_steps)
    unit, amounts = config.checkpoint.milestones
    milestones = schedule_milestones(
        unit, amounts, tokens_per_step, corpus.train, num_steps
    )
    optimizer = make_optimizer(config.optimizer, num_steps)
    parts = accumulation_steps(train, config.optimizer, model, mesh)
    before = saved_forms(newest_metadata(folder))
    model, forms = choose_forms(model, model.max_seq_len, training=True, before=before)
    step = make_pretrain_step(model, optimizer, parts, mesh)
    shapes = pretrain_state_shapes(model, optimizer)

    run = Run(
        config=config,
        folder=folder,
        identity=_identity(config, folder, origin, tokenizer, corpus),
        num_steps=num_steps,
        computation=Computation(
            mesh=mesh,
            shapes=shapes,
            init=functools.partial(
                init_pretrain_state, config, model, optimizer, origin
            ),
            step=jit_step(step, mesh, shapes),
            seed=config.seed,
            forms=forms,
        ),
        batches=windows.TrainWindows(
            TokenReader(corpus, "train"),
            model.max_seq_len,
            batch_size,
            host_rows(batch_size),
            num_steps,
            config.seed,
        ),
        evaluation=Evaluation(
            evaluate=_evaluation(config, model, corpus, tokenizer, mesh),
            best=LOWEST_LOSS,
            every=config.eval.every_steps,
            patience=config.eval.patience,
        ),
        throughput=Throughput("tokens", tokens_per_step, _mfu_per_rate(model)),
        milestones=milestones,
    )
    if patience := config.eval.patience:
        first_step = origin.first_step if origin else 0
        evaluations = sum(map(run.evaluates, range(first_step, num_steps)))
        check_patience(patience, evaluations)
    return run, corpus, tokenizer


def _announce(
    config: PretrainConfig,
    run: Run,
    corpus: Corpus,
    tokenizer: Tokenizer,
    origin: PretrainOrigin | None,
) -> None:
    """Describes the run to come, and refuses a disk that cannot hold it.

    Raises:
      OSError: if it lacks room for the milestones.
    """
    folder = run.folder
    if origin:
        taken_over = origin.first_step
    else:
        taken_over = steps_taken_over(config, read_sessions(folder / SESSIONS_FILE))
    own_steps = run.num_steps - taken_over
    model = config.model.with_vocab_size(tokenizer.vocab_size)
    say(_description(config, run, model, corpus, own_steps))
    if takes := _how_long(config, run, model, corpus, own_steps):
        say(takes)
    say_forms(run.computation.forms)
    new = not (origin or saved_steps(folder))
    if new and model.dtype != "bfloat16" and devices.multiply_bfloat16_on_cpu():
        say(_FASTER_IN_BFLOAT16)
    if note := describe_defaults(config.optimizer):
        say(note)
    if origin:
        say(describe_origin(origin, run.num_steps))
    first_step = origin.first_step if origin else 0
    last_step = max(saved_steps(folder), default=first_step or -1)
    if run.milestones:
        shapes = run.computation.shapes
        announce_milestones(run.milestones, folder, last_step, state_bytes(shapes))


def _count_steps(config: PretrainConfig, corpus: Corpus) -> int:
    """Updates in the whole run; also refuses too short a corpus or schedule."""
    seq_len = config.model.max_seq_len
    windows.check_long_enough("train", corpus.train.tokens, seq_len)
    windows.check_long_enough("valid", corpus.valid.tokens, seq_len)
    per_epoch = windows.windows_per_epoch(corpus.train.tokens, seq_len)
    num_steps = config.train.num_steps or int(
        config.train.num_epochs * per_epoch / config.train.batch_size
    )
    config.optimizer.check_num_steps(
        num_steps, f"{corpus.train.tokens:,} tokens, {per_epoch:,} windows per epoch"
    )
    return num_steps


def _evaluation(
    config: PretrainConfig,
    model: ModelConfig,
    corpus: Corpus,
    tokenizer: Tokenizer,
    mesh: jax.sharding.Mesh,
) -> Evaluate:
    """Makes the function that computes validation loss and samples text."""
    held_out = windows.ValidWindows(
        TokenReader(corpus, "valid"),
        model.max_seq_len,
        config.eval.batch_size,
        host_rows(config.eval.batch_size),
    )
    validation = Validation(model, held_out, config.eval.max_batches, mesh)
    sample = None
    if config.eval.sample_tokens and (sampler := _find_guest("sampled text")):
        sample = sampler(model, config.eval, tokenizer, config.seed)

    def evaluate(
        params: Any, step: int, stopped: Callable[[], bool]
    ) -> Mapping[str, Any] | None:
        loss = validation(params, stopped)
        if loss is None:
            return None
        metrics: dict[str, Any] = loss_metrics(loss, corpus.valid)
        say(describe_loss(step, metrics))
        if sample:
            metrics["sample"] = sample(gathered(mesh, params))
            say("  | " + metrics["sample"].replace("\n", "\n  | "))
        return metrics

    return evaluate


def _find_guest(what: str) -> Any:
    """One of `_GUESTS`; None, and a line that says so, if it is missing."""
    try:
        return find_named(_GUESTS[what], "that")
    except MissingPackage as missing:
        say(f"No {what}: {missing}")
        return None


def _identity(
    config: PretrainConfig,
    folder: epath.Path,
    origin: PretrainOrigin | None,
    tokenizer: Tokenizer,
    corpus: Corpus,
) -> Identity:
    """The identity of the training that the checkpoints belong to."""
    digests = {"text": corpus.digest}
    # A run that resumes does not open its origin again.
    saved = saved_digests(newest_metadata(folder))
    digest = origin.digest if origin else saved.get("origin")
    if config.init_from and digest:
        digests["origin"] = digest
    return Identity(config.to_dict(), tokenizer.digest, digests, corpus.documents)


def _mfu_per_rate(model: ModelConfig) -> float | None:
    """Model FLOPs utilisation at one token per second; None on unknown devices."""
    peak = devices.peak_flops()
    flops = costs.train_flops_per_token(model, model.max_seq_len)
    return flops / peak if peak else None


def _how_long(
    config: PretrainConfig, run: Run, model: ModelConfig, corpus: Corpus, own_steps: int
) -> str:
    """About how long the rest of the run takes here; empty if that is short.

    Names the preset for CPUs where one would take more than a day.
    """
    flops = costs.train_flops_per_token(model, model.max_seq_len)
    done = max(saved_steps(run.folder), default=run.num_steps - own_steps)
    training = (run.num_steps - done) * run.throughput.units_per_step * flops
    evaluations = (run.num_steps - done) / config.eval.every_steps
    if run.milestones:
        evaluations += sum(step > done for step in run.milestones.by_step)
    # The forward pass is a third of a step's work.
    validation = evaluations * _held_out(config, model, corpus) * flops / 3
    text, seconds = how_long(training, validation, config.eval.patience)
    if seconds < 86_400 or jax.default_backend() != "cpu" or config.preset == "small":
        return text
    return f"{text} configs/pretrain.py:small is made for CPUs."


def _held_out(config: PretrainConfig, model: ModelConfig, corpus: Corpus) -> int:
    """How many tokens each evaluation reads, at most."""
    batch = config.eval.batch_size * model.max_seq_len
    most = config.eval.max_batches * batch or corpus.valid.tokens
    return min(most, corpus.valid.tokens)


def _description(
    config: PretrainConfig, run: Run, model: ModelConfig, corpus: Corpus, own_steps: int
) -> str:
    """The model, the corpus and the run."""
    parts = accumulation_steps(
        config.train, config.optimizer, model, run.computation.mesh
    )
    tokens_per_step = run.throughput.units_per_step
    epochs = own_steps * tokens_per_step / corpus.train.tokens
    own = f", {own_steps:,} of them in this run" if own_steps < run.num_steps else ""
    in_parts = f", each in {parts} parts" if parts > 1 else ""
    held_out = _held_out(config, model, corpus)
    first = f" (the first {held_out:,})" if held_out < corpus.valid.tokens else ""
    return (
        f"Model: {costs.describe_model(model)}, {model.dtype}\n"
        f"Corpus: {corpus.train.tokens:,} training and {corpus.valid.tokens:,} "
        f"validation tokens{first}, vocabulary {model.vocab_size:,}, in "
        f"{corpus.directory}\n"
        f"Run: {_steps(run.num_steps)} of {tokens_per_step:,} tokens{own} "
        f"({epochs:.2f} epochs)"
        f"{in_parts} on {devices.describe_devices()}, in {run.folder}"
    )
