"""The BabyLM job: the challenge's evaluation, and the file that a team submits."""

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from gpt1_jax.config.checks import MILESTONES, split_paths
from gpt1_jax.data.files import locate, write_whole
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.report.studies import Study
from gpt1_jax.report.study_scores import draw_scores, scores_table
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
from gpt1_jax.studies.engine import KeptScores, ScoredRun, score_steps

_ALL = "all"
_BACKEND = "causal"  # as the pipeline calls models that read from left to right
_MAIN = "main"  # the revision of the full set
_SHOWN = 12  # lines shown of what a submission lacks
_TITLES = {
    "blimp": "BLiMP",
    "blimp_supplement": "BLiMP supplement",
    "ewok": "EWoK",
    "entity_tracking": "entity tracking",
    "wug_adj": "WUG, adjectives",
    "wug_past": "WUG, past tense",
    "comps": "COMPS",
    READING: "reading, eye tracking",
    AOA: "words of AoA, nats",
}
_SELF_PACED = "reading, self-paced"
_NOTE = (
    "Accuracy x 100 as a mean over subsets, where answers that tie share the point; "
    "WUG: Spearman's correlation with people x 100; reading: the share of the variance "
    "x 100 that surprisal takes away; AoA: the mean surprisal of its words."
)

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
    load = functools.partial(_open_runs, parts)
    _submit(finetuned, config, score_steps(STUDY, config, workdir, load))


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
        revisions = dict.fromkeys(steps, _MAIN)
        if chosen == FAST:
            found = find_milestones(RunFolder(opened.folder))
            revisions = {step: found[step].revision for step in steps}
        if loaded := _load_parts(names, chosen, config, opened):
            runs.append(
                ScoredRun(chosen, config.init_from, opened, steps, loaded, revisions)
            )
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


def _score(
    config: BabyLMConfig, items: Items, score: Scorer, params: Params
) -> tuple[_Json, list[_Json]]:
    """The scores of a part, and its predictions."""
    del config
    return score_part(items, score, params)


def _rows(part: str, scores: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for a part; two for reading."""
    row = {"task": _TITLES[part], "score": scores["score"], "error": math.nan}
    yield row
    if "self_paced" in scores:
        yield {**row, "task": _SELF_PACED, "score": 100 * scores["self_paced"]}


def _table(scores: Any, config: BabyLMConfig) -> str:
    del config
    return f"{scores_table(scores, ['task'], digits=2)}\n\n{_NOTE}\n"


def _figure(scores: Any) -> Any:
    return draw_scores(scores, "task", "score", panels=True, share=False)


STUDY = Study("BabyLM", _score, _rows, _table, _figure, heading="BabyLM's evaluation")


# --- files and submission -------------------------------------------------------


def _submit(
    finetuned: Mapping[str, list[int]], config: BabyLMConfig, scores: KeptScores[Items]
) -> None:
    """Writes the pipeline's files, and the submission unless something is missing."""
    submission, missing = _collect(finetuned, config, scores)
    path = scores.folder / f"all_full_preds_and_fast_scores_{_BACKEND}.json"
    if missing:
        more = f"\n- and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        lines = "".join(f"\n- {each}" for each in missing[:_SHOWN])
        say(f"A submission to the track {config.track} would lack:{lines}{more}")
        path.unlink(missing_ok=True)
    else:
        _write_for_pipeline(path, submission)
        say(f"Submission: {path}")


def _collect(
    finetuned: Mapping[str, list[int]], config: BabyLMConfig, scores: KeptScores[Items]
) -> tuple[_Json, list[str]]:
    """Writes `results/` as the pipeline does; the submission, and what it lacks."""
    top = scores.folder / "results" / scores.runs[0].opened.folder.name
    full: _Json = {"glue": {}}
    fast: dict[str, dict[str, _Json]] = {}  # by part and revision
    sizes: dict[tuple[str, str, str], dict[str, int]] = {}  # set, revision, part
    words: list[_Json] = []  # for the age of acquisition
    for run in scores.runs:
        for checkpoint in scores.of_run(run):
            step, revision = checkpoint["step"], checkpoint["revision"]
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
