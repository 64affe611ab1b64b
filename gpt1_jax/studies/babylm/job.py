"""The BabyLM job: the challenge's evaluation, and the file that a team submits."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from gpt1_jax.config.checks import MILESTONES, split_paths
from gpt1_jax.data.files import locate, write_whole
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.run_folder import RunFolder
from gpt1_jax.runs.steps import find_milestones, open_steps
from gpt1_jax.studies.babylm.config import BabyLMConfig
from gpt1_jax.studies.babylm.finetuned import BABYLM_SIZES, read_babylm_predictions
from gpt1_jax.studies.babylm.parts import (
    AOA,
    FAST,
    FULL,
    PARTS,
    READING,
    REVISIONS,
    Items,
    load_part,
)
from gpt1_jax.studies.babylm.scores import (
    fast_scores,
    missing_items,
    pipeline_predictions,
    score_part,
)
from gpt1_jax.studies.babylm.table import babylm_table, describe_part
from gpt1_jax.studies.engine import (
    Scored,
    ScoredRun,
    StepScores,
    score_steps,
    write_lines,
)

_ALL = "all"
_BACKEND = "causal"  # as the pipeline calls models that read from left to right
_MAIN = "main"  # the revision of the full set
_SHOWN = 12  # lines shown of what a submission lacks

_Json = dict[str, Any]


def run(config: BabyLMConfig, workdir: str) -> None:
    """Scores the full set at a step and the fast set at the milestones.

    Each score is kept; the same command goes on from there. Missing files are reported,
    and the rest is scored.

    Args:
      config: the run, the sets and tasks, and the folders of fine-tuned runs.
      workdir: the folder to make: results.json, a table, predictions, `results/` as the
        challenge's pipeline writes it, and a submission if nothing is missing.

    Raises:
      FileExistsError: if the folder holds something else.
      FileNotFoundError, UserError: if there is no such run, step, task or data, or the
        folder holds scores of another configuration, other checkpoints or other items.
      Stopped: after a signal, once the scores at hand are saved.
    """
    parts = _select_parts(config)
    finetuned = read_babylm_predictions(
        *map(locate, filter(None, split_paths(config.finetuned_dir)))
    )
    score_steps(
        config,
        workdir,
        title="BabyLM",
        load=functools.partial(_open_runs, parts),
        score=_score,
        describe=describe_part,
        table=babylm_table,
        packages=("jax", "numpy", "scikit-learn", "scipy"),
        results=_by_revision,
        finish=functools.partial(_submit, finetuned),
    )


def _select_parts(config: BabyLMConfig) -> list[str]:
    names = list(PARTS) if config.tasks == (_ALL,) else list(config.tasks)
    for name in names:
        if name not in PARTS:
            raise UserError(
                f"config.tasks names {name!r}; BabyLM's evaluation without training "
                f"has {', '.join(PARTS)}, or {_ALL!r} alone."
            )
    return names


def _open_runs(names: Sequence[str], config: BabyLMConfig) -> list[ScoredRun[Items]]:
    """The run with the full set at one step, and the fast set at the milestones."""
    runs = []
    for chosen in config.sets:
        step = config.step if chosen == FULL else MILESTONES
        opened, steps = open_steps(config.init_from, step, named=True)
        loaded = _load_parts(names, chosen, config, opened)
        if loaded:
            runs.append(ScoredRun(chosen, config.init_from, opened, steps, loaded))
    if not runs:
        raise MissingData(
            "There is no data of any of the tasks; see the lines above, and "
            "--config.data.dir."
        )
    return runs


def _load_parts(
    names: Sequence[str], chosen: str, config: BabyLMConfig, opened: TrainedRun
) -> dict[str, Items]:
    loaded = {}
    for part in (PARTS[name] for name in names if chosen in PARTS[name].folders):
        try:
            loaded[part.name] = load_part(
                part,
                chosen,
                locate(config.data.dir),
                opened.tokenizer,
                opened.model.max_seq_len,
            )
        except MissingData as error:
            say(f"Skipping {part.name} ({chosen}): {error}")
    return loaded


def _score(items: Items, score: Scorer, params: Params) -> Scored:
    """The scores of a part, and a function that writes its predictions."""
    scores, predictions = score_part(items, score, params)
    return scores, write_lines(predictions)


# --- results, files and submission ----------------------------------------------


def _by_revision(scores: StepScores[Items]) -> list[_Json]:
    """All scores, by set and revision."""
    revisions = _revisions(scores)
    return [
        {
            "set": run.name,
            "init_from": run.init_from,
            "checkpoints": [
                {"revision": revisions[run.name, each["step"]], **each}
                for each in scores.of_run(run)
            ],
        }
        for run in scores.runs
    ]


def _submit(
    finetuned: Mapping[str, list[int]],
    folder: epath.Path,
    config: BabyLMConfig,
    scores: StepScores[Items],
) -> None:
    """Writes the pipeline's files, and the submission unless something is missing."""
    revisions = _revisions(scores)
    submission, missing = _collect(folder, config, finetuned, scores, revisions)
    path = folder / f"all_full_preds_and_fast_scores_{_BACKEND}.json"
    if missing:
        more = f"\n- and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        lines = "".join(f"\n- {each}" for each in missing[:_SHOWN])
        say(f"A submission to the track {config.track} would lack:{lines}{more}")
        path.unlink(missing_ok=True)
    else:
        _write_for_pipeline(path, submission)
        say(f"Submission: {path}")


def _revisions(scores: StepScores[Items]) -> dict[tuple[str, int], str]:
    """The name of each step, by set: main, or the milestone's."""
    names = {}
    for run in scores.runs:
        milestones = (
            find_milestones(RunFolder(run.opened.folder)) if run.name == FAST else {}
        )
        for step in scores.steps(run):
            name = milestones[step].revision if milestones else _MAIN
            names[run.name, step] = name
    return names


def _collect(
    folder: epath.Path,
    config: BabyLMConfig,
    finetuned: Mapping[str, list[int]],
    scores: StepScores[Items],
    revisions: Mapping[tuple[str, int], str],
) -> tuple[_Json, list[str]]:
    """Writes `results/` as the pipeline does; the submission, and what it lacks."""
    top = folder / "results" / scores.runs[0].opened.folder.name
    full: _Json = {"glue": {}}
    fast: dict[str, dict[str, _Json]] = {}  # by part and revision
    sizes: dict[tuple[str, str, str], dict[str, int]] = {}  # set, revision, part
    words: list[_Json] = []  # for the age of acquisition
    for run in scores.runs:
        for checkpoint in scores.of_run(run):
            step = checkpoint["step"]
            revision = revisions[run.name, step]
            for name, items in run.tasks.items():
                predictions = scores.predictions(run, step, name)
                if name == AOA:
                    words += _aoa_rows(predictions, revision)
                    sizes[FAST, revision, AOA] = {AOA: len(predictions)}
                    continue
                part = PARTS[name]
                found = pipeline_predictions(part, predictions)
                place = top / revision / "zero_shot" / _BACKEND / part.pipeline_task
                if name != READING:
                    place /= part.folders[run.name]
                _write_for_pipeline(place / "predictions.json", found)
                sizes[run.name, revision, name] = {
                    subset: len(each["predictions"]) for subset, each in found.items()
                }
                if run.name == FULL:
                    full[name] = found
                else:
                    of_part = fast.setdefault(name, {})
                    of_part[revision] = fast_scores(
                        items, checkpoint["tasks"][name], predictions
                    )
    if words:
        full[AOA] = {"metadata": {"model_name": top.name}, "results": words}
        place = top / _MAIN / "zero_shot" / _BACKEND / PARTS[AOA].pipeline_task
        _write_for_pipeline(place / "surprisal.json", full[AOA])
    for task, labels in finetuned.items():
        lines = [{"id": f"{task}_{i}", "pred": label} for i, label in enumerate(labels)]
        found = {task: {"predictions": lines}}
        place = top / _MAIN / "finetune" / task
        _write_for_pipeline(place / "predictions.json", found)
        full["glue"].update(found)
    needed = REVISIONS[config.track]
    full["fast_eval_results"] = {
        name: [found[revision] for revision in needed if revision in found]
        for name, found in fast.items()
    }
    return full, _missing(sizes, finetuned, needed)


def _write_for_pipeline(path: epath.Path, value: _Json) -> None:
    """Writes JSON as the pipeline does: Python's dialect, with NaN where it has NaN."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def _aoa_rows(predictions: Sequence[_Json], revision: str) -> list[_Json]:
    """Surprisal of words at a milestone, as the pipeline writes it."""
    amount = revision.removeprefix("chck_").removesuffix("M")
    count = int(amount) * 10**6 if amount.isdigit() else None
    return [
        {
            "step": revision,
            "word_count": count,
            **{key: value for key, value in each.items() if key != "subset"},
        }
        for each in predictions
    ]


def _missing(
    sizes: Mapping[tuple[str, str, str], Mapping[str, int]],
    finetuned: Mapping[str, list[int]],
    needed: Sequence[str],
) -> list[str]:
    """Lists what a submission lacks, a line for each."""
    lines = [
        f"{name}: {problem}"
        for name, part in PARTS.items()
        if FULL in part.folders
        and (problem := missing_items(part, False, sizes.get((FULL, _MAIN, name), {})))
    ]
    for revision in needed:
        own = {part: found for (_, r, part), found in sizes.items() if r == revision}
        if not own:
            lines.append(f"{revision}: no milestone of this name was scored")
            continue
        lines += [
            f"{revision}, {name}: {problem}"
            for name, part in PARTS.items()
            if FAST in part.folders
            and (problem := missing_items(part, True, own.get(name, {})))
        ]
    for task, size in BABYLM_SIZES.items():
        if (count := len(finetuned.get(task, ()))) != size:
            lines.append(f"fine-tuned {task}: {count:,} items instead of {size:,}")
    return lines
