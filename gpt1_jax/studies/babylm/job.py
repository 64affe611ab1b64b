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
from gpt1_jax.report.studies import Study
from gpt1_jax.report.study_scores import draw_scores, scores_table
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.run_folder import RunFolder
from gpt1_jax.runs.saved_steps import find_milestones, open_steps
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
    Part,
    load_part,
    subset_sizes,
)
from gpt1_jax.studies.babylm.scores import (
    aoa_rows,
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
    "x 100 that surprisal explains; AoA: the mean surprisal of its words."
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
      FileNotFoundError, UserError: if there is no such run, step, task or data.
      FileExistsError, UserError, Stopped: as `score_steps`.
    """
    parts = _select_parts(config)
    finetuned = read_babylm_predictions(
        *map(locate, filter(None, split_paths(config.finetuned_dir)))
    )
    load = functools.partial(_open_runs, parts)
    _submit(finetuned, config, score_steps(STUDY, config, workdir, load))


def _select_parts(config: BabyLMConfig) -> list[Part]:
    names = list(PARTS) if config.tasks == (_ALL,) else list(config.tasks)
    for name in names:
        if name not in PARTS:
            raise UserError(
                f"config.tasks names {name!r}; BabyLM's evaluation without training "
                f"has {', '.join(PARTS)}, or {_ALL!r} alone."
            )
    return [PARTS[name] for name in names]


def _open_runs(parts: Sequence[Part], config: BabyLMConfig) -> list[ScoredRun[Items]]:
    """The run with the full set at one step, and the fast set at the milestones."""
    runs = []
    for chosen in config.sets:
        step = config.step if chosen == FULL else MILESTONES
        opened, steps = open_steps(config.init_from, step, named=True)
        revisions = dict.fromkeys(steps, _MAIN)
        if chosen == FAST:
            found = find_milestones(RunFolder(opened.folder))
            revisions = {step: found[step].revision for step in steps}
        if loaded := _load_parts(parts, chosen, config, opened):
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
    parts: Sequence[Part], chosen: str, config: BabyLMConfig, opened: TrainedRun
) -> dict[str, Items]:
    data, max_seq_len = locate(config.data.dir), opened.model.max_seq_len
    loaded = {}
    for part in (each for each in parts if chosen in each.folders):
        try:
            loaded[part.name] = load_part(
                part, chosen, data, opened.tokenizer, max_seq_len
            )
        except MissingData as error:
            say(f"Skipping {part.name} ({chosen}): {error}")
    return loaded


def _rows(part: str, scores: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for a part; two for reading."""
    row = {"task": _TITLES[part], "score": scores["score"], "error": math.nan}
    yield row
    if "self_paced" in scores:
        yield {**row, "task": _SELF_PACED, "score": 100 * scores["self_paced"]}


def _table(scores: Any, _: BabyLMConfig) -> str:
    return f"{scores_table(scores, ['task'], digits=2)}\n\n{_NOTE}\n"


def _figure(scores: Any) -> Any:
    return draw_scores(scores, "task", "score", panels=True, share=False)


STUDY = Study(
    "BabyLM",
    lambda _, items, score, params: score_part(items, score, params),
    _rows,
    _table,
    _figure,
    heading="BabyLM's evaluation",
)


# --- files and submission -------------------------------------------------------


def _submit(
    finetuned: Mapping[str, list[int]], config: BabyLMConfig, scores: KeptScores[Items]
) -> None:
    """Writes the pipeline's files, and the submission unless something is missing."""
    submission = _write_results(finetuned, config, scores)
    missing = list(_missing(finetuned, config, scores))
    path = scores.folder / f"all_full_preds_and_fast_scores_{_BACKEND}.json"
    if missing:
        more = f"\n- and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        lines = "".join(f"\n- {each}" for each in missing[:_SHOWN])
        say(f"A submission to the track {config.track} would lack:{lines}{more}")
        path.unlink(missing_ok=True)
    else:
        _write_for_pipeline(path, submission)
        say(f"Submission: {path}")


def _write_results(
    finetuned: Mapping[str, list[int]], config: BabyLMConfig, scores: KeptScores[Items]
) -> _Json:
    """Writes `results/` as the pipeline does, and returns the submission."""
    top = scores.folder / "results" / scores.runs[0].opened.folder.name
    submission: _Json = {"glue": {}}
    fast: dict[str, dict[str, _Json]] = {}  # by part and revision
    words: list[_Json] = []  # for the age of acquisition
    for run in scores.runs:
        for checkpoint in scores.of_run(run):
            revision = checkpoint["revision"]
            for name, items in run.tasks.items():
                predictions = scores.predictions(run, checkpoint["step"], name)
                if name == AOA:
                    words += aoa_rows(predictions, revision)
                    continue
                part = PARTS[name]
                found = pipeline_predictions(predictions)
                place = top / revision / "zero_shot" / _BACKEND / part.pipeline_task
                if name != READING:
                    place /= part.folders[run.name]
                _write_for_pipeline(place / "predictions.json", found)
                if run.name == FULL:
                    submission[name] = found
                else:
                    fast.setdefault(name, {})[revision] = fast_scores(
                        items, checkpoint["tasks"][name], predictions
                    )
    if words:
        submission[AOA] = {"metadata": {"model_name": top.name}, "results": words}
        place = top / _MAIN / "zero_shot" / _BACKEND / PARTS[AOA].pipeline_task
        _write_for_pipeline(place / "surprisal.json", submission[AOA])
    for task, labels in finetuned.items():
        lines = [{"id": f"{task}_{i}", "pred": label} for i, label in enumerate(labels)]
        found = {task: {"predictions": lines}}
        place = top / _MAIN / "finetune" / task
        _write_for_pipeline(place / "predictions.json", found)
        submission["glue"].update(found)
    submission["fast_eval_results"] = {
        name: [found[each] for each in REVISIONS[config.track] if each in found]
        for name, found in fast.items()
    }
    return submission


def _write_for_pipeline(path: epath.Path, value: _Json) -> None:
    """Writes JSON as the pipeline does: Python's dialect, with NaN where it has NaN."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def _missing(
    finetuned: Mapping[str, list[int]], config: BabyLMConfig, scores: KeptScores[Items]
) -> Iterator[str]:
    """What a submission lacks, a line for each."""
    scored: dict[str, Mapping[str, Items]] = {_MAIN: {}}
    for run in scores.runs:
        scored |= {run.revisions[step]: run.tasks for step in scores.steps(run)}
    for revision in (_MAIN, *REVISIONS[config.track]):
        if revision not in scored:
            yield f"{revision}: no milestone of this name was scored"
            continue
        chosen = FULL if revision == _MAIN else FAST
        for name, part in PARTS.items():
            sizes = subset_sizes(scored[revision].get(name))
            problem = missing_items(part, chosen == FAST, sizes)
            if problem and chosen in part.folders:
                yield f"{revision}, {name}: {problem}"
    for task, size in BABYLM_SIZES.items():
        if (count := len(finetuned.get(task, ()))) != size:
            yield f"fine-tuned {task}: {count:,} items instead of {size:,}"
