"""The model card of a pre-trained run: its model, text, training and scores."""

import os
from collections.abc import Mapping

from etils import epath

from gpt1_jax.interop.repository import describe_folder
from gpt1_jax.model import costs
from gpt1_jax.report.markdown import code_block, counted, escape, markdown_table
from gpt1_jax.runs.forms import describe_forms
from gpt1_jax.runs.run_folder import RunFolder

UNKNOWN = "not recorded"
_OPTIMIZERS = {
    "released_adam": "Adam as OpenAI released it",
    "adamw": "AdamW of optax",
}
_NOTHING_SAVED = (
    "**No checkpoint:** nothing is saved in this folder, so it has no model to use; "
    "what was read is counted up to the last record."
)
_CORPORA = {
    "builtin": "documentation found on the machine",
    "text": "text files: ",
    "tfds": "TensorFlow Datasets: ",
    "tokens": "token files: ",
}


def model_card(run: RunFolder, before: int = 0) -> str:
    """The card as Markdown, without a heading.

    Args:
      run: the pre-trained run.
      before: tokens that were read before the run, as `tokens_before` returns them.
    """
    rows = {
        "folder": escape(_place(run.folder)),
        "model": _model(run),
        "tokenizer": _tokenizer(run),
        "corpus": _corpus(run),
        "training": _training(run),
        "read" if run.saved else "read by its records": _read(run, before),
        "optimizer": _optimizer(run),
        "hardware": hardware(run),
        "forms": _forms(run),
        "versions": last_versions(run),
        "validation": _validation(run),
    }
    if not run.sessions and not run.records:  # saved by a script
        rows = {name: rows[name] for name in ("folder", "model", "tokenizer")}
        rows["training"] = "not recorded: these parameters were saved from a script"
    table = markdown_table(
        ["", ""], [[f"**{k}**", v] for k, v in rows.items()], text_columns=2
    )
    parts = [table]
    if sample := run.sample():
        prompt = run.config.eval.sample_prompt
        after = f", continuing “{escape(prompt)}”" if prompt else ""
        parts += [
            f"A sample at the last evaluation{after}:",
            code_block(sample),
        ]
    if not run.saved:
        parts.insert(0, _NOTHING_SAVED)
    return "\n\n".join(parts)


def _place(folder: epath.Path) -> str:
    """A path, relative if it is below the working directory."""
    here = os.getcwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _model(run: RunFolder) -> str:
    model = run.model
    if model.kind == "lstm":
        kind, inside = "LSTM", ""
    else:
        kind = "Transformer decoder"
        inside = f"{counted(model.num_heads, 'head')}, MLP {model.mlp_dim:,} wide; "
    return (
        f"{kind}: {costs.describe_model(model)}; {inside}"
        f"{model.max_seq_len} tokens of context; matrix products in {model.dtype}"
    )


def _tokenizer(run: RunFolder) -> str:
    kind = run.config.tokenizer.kind
    names = {"gpt1": "GPT-1's own BPE", "sentencepiece": "SentencePiece"}
    names["huggingface"] = "a tokenizer.json of Hugging Face"
    return f"{names.get(kind, escape(kind))}, {run.model.vocab_size:,} entries"


def _corpus(run: RunFolder) -> str:
    data = run.config.data
    text = _CORPORA[data.source]
    if data.source != "builtin":
        text += escape(data.train)
    if run.corpus_tokens:
        text += f"; {run.corpus_tokens:,} training tokens"
    return text


def _training(run: RunFolder) -> str:
    planned = f"{run.num_steps:,}" if run.num_steps else UNKNOWN
    return (
        f"{planned} updates of {run.config.train.batch_size:,} sequences "
        f"({run.tokens_per_step:,} tokens), seed {run.config.seed}, from {_start(run)}"
    )


def _start(run: RunFolder) -> str:
    config = run.config
    if not config.init_from:
        return "random weights"
    optimizer = " and optimizer" if config.init_optimizer else ""
    step = describe_step(config.step)
    name = escape(describe_folder(config.init_from))
    return f"the weights{optimizer} of {name}, {step}"


def describe_step(step: int | str) -> str:
    """A step that a run starts from, given as a number or by its name."""
    number = str(step).isdecimal()
    return f"step {int(step):,}" if number else f"its {step} step"


def _read(run: RunFolder, before: int) -> str:
    epochs = UNKNOWN
    if run.corpus_tokens:
        own = (run.step - run.taken_over) * run.tokens_per_step
        epochs = f"{own / run.corpus_tokens:,.2f}"
    earlier = f"; before that, {before:,} tokens" if before else ""
    taken_over = ""
    if run.taken_over:
        taken_over = f", the first {run.taken_over:,} of them in the run before"
    read = counted(run.step, "update")
    if run.num_steps and run.step < run.num_steps:
        read = f"**unfinished:** {run.step:,} of {counted(run.num_steps, 'update')}"
    return f"{read}{taken_over}, {run.tokens:,} tokens; epochs: {epochs}{earlier}"


def _optimizer(run: RunFolder) -> str:
    chosen = run.config.optimizer
    name, also = _OPTIMIZERS.get(chosen.name, ""), ""
    if not name:
        given = {key: getattr(chosen, key) for key in ("b1", "b2", "eps")}
        listed = ", ".join(f"{key}={value:g}" for key, value in given.items())
        also = f"; {listed} if it takes them"
        name = f"{escape(chosen.name)} of optax"
    if chosen.arguments:
        name += f" ({escape(chosen.arguments)})"
    warmup = f"{chosen.warmup_steps:,} updates"
    if chosen.warmup_fraction:
        warmup = f"{chosen.warmup_fraction:.1%} of the updates"
    end = f" down to {chosen.final_fraction:.1%}" if chosen.final_fraction else ""
    return (
        f"{name}, learning rate {chosen.learning_rate:g}, schedule "
        f"{chosen.schedule.replace('_', ' ')}{end} after a warmup of {warmup}, "
        f"weight decay {chosen.weight_decay:g}, gradients clipped to norm "
        f"{chosen.clip_norm:g}{also}"
    )


def hardware(run: RunFolder) -> str:
    """The distinct machines that trained a run."""
    used = dict.fromkeys(f"{s['devices']} ({s['host']})" for s in run.sessions)
    return escape("; ".join(used)) or UNKNOWN


def _forms(run: RunFolder) -> str:
    """The forms of attention and LayerNorm that the last session used."""
    forms = run.sessions[-1].get("forms") if run.sessions else None
    if not forms:  # an LSTM's, or there is no session yet
        return UNKNOWN if run.model.kind == "transformer" else "those of an LSTM"
    return escape("; ".join(describe_forms(forms)))


def last_versions(run: RunFolder) -> str:
    """The versions of packages that a run was last trained with."""
    if not run.sessions:
        return UNKNOWN
    return list_versions(run.sessions[-1]["versions"])


def list_versions(versions: Mapping[str, str]) -> str:
    """Names and versions of packages, in one line."""
    return escape(", ".join(f"{name} {version}" for name, version in versions.items()))


def _validation(run: RunFolder) -> str:
    """The last validation loss, in units that are comparable."""
    loss = run.last("valid_loss")
    if loss is None:
        return "not yet evaluated"
    text = f"{loss:.3f} nats per token"
    for metric, unit in (
        ("valid_perplexity", "perplexity {:,.2f}"),
        ("valid_bits_per_word", "{:.3f} bits per word"),
    ):
        value = run.last(metric)
        text += "" if value is None else ", " + unit.format(value)
    steps, _ = run.series("valid_loss")
    evaluated = run.config.eval
    part = evaluated.max_batches * evaluated.batch_size * run.model.max_seq_len
    where = f", the first {part:,} tokens at most" if part else ""
    return f"{text} (update {steps[-1]:,}{where})"
