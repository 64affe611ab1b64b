"""A page to look inside models: one HTML file with its data, style and script."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import markupsafe
import numpy as np

from gpt1_jax.data.words import Word
from gpt1_jax.report.markdown import counted
from gpt1_jax.report.page import read_template, templates
from gpt1_jax.studies.explore.inside import Inside

_PACKAGE = "gpt1_jax.studies.explore"
MOST_BYTES = 6_000_000  # the size limit of a page with attention at every step


class ExploredStep(NamedTuple):
    """A run at one of its saved steps."""

    step: int
    inside: Inside


class ExploredRun(NamedTuple):
    """A run, and the inside of its model on a text."""

    name: str
    about: str  # its kind and sizes
    ids: Sequence[int]  # the tokens of the text
    spans: Sequence[tuple[int, int]]  # the tokens of each word
    spelled: Callable[[int], str]  # a token as people read it
    steps: Sequence[ExploredStep]
    samples: Mapping[int, str]  # texts sampled in training, by step


def make_page(lines: Sequence[Word], runs: Sequence[ExploredRun]) -> tuple[str, str]:
    """Makes the page.

    It has attention at every step if it is then no larger than `MOST_BYTES`, and
    otherwise at the last step of each run.

    Args:
      lines: the lines of the text.
      runs: at least one.

    Returns:
      The page, and a sentence on the attention that it holds, if it does.
    """
    html = _html(lines, runs, last_attention_only=False)
    most = max(run.steps[-1].inside.sources.shape[-1] for run in runs)
    sources = f"Attention: the {most} tokens that each token attends to most, by head"
    num_bytes = len(html.encode())
    if not any(run.steps[-1].inside.sources.size for run in runs):  # of LSTMs
        return html, ""
    if num_bytes <= MOST_BYTES:
        return html, f"{sources}, at every step."
    return _html(lines, runs, last_attention_only=True), (
        f"{sources}, at the last step; with that of all steps the page would have "
        f"{num_bytes / 1e6:.1f} MB."
    )


def _html(
    lines: Sequence[Word], runs: Sequence[ExploredRun], last_attention_only: bool
) -> str:
    data = {
        "lines": [line.word.split() for line in lines],
        "runs": [_run(run, last_attention_only) for run in runs],
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return (
        templates(_PACKAGE, autoescape=True)
        .get_template("explore.html.jinja")
        .render(
            runs=runs,
            words=counted(sum(len(line.word.split()) for line in lines), "word"),
            # As text it could end the script: in JSON, "<" is also "\u003c".
            data=markupsafe.Markup(text.replace("<", "\\u003c")),
            style=markupsafe.Markup(
                read_template("gpt1_jax.report", "style.css")
                + read_template(_PACKAGE, "explore.css")
            ),
            script=markupsafe.Markup(read_template(_PACKAGE, "explore.js")),
        )
    )


def _run(run: ExploredRun, last_attention_only: bool) -> dict[str, Any]:
    """The data of a run: arrays in base64, texts by number."""
    insides = [each.inside for each in run.steps]
    with_attention = insides[-1:] if last_attention_only else insides
    used, expected = np.unique([i.expected_ids for i in insides], return_inverse=True)
    layers, heads, _, sources = insides[0].sources.shape
    numbers = {int(token): number for number, token in enumerate(used)}
    return {
        "name": run.name,
        "about": run.about,
        "tokens": [run.spelled(token) for token in run.ids],
        "inVocabulary": [numbers.get(token, -1) for token in run.ids],
        "spans": run.spans,
        "steps": [each.step for each in run.steps],
        "samples": [_sample(run, each.step) for each in run.steps],
        "bits": _array([i.bits for i in insides], "<f4"),
        "ranks": _array([i.ranks for i in insides], "<u4"),
        "vocabulary": [run.spelled(int(token)) for token in used],
        "expectedTokens": _array(expected, "<u2"),
        "expectedProbs": _fractions([i.expected_probs for i in insides]),
        "numExpected": insides[0].expected_ids.shape[-1],
        "layers": layers,
        "heads": heads,
        "numSources": sources,
        "sources": _array([i.sources for i in with_attention], "<u2"),
        "begins": _array(insides[0].begins, "<u2"),
        "weights": _fractions([i.weights for i in with_attention]),
        "similarity": _array([i.similarity for i in insides], "<f4"),
        "numStates": len(insides[0].similarity),
    }


def _sample(run: ExploredRun, step: int) -> str:
    """The last sample up to a step; "" if there is none."""
    before = [each for each in run.samples if each <= step]
    return run.samples[max(before)] if before else ""


def _fractions(values: Any) -> str:
    """Numbers from 0 to 1 as whole numbers up to 65,535: finer than 0.01%."""
    return _array(np.rint(np.asarray(values) * 65535.0), "<u2")


def _array(values: Any, dtype: str) -> str:
    """Base64 of an array's bytes."""
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()
