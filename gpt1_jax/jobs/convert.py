"""The conversion job: a model in another format."""

import dataclasses
from typing import NamedTuple

import jax
from etils import epath

import gpt1_jax
from gpt1_jax.config import (
    ALL,
    DEFAULT,
    MILESTONES,
    ConvertConfig,
    FinetuneConfig,
    ModelConfig,
)
from gpt1_jax.config.saved import load_saved, read_json
from gpt1_jax.data.files import whole_folder, write_whole
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.interop import (
    hugging_face,
    hugging_face_tokenizer,
    openai_shards,
    tokenizer_files,
)
from gpt1_jax.interop.hugging_face import FinetunedHead
from gpt1_jax.interop.names import Sizes, Weights
from gpt1_jax.interop.readme import Export, describe
from gpt1_jax.model.language_model import Params
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.checkpoint_files import saved_steps
from gpt1_jax.runs.console import say
from gpt1_jax.runs.milestones import find_milestones
from gpt1_jax.runs.open import (
    TrainedRun,
    open_run,
    save_params,
    say_what_is_read,
)
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.transforms import describe_room

RUN, HUGGING_FACE, OPENAI = "run", "huggingface", "openai"
# BabyLM's evaluation pads sentences, and begins a word without context with a start
# token. GPT-1 has neither; its texts begin after a newline.
_BABYLM_TOKENS = ("bos_token", "pad_token")


class Source(NamedTuple):
    """A model to convert."""

    model: ModelConfig
    params: Params
    tokenizer: Tokenizer
    head: FinetunedHead | None
    origin: str  # for people
    room: str = ""  # to which inputs of the head were cut, for people
    newline_as: tuple[str, ...] = ()  # special tokens that the newline stands for


def run(config: ConvertConfig, workdir: str) -> None:
    """Writes the model of one folder into a new one, in another format.

    Args:
      config: what to convert, and to which format.
      workdir: the folder to make.

    Raises:
      FileExistsError: if the folder is not empty.
      FileNotFoundError, ImportError, ValueError: if the source lacks a file, is
        damaged, or has a part for which the format has no place.
    """
    target = run_folder.locate_run(workdir)
    run_folder.refuse_used(target)
    folder = run_folder.locate_run(config.init_from)
    kind = find_kind(folder)
    if kind == RUN:
        _from_run(config, folder, target)
    else:
        if config.step != DEFAULT:
            raise UserError(
                f"config.step={config.step!r}, but {folder} is no run folder and has "
                "no steps; leave it out."
            )
        _write(config, _from_other(config, folder, kind), target)
    say(f"Wrote {target} ({config.target}), from {folder}.")


def find_kind(folder: epath.Path) -> str:
    """Which format a folder has, by its files."""
    if (folder / run_folder.CONFIG_FILE).exists():
        values = read_json(folder / run_folder.CONFIG_FILE)
        if "job" in values:
            return RUN
        if "model_type" in values:
            return HUGGING_FACE
    shards = (openai_shards.SHAPES_FILE, openai_shards.shard_file(0))
    if any((folder / name).exists() for name in shards):
        return OPENAI
    raise FileNotFoundError(
        f"config.init_from={str(folder)!r} holds no model: a run folder has a "
        f"{run_folder.CONFIG_FILE} with a job, a Hugging Face folder one with a "
        f"model_type, OpenAI's model/ folder {openai_shards.SHAPES_FILE}."
    )


# --- reading ------------------------------------------------------------------------


def _from_other(config: ConvertConfig, folder: epath.Path, kind: str) -> Source:
    read = openai_shards.read if kind == OPENAI else hugging_face.read
    sizes, params = read(folder)
    options = vars(config.model)
    model = ModelConfig(**options, **sizes.section(), vocab_size=sizes.vocab_size)
    tokenizer = tokenizer_files.read(folder, sizes.vocab_size)
    return Source(model, params, tokenizer, None, config.init_from)


def _from_run(config: ConvertConfig, folder: epath.Path, target: epath.Path) -> None:
    """Exports one step of a run, or several, each into a folder of its own."""
    if config.target == RUN:
        raise UserError(
            f"{folder} is a run folder already; choose configs/convert.py:huggingface "
            "or configs/convert.py:openai."
        )
    kind = load_saved(folder / run_folder.CONFIG_FILE).model.kind
    if kind != "transformer":
        raise UserError(
            f"{folder} holds a model of config.model.kind={kind!r}, for which neither "
            "OpenAI's shards nor transformers' OpenAI-GPT classes have a place; "
            "gpt1_jax.load(FOLDER).params has its parameters."
        )
    if config.step not in _SEVERAL:
        run = open_run(config.init_from, config.step)
        say_what_is_read(run)
        _write(config, _of_run(run, config.init_from), target)
        return
    names = _SEVERAL[config.step](folder)
    newline_as = _BABYLM_TOKENS if config.step == MILESTONES else ()
    with whole_folder(target) as partial:
        for step, name in names.items():
            run = open_run(config.init_from, step)
            if step == min(names):
                say_what_is_read(run, config.step, list(names))
            source = _of_run(run, config.init_from)
            _write(config, source._replace(newline_as=newline_as), partial / name)


def _all_steps(folder: epath.Path) -> dict[int, str]:
    """All saved steps and the names of their folders."""
    steps = saved_steps(folder)
    if not steps:
        raise FileNotFoundError(f"{folder} holds no checkpoint.")
    return {step: f"step-{step}" for step in steps}


def _kept_steps(folder: epath.Path) -> dict[int, str]:
    """The steps kept for good; after words, their folders have BabyLM's names."""
    kept = find_milestones(folder)
    ends = {"words": "", "tokens": "_tokens", "steps": "_steps"}
    return {s: f"chck_{target.short}{ends[target.unit]}" for s, target in kept.items()}


_SEVERAL = {ALL: _all_steps, MILESTONES: _kept_steps}


def _of_run(run: TrainedRun, name: str) -> Source:
    origin = f"step {run.step:,}, {run.why}, of {name}"
    if not isinstance(run.config, FinetuneConfig):
        return Source(run.model, run.params, run.tokenizer, None, origin)
    task, layer = find_task(run.config), run.params["head"]
    head = FinetunedHead(layer["kernel"], layer["bias"], task.transform, task.labels)
    longest = describe_room(task, run.config.data.longest(run.model.max_seq_len))
    params = run.params["transformer"]
    return Source(run.model, params, run.tokenizer, head, origin, longest)


# --- writing ------------------------------------------------------------------------


def _write(config: ConvertConfig, source: Source, target: epath.Path) -> None:
    """Writes one model, whole or not at all."""
    if config.target == RUN:
        model = config.model.with_sizes(source.model)
        resolved = dataclasses.replace(config, model=model)
        save_params(str(target), source.params, source.tokenizer, resolved)
        return
    write = _write_openai if config.target == OPENAI else _write_hugging_face
    with whole_folder(target) as folder:
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(source.params))
        run_folder.check_room(folder, size, "the exported model")
        export = write(source, folder)
        write_whole(folder / "README.md", describe(export))


def _write_hugging_face(source: Source, folder: epath.Path) -> Export:
    to = hugging_face.find_target(source.model, source.params, source.head)
    hugging_face.write(folder, source.model, source.params, to)
    hugging_face_tokenizer.save(
        source.tokenizer, folder, source.model.max_seq_len, source.newline_as
    )
    tokenizer_files.write(source.tokenizer, folder)
    notes = [f"The tokenizer: {hugging_face_tokenizer.limits(source.tokenizer)}"]
    if source.newline_as:
        notes.append(
            f"The newline stands for {' and '.join(source.newline_as)}, so "
            "`skip_special_tokens=True` leaves newlines out."
        )
    if source.model.softmax_rows == "tokens+positions":
        notes.append(
            "The softmax was trained over tokens and positions. The logits of the "
            "tokens are the same here; those of the positions are left out."
        )
    if source.model.embed_dropout_on != "sum" and source.model.embed_dropout > 0:
        notes.append(
            f"Embedding dropout acted on {source.model.embed_dropout_on!r}; in "
            "transformers it acts on the sum. This matters only in training."
        )
    if source.head:
        notes += _inputs(source)
    if to.architecture == hugging_face.CLASSIFIER:
        notes.append("The head's bias is part of its weights: the class has none.")
    return _export(source, to.architecture, tuple(notes))


def _write_openai(source: Source, folder: epath.Path) -> Export:
    if source.head:
        raise UserError(
            "The head and the special tokens of a fine-tuned model have no place in "
            "OpenAI's shards; choose a pre-trained run, or "
            "configs/convert.py:huggingface."
        )
    openai_shards.write(folder, Weights(Sizes.of(source.model), source.params))
    tokenizer_files.write_openai(source.tokenizer, folder)
    notes = (
        (f"OpenAI's two BPE files: the tokenizer is {source.tokenizer.kind!r}.",)
        if source.tokenizer.kind != "gpt1"
        else ()
    )
    return _export(source, "", notes)


def _export(source: Source, architecture: str, notes: tuple[str, ...]) -> Export:
    return Export(
        Sizes.of(source.model),
        source.origin,
        gpt1_jax.__version__,
        source.tokenizer.kind,
        architecture,
        notes,
    )


def _inputs(source: Source) -> tuple[str, ...]:
    """What whoever calls the head must do."""
    start = source.tokenizer.vocab_size
    return (
        f"The tokenizer does not write the special tokens, ids {start} (start), "
        f"{start + 1} (delimiter) and {start + 2} (extract): put start before the "
        "input and extract after it, and delimiter between two texts. The head reads "
        "the state at the extract token.",
        f"The tokenizer does not cut inputs as fine-tuning did, to {source.room} with "
        "special tokens: a text that is too long keeps its beginning, and of a context "
        "with a question only the context is cut. Uncut, other labels may be found.",
    )
