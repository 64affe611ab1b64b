"""The model card of a pre-trained run: its model, text, training and scores."""

import os
from collections.abc import Mapping

from gpt1_jax.interop.repository import describe_folder
from gpt1_jax.model import costs
from gpt1_jax.report.markdown import code_block, counted, escape, markdown_table
from gpt1_jax.runs.forms import describe_forms
from gpt1_jax.runs.pretrained import Pretrained

UNKNOWN = "not recorded"
_TOKENIZERS = {
    "gpt1": "GPT-1's own BPE",
    "sentencepiece": "SentencePiece",
    "huggingface": "a tokenizer.json of Hugging Face",
}
_CORPORA = {
    "builtin": "documentation found on the machine",
    "text": "text files: ",
    "tfds": "TensorFlow Datasets: ",
    "tokens": "token files: ",
}
_OPTIMIZERS = {
    "released_adam": "Adam as OpenAI released it",
    "adamw": "AdamW of optax",
}
_SCORES = {
    "valid_loss": "{:.3f} nats per token",
    "valid_perplexity": "perplexity {:,.2f}",
    "valid_bits_per_word": "{:.3f} bits per word",
}
_NOTHING_SAVED = (
    "**No checkpoint:** nothing is saved in this folder, so it has no model to use; "
    "what was read is counted up to the last record."
)


def model_card(run: Pretrained, before: int = 0) -> str:
    """The card as Markdown, without a heading.

    Args:
      run: the pre-trained run.
      before: tokens that were read before the run, as `tokens_before` returns them.
    """
    config, folder, here = run.config, run.folder, os.getcwd()
    place = folder.relative_to(here) if folder.is_relative_to(here) else folder
    tokenizer = config.tokenizer.kind
    facts = {
        "folder": escape(str(place)),
        "model": _model(run),
        "tokenizer": f"{_TOKENIZERS.get(tokenizer) or escape(tokenizer)}, "
        f"{run.model.vocab_size:,} entries",
    }
    if not run.sessions and not run.records:
        facts["training"] = "not recorded: these parameters were saved from a script"
    else:
        planned = f"{run.num_steps:,}" if run.num_steps else UNKNOWN
        facts |= {
            "corpus": _corpus(run),
            "training": f"{planned} updates of {config.train.batch_size:,} sequences "
            f"({run.tokens_per_step:,} tokens), seed {config.seed}, from {_start(run)}",
            "read" if run.saved else "read by its records": _read(run, before),
            "optimizer": _optimizer(run),
            "hardware": hardware(run),
            "forms": _forms(run),
            "versions": last_versions(run),
            "validation": _validation(run),
        }
    body = [[f"**{name}**", fact] for name, fact in facts.items()]
    parts = [] if run.saved else [_NOTHING_SAVED]
    parts.append(markdown_table(["", ""], body, text_columns=2))
    if sample := run.sample():
        prompt = escape(config.eval.sample_prompt)
        after = f", continuing “{prompt}”" if prompt else ""
        parts += [f"A sample at the last evaluation{after}:", code_block(sample)]
    return "\n\n".join(parts)


def _model(run: Pretrained) -> str:
    model = run.model
    kind = "LSTM" if model.kind == "lstm" else "Transformer decoder"
    heads = f"{counted(model.num_heads, 'head')}, MLP {model.mlp_dim:,} wide; "
    return (
        f"{kind}: {costs.describe_model(model)}; {heads * (model.kind != 'lstm')}"
        f"{model.max_seq_len} tokens of context; matrix products in {model.dtype}"
    )


def _corpus(run: Pretrained) -> str:
    data = run.config.data
    text = _CORPORA[data.source]
    if data.source != "builtin":
        text += escape(data.train)
    if run.corpus_tokens:
        text += f"; {run.corpus_tokens:,} training tokens"
    return text


def _start(run: Pretrained) -> str:
    config = run.config
    if not config.init_from:
        return "random weights"
    optimizer = " and optimizer" if config.init_optimizer else ""
    name = escape(describe_folder(config.init_from))
    return f"the weights{optimizer} of {name}, {describe_step(config.step)}"


def describe_step(step: int | str) -> str:
    """A step that a run starts from, given as a number or by its name."""
    number = str(step).isdecimal()
    return f"step {int(step):,}" if number else f"its {step} step"


def _read(run: Pretrained, before: int) -> str:
    read = [counted(run.step, "update")]
    if run.num_steps and run.step < run.num_steps:
        status = "ended early:" if run.ended_early else "**unfinished:**"
        read = [f"{status} {run.step:,} of {counted(run.num_steps, 'update')}"]
    if run.taken_over:
        read.append(f"the first {run.taken_over:,} of them in the run before")
    epochs = UNKNOWN
    if run.corpus_tokens:
        own = (run.step - run.taken_over) * run.tokens_per_step
        epochs = f"{own / run.corpus_tokens:,.2f}"
    earlier = f"; before that, {before:,} tokens" if before else ""
    return f"{', '.join(read)}, {run.tokens:,} tokens; epochs: {epochs}{earlier}"


def _optimizer(run: Pretrained) -> str:
    chosen = run.config.optimizer
    arguments = f" ({escape(chosen.arguments)})" if chosen.arguments else ""
    warmup = f"{chosen.warmup_steps:,} updates"
    if chosen.warmup_fraction:
        warmup = f"{chosen.warmup_fraction:.1%} of the updates"
    end = f" down to {chosen.final_fraction:.1%}" if chosen.final_fraction else ""
    facts = [
        _OPTIMIZERS.get(chosen.name, f"{escape(chosen.name)} of optax") + arguments,
        f"learning rate {chosen.learning_rate:g}",
        f"schedule {chosen.schedule.replace('_', ' ')}{end} after a warmup of {warmup}",
        f"weight decay {chosen.weight_decay:g}",
        f"gradients clipped to norm {chosen.clip_norm:g}",
    ]
    if chosen.name not in _OPTIMIZERS:
        given = {key: getattr(chosen, key) for key in ("b1", "b2", "eps")}
        listed = ", ".join(f"{key}={value:g}" for key, value in given.items())
        facts[-1] += f"; {listed} if it takes them"
    return ", ".join(facts)


def hardware(run: Pretrained) -> str:
    """The distinct machines that trained a run."""
    used = dict.fromkeys(f"{s['devices']} ({s['host']})" for s in run.sessions)
    return escape("; ".join(used)) or UNKNOWN


def _forms(run: Pretrained) -> str:
    """The forms of attention and LayerNorm that the last session used."""
    forms = run.sessions[-1].get("forms") if run.sessions else None
    if not forms:  # an LSTM's, or there is no session yet
        return UNKNOWN if run.model.kind == "transformer" else "those of an LSTM"
    return escape("; ".join(describe_forms(forms)))


def last_versions(run: Pretrained) -> str:
    """The versions of packages that a run was last trained with."""
    return list_versions(run.sessions[-1]["versions"]) if run.sessions else UNKNOWN


def list_versions(versions: Mapping[str, str]) -> str:
    """Names and versions of packages, in one line."""
    return escape(", ".join(f"{name} {version}" for name, version in versions.items()))


def _validation(run: Pretrained) -> str:
    """The last validation loss, in units that are comparable."""
    last = {metric: run.last(metric) for metric in _SCORES}
    if last["valid_loss"] is None:
        return "not yet evaluated"
    scores = [_SCORES[name].format(v) for name, v in last.items() if v is not None]
    steps, _ = run.series("valid_loss")
    evaluated = run.config.eval
    part = evaluated.max_batches * evaluated.batch_size * run.model.max_seq_len
    where = f", the first {part:,} tokens at most" if part else ""
    return f"{', '.join(scores)} (update {steps[-1]:,}{where})"
