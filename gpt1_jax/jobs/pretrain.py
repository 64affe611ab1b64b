"""The pre-training job: from text to a trained model (sec. 3.1)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from etils import epath

from gpt1_jax.config import ModelConfig, PretrainConfig
from gpt1_jax.data import corpus as corpora
from gpt1_jax.data import windows
from gpt1_jax.data.shards import Corpus, open_split
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.evaluation.validation import (
    TextSampler,
    Validation,
    describe_loss,
    loss_metrics,
)
from gpt1_jax.model import costs
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.mesh import gathered, make_mesh
from gpt1_jax.parallel.processes import gather, host_rows, is_main_process
from gpt1_jax.report import figures
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoint_files import (
    LOWEST_LOSS,
    clear_steps,
    newest_digests,
    saved_steps,
    state_bytes,
)
from gpt1_jax.runs.console import say
from gpt1_jax.runs.milestones import (
    Target,
    TextRead,
    announce_milestones,
    place_milestones,
)
from gpt1_jax.runs.past_runs import steps_taken_over
from gpt1_jax.runs.records import SESSIONS_FILE, Throughput, read_sessions
from gpt1_jax.runs.resume import Identity, begin_run, check_same
from gpt1_jax.training import initial_state
from gpt1_jax.training.fit import (
    Evaluate,
    Plan,
    accumulation_steps,
    check_memory,
    check_sharing,
    fit,
)
from gpt1_jax.training.initial_state import Source
from gpt1_jax.training.optimizer import make_optimizer
from gpt1_jax.training.steps import jit_step, make_pretrain_step

_BUILTIN_WARNING = """\
WARNING: this recipe is for a corpus of yours. The built-in one, the documentation found
on this machine, is fine for a first try and too small for GPT-1. Name a corpus with
  --config.data.source=text --config.data.train='books/train/*.txt'
  or --config.data.source=tfds --config.data.train=lm1b:train
and see configs/pretrain.py:quickstart for a run that takes minutes."""


def run(config: PretrainConfig, workdir: str) -> None:
    """Pre-trains in a run folder, or continues the run already in it.

    Args:
      config: the run's configuration.
      workdir: the run folder, created if missing.

    Raises:
      ValueError, OSError: if the configuration, data or folder cannot be used, before
        any long work.
      Stopped: after a signal, once the state is saved.
      FloatingPointError: if training has broken down.
    """
    folder = run_folder.locate(workdir)
    with lock.owned(folder):
        clear_steps(folder)
        config, source = initial_state.resolve_pretraining(config, folder)
        config = begin_run(folder, config)
        devices.configure(config.train.matmul_precision, config.train.compilation_cache)
        plan = _plan(config, folder, source)
        fit(plan)
        if is_main_process():
            picture = figures.plot_loss(folder, "loss", "nats per token")
            say(f"Done: {plan.num_steps:,} steps, in {folder}.\nLoss curve: {picture}")


def _plan(config: PretrainConfig, folder: epath.Path, source: Source | None) -> Plan:
    """Prepares the corpus and decides everything about the run."""
    mesh = make_mesh(config.mesh.sharding, config.mesh.tensor_parallelism)
    configured = config.model.with_vocab_size(config.tokenizer.vocab_size)
    check_sharing(config.train, config.eval.batch_size, configured, mesh)
    check_memory(config.train, config.eval.batch_size, configured, mesh)
    needs_corpus = config.preset.startswith(("paper", "babylm"))
    if needs_corpus and config.data.source == "builtin":
        say(_BUILTIN_WARNING)
    corpus, tokenizer = corpora.prepare(
        config.data,
        config.tokenizer,
        own_tokenizer=_own_tokenizer(folder, source),
        progress=is_main_process(),
    )
    check_same({"the prepared text": corpus.digest})
    model = config.model.with_vocab_size(tokenizer.vocab_size)
    num_steps = _num_steps(config, corpus)
    initial_state.check_end(source, num_steps)
    text = TextRead(config.train.batch_size * model.max_seq_len, corpus.train)
    unit, amounts = config.checkpoint.milestones
    targets = tuple(Target(amount, unit) for amount in amounts)
    kept = place_milestones(targets, text, num_steps)
    optimizer = make_optimizer(config.optimizer, num_steps)
    parts = accumulation_steps(config.train, model, mesh)
    shapes = initial_state.state_shapes(model, optimizer)
    step = make_pretrain_step(model, optimizer, parts, mesh)
    evaluate = _evaluation(config, model, corpus, tokenizer, mesh)
    run_folder.write(folder, config, tokenizer)
    own_steps = num_steps - _taken_over(config, folder, source)
    say(_description(config, model, corpus, num_steps, own_steps, parts, folder))
    if source:
        say(initial_state.describe(source, num_steps))
    announce_milestones(kept, folder, _first_step(folder, source), state_bytes(shapes))
    return Plan(
        config=config,
        folder=folder,
        identity=_identity(config, folder, source, tokenizer, corpus),
        mesh=mesh,
        seed=config.seed,
        num_steps=num_steps,
        shapes=shapes,
        init=initial_state.make_init(config, model, optimizer),
        init_arguments=functools.partial(initial_state.init_arguments, config, source),
        step=jit_step(step, mesh, shapes),
        batches=windows.TrainWindows(
            open_split(corpus, "train"),
            model.max_seq_len,
            config.train.batch_size,
            host_rows(config.train.batch_size),
            num_steps,
            config.seed,
        ),
        evaluate=evaluate,
        evaluate_every=config.eval.every_steps,
        best=LOWEST_LOSS,
        throughput=_throughput(config, model),
        kept=kept,
    )


def _identity(
    config: PretrainConfig,
    folder: epath.Path,
    source: Source | None,
    tokenizer: Tokenizer,
    corpus: Corpus,
) -> Identity:
    """What the run's checkpoints belong to."""
    digests = {"text": corpus.digest}
    # A run that resumes does not open the other one again.
    origin = source.digest if source else newest_digests(folder).get("origin")
    if config.init_from and origin:
        digests["origin"] = origin
    # On other hosts the same text may lie in files of another time.
    older = gather(corpus.fingerprint)[0]
    return Identity(
        config.to_dict(), tokenizer.fingerprint, digests, older, corpus.documents
    )


def _own_tokenizer(folder: epath.Path, source: Source | None) -> epath.Path | None:
    """The saved tokenizer that the run must use; None: the configured one."""
    own = run_folder.own_tokenizer(folder)
    return source.run.folder / "tokenizer" if source and not own else own


def _first_step(folder: epath.Path, source: Source | None) -> int:
    """The step that the run goes on from."""
    taken_over = source.run.step if source and source.state else 0
    return max(saved_steps(folder), default=taken_over)


def _taken_over(
    config: PretrainConfig, folder: epath.Path, source: Source | None
) -> int:
    """How many of the updates are those of the run whose optimizer is taken over."""
    if source:
        return source.run.step if source.state else 0
    return steps_taken_over(config, read_sessions(folder / SESSIONS_FILE))


def _num_steps(config: PretrainConfig, corpus: Corpus) -> int:
    """Updates in the whole run; also refuses too short a corpus or schedule."""
    seq_len = config.model.max_seq_len
    windows.check_long_enough(corpus, "train", seq_len)
    windows.check_long_enough(corpus, "valid", seq_len)
    per_epoch = windows.windows_per_epoch(corpus.train.tokens, seq_len)
    num_steps = config.train.num_steps or int(
        config.train.num_epochs * per_epoch / config.train.batch_size
    )
    config.optimizer.check_num_steps(
        num_steps,
        f"{corpus.train.tokens:,} tokens, {per_epoch:,} windows per epoch",
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
        open_split(corpus, "valid"),
        model.max_seq_len,
        config.eval.batch_size,
        host_rows(config.eval.batch_size),
    )
    validation = Validation(model, held_out, config.eval.max_batches, mesh)
    sample = TextSampler(model, config.eval, tokenizer, config.seed)

    def evaluate(
        params: Any, step: int, stopped: Callable[[], bool]
    ) -> Mapping[str, Any] | None:
        loss = validation(params, stopped)
        if loss is None:
            return None
        metrics: dict[str, Any] = loss_metrics(loss, corpus.valid)
        say(describe_loss(step, metrics))
        if config.eval.sample_tokens:
            metrics["sample"] = sample(gathered(mesh, params))
            say("  | " + metrics["sample"].replace("\n", "\n  | "))
        return metrics

    return evaluate


def _throughput(config: PretrainConfig, model: ModelConfig) -> Throughput:
    peak = devices.peak_flops()
    flops = costs.train_flops_per_token(model, model.max_seq_len)
    tokens = config.train.batch_size * model.max_seq_len
    return Throughput("tokens", tokens, flops / peak if peak else None)


def _description(
    config: PretrainConfig,
    model: ModelConfig,
    corpus: Corpus,
    num_steps: int,
    own_steps: int,
    parts: int,
    folder: epath.Path,
) -> str:
    """What is about to happen."""
    tokens_per_step = config.train.batch_size * model.max_seq_len
    epochs = own_steps * tokens_per_step / corpus.train.tokens
    own = f", {own_steps:,} of them in this run" if own_steps < num_steps else ""
    in_parts = f", each in {parts} parts" if parts > 1 else ""
    return (
        f"Model: {model.layers}, {model.embed_dim} wide, "
        f"{costs.num_params(model):,} parameters, {model.dtype}\n"
        f"Corpus: {corpus.train.tokens:,} training and {corpus.valid.tokens:,} "
        f"validation tokens, vocabulary {model.vocab_size:,}, in {corpus.directory}\n"
        f"Run: {num_steps:,} steps of {tokens_per_step:,} tokens{own} "
        f"({epochs:.2f} epochs)"
        f"{in_parts} on {devices.describe()}, in {folder}"
    )
