"""The interventions job: which heads, layers and positions a choice depends on."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.report.studies import Study
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.studies.answers import AnswersTask
from gpt1_jax.studies.engine import ScoredRun, runs_and_baselines, score_steps
from gpt1_jax.studies.interventions.config import InterventionsConfig
from gpt1_jax.studies.interventions.effects import Effects, find_effects
from gpt1_jax.studies.interventions.figure import draw_effects
from gpt1_jax.studies.interventions.prompts import Prompts, load_prompts
from gpt1_jax.studies.interventions.table import effects_tables
from gpt1_jax.studies.pairs import fetch_pairs, select_pairs


def run(config: InterventionsConfig, workdir: str) -> None:
    """Replaces each component of a run at some steps, and of a baseline, in turn.

    Each score is kept; the same command goes on from there.

    Args:
      config: the runs, their steps, the pairs and what replaces components.
      workdir: the folder to make: results.json, tables, predictions, and a plot beside
        the effects as a table.

    Raises:
      FileNotFoundError, UserError: if there is no such run, step, paradigm or data, a
        run is an LSTM, or a pair cannot be used.
      FileExistsError, UserError, Stopped: as `score_steps`.
    """
    tasks = select_pairs(config.tasks, config.data)
    if config.data.source == "hub":
        tasks = fetch_pairs(tasks)
    load = runs_and_baselines(functools.partial(_load, tasks))
    score_steps(STUDY, config, workdir, load)


def _load(
    tasks: Sequence[AnswersTask],
    config: InterventionsConfig,
    run: TrainedRun,
    _: Sequence[ScoredRun[Prompts]],
) -> dict[str, Prompts]:
    """The pairs of each task by name; no task is ever left out."""
    if run.model.kind != "transformer":
        raise UserError(
            f"{run.folder} is of config.model.kind={run.model.kind!r}, which has one "
            "layer and no heads to compare; name a Transformer. model.forward edits "
            "the activations of both kinds."
        )
    return {
        task.task.name: load_prompts(
            task, config.data, run.tokenizer, run.model.max_seq_len
        )
        for task in tasks
    }


def _score(
    config: InterventionsConfig, prompts: Prompts, scorer: Scorer, params: Params
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The effects of each component; for each pair, D and the effects of heads."""
    effects = find_effects(
        scorer.model,
        scorer.vocab_size,
        params,
        prompts.pairs,
        prompts.clean,
        method=config.method,
        num_positions=config.positions,
        batch_tokens=config.batch_tokens,
    )
    return {"effects": [*effect_rows(effects)]}, [*_lines(prompts, effects)]


def effect_rows(effects: Effects) -> Iterator[dict[str, Any]]:
    """Means over pairs, ready for JSON: a row for each component.

    "kind" is "base" or "clean" (D as it is), "lens" (D as the state h_`layer` has it),
    or "head", "attention", "mlp" and "position", whose "effect" is the change of D when
    that component is replaced. "layer" counts from 0, as does "number", of a head or of
    positions back. "chosen" is the mean over every other pair, from the first, by which
    heads are chosen to be shown; "held_out" is the mean over the other pairs.
    """
    base = effects.base[:, None]
    by_kind = {
        "base": base,
        "clean": effects.clean[:, None],
        "lens": effects.lens,
        "attention": effects.attention - base,
        "mlp": effects.mlp - base,
        "head": effects.heads - base[..., None],
        "position": effects.positions - base[..., None],
    }
    for kind, values in by_kind.items():
        for place in np.ndindex(values.shape[1:]):
            layer, number = (*place, 0)[:2]
            own = values[:, *place]
            yield {
                "kind": kind,
                "layer": layer,
                "number": number,
                **_mean("effect", "standard_error", own),
                **_mean("chosen", "chosen_error", own[::2]),
                **_mean("held_out", "held_out_error", own[1::2]),
                "n": int(np.isfinite(own).sum()),
            }


def _mean(name: str, error_name: str, values: np.ndarray) -> dict[str, float | None]:
    """The mean of numbers and its standard error; None if there is none."""
    real = values[np.isfinite(values)].astype(np.float64)
    if not len(real):
        return {name: None, error_name: None}
    return {name: float(real.mean()), error_name: float(real.std() / len(real) ** 0.5)}


def _lines(prompts: Prompts, effects: Effects) -> Iterator[dict[str, Any]]:
    """A record for each pair: what it is, D, and the effect of each head."""
    heads = effects.heads - effects.base[:, None, None]
    for number, example in enumerate(prompts.examples):
        yield {
            "id": example.id,
            "subset": example.subset,
            "text": [*example.text, *example.choices],
            "base": float(effects.base[number]),
            "clean": float(effects.clean[number]),
            "heads": heads[number].round(6).tolist(),
        }


def _rows(task: str, scores: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of effects; NaN where there is no number."""
    for effect in scores["effects"]:
        row = {key: math.nan if v is None else v for key, v in effect.items()}
        score, error = row.pop("effect"), row.pop("standard_error")
        yield {"task": task, "score": score, "error": error, **row}


STUDY = Study(
    "interventions",
    _score,
    _rows,
    lambda scores, config: effects_tables(scores, config.method),
    draw_effects,
    packages=("jax", "numpy"),
    heading="Interventions",
)
