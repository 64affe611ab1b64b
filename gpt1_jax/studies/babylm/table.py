"""Scores of BabyLM's evaluation as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpt1_jax.report.markdown import counted, markdown_table
from gpt1_jax.studies.babylm.parts import AOA, PARTS, READING

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


def describe_part(name: str, scores: Mapping[str, Any]) -> str:
    """The scores of a part in one line, for the console."""
    more = ""
    if "self_paced" in scores:
        more = f", self-paced {100 * scores['self_paced']:.2f}"
    if scores["ties"]:
        more += f", {counted(scores['ties'], 'tie')}"
    return f"{_TITLES[name]:<22} {scores['score']:6.2f}{more} ({scores['n']:,} items)"


def babylm_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: a line for each task, a column for the set and each milestone.

    Args:
      runs: the job's results: for each set `{"set": .., "checkpoints": [{"revision":
        .., "step": .., "tasks": {part: scores}}, ..]}`.
    """
    columns = [
        (f"{run['set']}, {each['revision']}", each["tasks"])
        for run in runs
        for each in run["checkpoints"]
    ]
    body = []
    for name in PARTS:
        found = [tasks.get(name) for _, tasks in columns]
        if not any(found):
            continue
        cells = [f"{each['score']:.2f}" if each else "-" for each in found]
        body.append([_TITLES[name], *cells])
        if name == READING:
            cells = [
                f"{100 * each['self_paced']:.2f}" if each else "-" for each in found
            ]
            body.append([_SELF_PACED, *cells])
    table = markdown_table(["task", *(title for title, _ in columns)], body, 1)
    return f"{table}\n\n{_NOTE}\n"
