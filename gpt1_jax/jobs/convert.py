"""The conversion job: writes a model in another format.

The model comes from a run folder, OpenAI's `model/` folder or a Hugging Face folder,
and becomes one of the three. Exported folders hold a README and a copy of the tokenizer
in our own format, from which any tokenizer can be restored bit for bit. One for
transformers can be pushed to the Hugging Face Hub.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from etils import epath

import gpt1_jax
from gpt1_jax.config import ModelConfig
from gpt1_jax.config.checks import ALL, BEST, DEFAULT, MILESTONES
from gpt1_jax.config.convert import ConvertConfig
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.saved import load_saved
from gpt1_jax.data.files import (
    create,
    files_below,
    sha256,
    whole_folder,
    write_json,
    write_whole,
)
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.calibration import TEMPERATURE, calibrated
from gpt1_jax.finetuning.results import labelled_split, results_of_step
from gpt1_jax.interop import (
    foreign,
    hugging_face,
    hugging_face_tokenizer,
    openai,
    publish,
)
from gpt1_jax.interop.foreign import OPENAI, OPENAI_BPE_FILES, RUN, TOKENIZER_FOLDER
from gpt1_jax.interop.hugging_face import FinetunedHead
from gpt1_jax.interop.names import Sizes
from gpt1_jax.interop.trajectory import TRAJECTORY_FILE, describe_trajectory
from gpt1_jax.model.costs import describe_model
from gpt1_jax.model.language_model import Params
from gpt1_jax.report.markdown import counted
from gpt1_jax.report.tables import spread
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.checkpoint_files import best_step, saved_metadata
from gpt1_jax.runs.checkpoints import refuse_name
from gpt1_jax.runs.console import say
from gpt1_jax.runs.milestones import read_milestone
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.outputs import refuse_used
from gpt1_jax.runs.pretrained import read_pretrained
from gpt1_jax.runs.saved_steps import each_step, open_steps
from gpt1_jax.tasks.metrics import METRICS
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.task import Task
from gpt1_jax.tasks.transforms import describe_room, output_names

# Names that show, before any work, that a folder already holds an export. Folders of
# steps and other files are found later, once they are made.
_EXPORTED = {
    "README.md",
    run_folder.CONFIG_FILE,
    TRAJECTORY_FILE,
    TOKENIZER_FOLDER,
    openai.SHAPES_FILE,
    hugging_face.WEIGHTS_FILE,
}


def run(config: ConvertConfig, workdir: str) -> None:
    """Writes the model of one folder into a new one, in another format.

    With `push_to`, the folder may be there from the same command.

    Raises:
      FileExistsError: if the folder holds files of a run or an export.
      FileNotFoundError, ImportError, ValueError: if the folder to convert lacks a file,
        is damaged, or has a part for which the format has no place; or if it cannot be
        pushed.
      TryAgain, Stopped: if the Hub does not answer, or a signal ends the push.
    """
    target = run_folder.locate_run(workdir)
    if not config.push_to:
        _convert(config, target)
        return
    publish.check_push(config, target)
    if publish.is_made(target, config):
        say(
            f"{target} was made by this command before and is pushed as it is; remove "
            "it to convert a newer state."
        )
    else:
        _convert(config, target)
    publish.push(target, config)


def _convert(config: ConvertConfig, target: epath.Path) -> None:
    refuse_used(target, run_folder.NAMES if config.target == RUN else _EXPORTED)
    if config.target == RUN:
        refuse_name(target, to_save=True)
    folder = run_folder.locate_run(config.init_from)
    if foreign.find_format(folder) == RUN:
        _convert_run(config, folder, target)
    else:
        _convert_foreign(config, folder, target)
    say(f"Wrote {target} ({config.target}), from {folder}.")


# --- from a run ---


def _convert_run(config: ConvertConfig, folder: epath.Path, target: epath.Path) -> None:
    """Exports one step of a run, or several, each into a folder of its own."""
    if config.target == RUN:
        raise UserError(
            f"{folder} is a run folder already; choose configs/convert.py:huggingface "
            "or configs/convert.py:openai."
        )
    saved = load_saved(folder / run_folder.CONFIG_FILE)
    if not hasattr(saved, "model"):
        raise UserError(
            f"{folder} holds the output of the job {saved.job!r}, no model; name the "
            "run folder that it read."
        )
    if saved.model.kind != "transformer":
        raise UserError(
            f"{folder} holds a model of config.model.kind={saved.model.kind!r}, for "
            "which neither OpenAI's shards nor transformers' OpenAI-GPT classes have a "
            "place; gpt1_jax.load(FOLDER).params has its parameters."
        )
    first, steps = open_steps(config.init_from, config.step, named=True)
    places: dict[int, str] = {}
    exported: dict[int, Mapping[str, Any]] = {}
    branches: dict[str, str] = {}
    with whole_folder(target, beside_others=True) as partial:
        for trained in each_step(first, steps):
            place, branch = _place(config.step, trained)
            _export_run(config, trained, partial / place)
            places[trained.step] = place
            exported[trained.step] = trained.metadata
            if config.push_to:
                publish.add_metadata(partial / place, config, trained, branch)
                branches[branch or publish.MAIN] = place
        _write_trajectory(folder, partial, places, exported)
        if config.push_to:
            best = best_step(folder) if first.config.default_step == BEST else None
            main = places[best if best in places else max(places)]
            publish.write_record(partial, config, {**branches, publish.MAIN: main})


def _place(asked: str, trained: TrainedRun) -> tuple[str, str]:
    """The folder to make for a step and its branch of the Hub, "" for the only step.

    Milestones after words or tokens have the names that BabyLM's evaluation asks for.
    The branches of other steps are called step1000, as Pythia has them.
    """
    milestone, branch = read_milestone(trained.metadata), f"step{trained.step}"
    if asked == MILESTONES and milestone:
        name = milestone.revision
        return name, branch if milestone.unit == "steps" else name
    return (f"step-{trained.step}", branch) if asked == ALL else ("", "")


def _write_trajectory(
    folder: epath.Path,
    target: epath.Path,
    places: Mapping[int, str],
    exported: Mapping[int, Mapping[str, Any]],
) -> None:
    """Writes the table that maps exported states to the steps of their training.

    It lists all saved steps of a pre-training run, and the files of those exported. The
    folder of each step gets a copy, as it may become a separate branch. `places` are
    the folders below `target` and `exported` the metadata of each exported step, which
    may have been deleted since.
    """
    run = read_pretrained(folder)
    if run is None:
        return
    saved = {**saved_metadata(folder), **exported}
    table = describe_trajectory(run, dict(sorted(saved.items())))
    for step, name in places.items():
        said = table["steps"][str(step)]
        said |= {
            "name": name or said["name"],
            "files": {
                file.relative_to(target / name).as_posix(): sha256(file)
                for file in sorted(files_below(target / name))
            },
        }
    for place in {target, *(target / name for name in places.values())}:
        write_json(place / TRAJECTORY_FILE, table)


def _export_run(config: ConvertConfig, trained: TrainedRun, target: epath.Path) -> None:
    """Exports one saved step of a run, with its head if it is fine-tuned."""
    head: FinetunedHead | None = None
    use, longest = "", 0
    if isinstance(trained.config, FinetuneConfig):
        trained = calibrated(trained)
        task, layer = find_task(trained.config), trained.params["head"]
        head = FinetunedHead(
            layer["kernel"],
            layer["bias"],
            task.inputs.transform,
            output_names(task),
            task.target.multilabel,
        )
        longest = trained.config.data.longest(trained.model.max_seq_len)
        use = _describe_use(task, trained, longest)
    _export(
        config,
        target,
        trained.model,
        trained.language_model,
        trained.tokenizer,
        f"step {trained.step:,}, {trained.why}, of {_origin(config)}",
        head,
        longest,
        use,
    )


def _origin(config: ConvertConfig) -> str:
    """The folder to convert, for the README; of one to publish, its name alone."""
    path = config.init_from
    return os.path.basename(os.path.abspath(path)) if config.push_to else path


# --- from another format ---


def _convert_foreign(
    config: ConvertConfig, folder: epath.Path, target: epath.Path
) -> None:
    """Converts a folder in OpenAI's or Hugging Face's format."""
    if config.step != DEFAULT:
        raise UserError(
            f"config.step={config.step!r}, but {folder} is no run folder and has "
            "no steps; leave it out."
        )
    if config.target == RUN:
        notes = foreign.make_run(config, os.fspath(target))
    else:
        model, params, tokenizer, notes = foreign.read_model(folder, config.model)
        with whole_folder(target, beside_others=True) as partial:
            _export(config, partial, model, params, tokenizer, _origin(config))
            if config.push_to:
                publish.add_metadata(partial, config)
                publish.write_record(partial, config, {publish.MAIN: ""})
    for note in notes:
        say(note)


# --- into another format ---


def _export(
    config: ConvertConfig,
    target: epath.Path,
    model: ModelConfig,
    params: Params,
    tokenizer: Tokenizer,
    origin: str,
    head: FinetunedHead | None = None,
    longest: int = 0,
    use: str = "",
) -> None:
    """Writes one folder for OpenAI's code or transformers, whole or not at all.

    Its README tells the origin, and how to `use` the head. The tokenizer cuts inputs,
    when asked to, to the `longest` that it was trained on; 0: to those of the model.
    """
    for_babylm = config.step == MILESTONES
    with whole_folder(target) as folder:
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
        run_folder.check_room(folder, size, "the exported model")
        if config.target == OPENAI:
            architecture = ""
            notes = _write_openai(folder, model, params, tokenizer, head)
        else:
            hugging_face_tokenizer.write_tokenizer(  # first: it may refuse
                tokenizer,
                folder,
                longest or model.max_seq_len,
                for_babylm,
                head is not None,
            )
            architecture = hugging_face.write_model(folder, model, params, head)
            tokenizer.save(folder / TOKENIZER_FOLDER)
            notes = _transformers_notes(model, tokenizer, for_babylm)
            if architecture == hugging_face.CLASSIFIER:
                notes.append(
                    "The head's bias is part of its weights: the class has none."
                )
        readme = describe_export(
            model, origin, tokenizer.kind, architecture, notes, use
        )
        write_whole(folder / "README.md", readme)


def _write_openai(
    folder: epath.Path,
    model: ModelConfig,
    params: Params,
    tokenizer: Tokenizer,
    head: FinetunedHead | None,
) -> list[str]:
    """Writes shards and tokenizer; returns what is missing, for the README."""
    if head:
        raise UserError(
            "The head and the special tokens of a fine-tuned model have no place in "
            "OpenAI's shards; choose a pre-trained run, or "
            "configs/convert.py:huggingface."
        )
    openai.write_shards(folder, Sizes.of(model), params)
    tokenizer.save(folder / TOKENIZER_FOLDER)
    if tokenizer.kind != "gpt1":
        return [f"OpenAI's two BPE files: the tokenizer is {tokenizer.kind!r}."]
    for name in OPENAI_BPE_FILES:
        create(folder / name, (folder / TOKENIZER_FOLDER / name).read_bytes())
    return []


# --- the README of an exported folder ---

_LOADING = """\
    from transformers import {loader}, AutoTokenizer

    model = {loader}.from_pretrained("THIS_FOLDER")
    tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
"""
_CLASSIFYING = """\
    from transformers import pipeline

    classify = pipeline("text-classification", "THIS_FOLDER")
    classify({given}, truncation=True, top_k=None)

"""
_LOADING_SHARDS = """\
The layout is that of `model/` in openai/finetune-transformer-lm: ten shards
of one flat vector, whose tensors `params_shapes.json` lists.
"""
_LOADING_HERE = """
In gpt1_jax:

    python -m gpt1_jax.main --config=configs/convert.py:run \\
        --config.init_from=THIS_FOLDER --workdir=NEW_RUN_FOLDER
"""
_ALWAYS = "The optimizer's state and the configuration of the run are left out."


def describe_export(
    model: ModelConfig,
    origin: str,
    tokenizer_kind: str,
    architecture: str = "",
    notes: Sequence[str] = (),
    use: str = "",
) -> str:
    """The README in Markdown: contents, origin, how to load the folder, what is absent.

    Args:
      model: the model.
      origin: "step 1,200, the newest, of runs/pretrain/small"
      tokenizer_kind: as in `Tokenizer.kind`.
      architecture: the class of transformers; "" in OpenAI's format.
      notes: what could not be carried over.
      use: how to use a fine-tuned head.
    """
    is_language_model = architecture in ("", hugging_face.LANGUAGE_MODEL)
    loader = "AutoModelForCausalLM" if is_language_model else architecture
    loading = (_LOADING if architecture else _LOADING_SHARDS).format(loader=loader)
    if is_language_model:  # heads are not read back
        loading += _LOADING_HERE
    lines = "".join(f"- {note}\n" for note in (*notes, _ALWAYS))
    return (
        f"# A GPT-1 from gpt1_jax\n\n"
        f"A language model after Radford et al. (2018):\n{describe_model(model)}; "
        f"{counted(model.num_heads, 'head')}, {model.max_seq_len} positions, "
        f"{model.vocab_size:,} tokens.\n\n"
        f"Exported by gpt1_jax {gpt1_jax.__version__} from {origin}.\n"
        f"Tokenizer: {tokenizer_kind}.\n\n"
        f"## Load it\n\n{loading}\n{use}"
        f"## What is left out\n\n{lines}"
    )


def _transformers_notes(
    model: ModelConfig, tokenizer: Tokenizer, for_babylm: bool
) -> list[str]:
    """How the exported language model and tokenizer differ from ours."""
    limits = hugging_face_tokenizer.tokenizer_limits(tokenizer, for_babylm)
    notes = [f"The tokenizer: {limits}"]
    if model.softmax_rows == "tokens+positions":
        notes.append(
            "The softmax was trained over tokens and positions. The logits of the "
            "tokens are the same here; those of the positions are left out."
        )
    if model.embed_dropout_on != "sum" and model.embed_dropout > 0:
        notes.append(
            f"Embedding dropout acted on {model.embed_dropout_on!r}; in "
            "transformers it acts on the sum. This matters only in training."
        )
    return notes


def _describe_use(task: Task, trained: TrainedRun, max_seq_len: int) -> str:
    """The README on the head: how to call it, its labels, its score, its cuts."""
    names, formats = output_names(task), task.inputs.formats
    code, notes = "", []
    if not task.inputs.choices:
        columns = [f"{{{column}}}" for column in task.inputs.text]
        given, *pair = (
            json.dumps(text, ensure_ascii=False) for text in formats or columns
        )
        if pair:
            given = f'{{"text": {given}, "text_pair": {pair[0]}}}'
        code = _CLASSIFYING.format(given=given)
        notes.append("Braces stand for columns of the examples.")
    if names:
        notes.append(f"Labels: {', '.join(map(repr, names))}.")
    if task.target.multilabel:
        notes.append("Each label with a score of at least 0.5 applies to the text.")
    elif names and not task.target.labels:
        notes.append(
            "The score is the mean of the labels, which are numbers, weighted by the "
            "softmax of the outputs."
        )
    notes += _score_notes(task, trained)
    if formats:
        is_or_are = "The text is" if len(formats) == 1 else "The two texts are"
        notes.append(f"{is_or_are} {' and '.join(map(repr, formats))}.")
    start = trained.tokenizer.vocab_size
    notes.append(
        f"The tokenizer puts the special tokens, ids {start} (start), {start + 1} "
        f"(delimiter) and {start + 2} (extract), before an input, between two texts "
        "and after it, unless `add_special_tokens=False`. The head reads the state at "
        "the extract token. Padding comes after it and consists of start tokens."
    )
    notes.append(_describe_cuts(task, trained.model.max_seq_len, max_seq_len))
    lines = "".join(f"- {note}\n" for note in notes)
    return f"## Use it\n\n{code}{lines}\n"


def _score_notes(task: Task, trained: TrainedRun) -> list[str]:
    """The score of the exported step, if its run has finished, and its temperature."""
    results = results_of_step(trained.folder, trained.step)
    if results is None:
        return []
    metric, notes = task.metrics[0], []
    split = labelled_split(results)
    scores = results[split]
    if (value := scores.get(metric)) is not None:
        shown = spread([METRICS[metric].shown(value)], metric)
        notes = [f"Score on {scores['n']:,} {split} examples: {metric} {shown}."]
    if TEMPERATURE in results:
        notes.append(
            "The probabilities are calibrated: the outputs are divided by the "
            f"temperature {results[TEMPERATURE]:.3g}, fitted on the dev split."
        )
    return notes


def _describe_cuts(task: Task, num_positions: int, max_seq_len: int) -> str:
    """How inputs that are too long are cut, here and in fine-tuning."""
    room = f"{describe_room(task, max_seq_len)} with special tokens"
    if task.inputs.choices:
        return (
            f"Fine-tuning cut inputs to {room}: a text that is too long keeps its "
            "beginning, and of a context with a question only the context is cut. The "
            "tokenizer does not, and such inputs may get other answers."
        )
    cuts = (
        "`truncation=True` cuts inputs that are too long. Without it, more than "
        f"{num_positions} tokens end in an error."
    )
    if task.inputs.transform == "single" or task.inputs.cut_longer:
        return f"{cuts} As in fine-tuning, {room} are left."
    return (
        f"{cuts} It cuts the longer of two texts until {max_seq_len} tokens are left, "
        f"but fine-tuning cut inputs to {room}: a pair with a longer text may get "
        "another label than from gpt1_jax."
    )
