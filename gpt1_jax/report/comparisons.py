"""Comparisons of fine-tuned runs that differ in one setting: a table and a figure each.

Table 5, Figure 2 (left) and the weight of the auxiliary objective are declarations.
pandas is imported where it is used: it takes a third of a second, and fine-tuning
imports this module.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpt1_jax.config.report import KIND_NAMES
from gpt1_jax.finetuning.results import Finished
from gpt1_jax.report.figures import make_panels, name_panel
from gpt1_jax.report.markdown import escape, markdown_table
from gpt1_jax.report.paper import AUX_LM_WEIGHT, PAPER, TABLE_5, TABLE_5_TASKS, Ablation
from gpt1_jax.report.plots import BARS, LINES, MARKERS
from gpt1_jax.report.tables import (
    headline,
    mean_of,
    one_for_each_run,
    paper_lines,
    score_table,
    spread,
    title_with_metric,
)
from gpt1_jax.runs.resume import saved_digests

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_ASIDE = 0.012  # between the points of one setting, as a fraction of the axis
_ORIGIN = ("init_from", "step", "model.")  # keys that name what a run starts from
_BY = {"split": "split", "train_examples": "training examples"}  # as it is shown
_SHOWN = {"split": {"train": "training"}}
_NOTE_ON_TABLE_5 = (
    "Table 5. Ours is measured on the dev splits, the paper's on GLUE's test sets. All "
    "values are x 100; for several seeds, the median, then the lowest to highest. MNLI "
    "is the mean of its matched and mismatched halves where both were scored. Average: "
    "the unweighted mean over the tasks that have both; their number is in brackets."
)

Setting = str | float


class Comparison(NamedTuple):
    """Scores of runs that differ in one setting.

    Attributes:
      title: of its section in a report.
      suite: the preset of `configs/finetune.py` that makes such runs.
      label: what the setting is called.
      column: the heading of a column, formatted with a value of the setting.
      setting: the setting of a run; None leaves the run out.
      varied: the keys, or prefixes of keys, in which the runs may differ. If those of
        an origin are among them, a Transformer is compared with an LSTM.
      by: the column of `scores` that divides a task into lines: "split" or
        "train_examples"; "" for one line, of the dev split.
      splits: the splits whose scores are compared.
      scale: of the axis of the setting, "linear" or "log".
      note: how to read the table.
      paper: the paper's findings.
      published: the paper's scores by setting; a column each.
    """

    title: str
    suite: str
    label: str
    column: str
    setting: Callable[[Finished], Setting | None]
    varied: tuple[str, ...]
    by: str = ""
    splits: tuple[str, ...] = ("dev",)
    scale: str = "linear"
    note: str = "Over several seeds: the median, then the lowest to highest."
    paper: str = ""
    published: Mapping[str, Ablation] = {}

    @property
    def has_figure(self) -> bool:
        """Whether it is drawn."""
        return not self.published

    @property
    def pairs_kinds(self) -> bool:
        """Whether a Transformer is compared with an LSTM."""
        return "init_from" in self.varied

    def scores(self, runs: Sequence[Finished]) -> "pd.DataFrame":
        """The scores that can be compared, one for each run and split.

        Args:
          runs: finished runs of any tasks and settings. Of those of a task, the largest
            set is taken that differs in nothing but the setting and the seed: of one
            Transformer and one LSTM, and for Table 5 of one lambda.

        Returns:
          A long table as `score_table` returns it, with the "title" of each task, the
          "setting", and the "kind" and "init_from" of the model. Lines with one setting
          are left out, unless the paper has more.
        """
        import pandas as pd

        compared = [run for run in runs if self.setting(run) is not None]
        chosen: list[Finished] = []
        for task in dict.fromkeys(run.task for run in compared):
            alike = self._alike([run for run in compared if run.task == task])
            chosen += sorted(alike, key=lambda run: run.train_examples, reverse=True)
        # As variants, so that equal runs of two settings are not one that ran twice.
        scores = score_table(chosen, [str(self.setting(run)) for run in chosen])
        lines = paper_lines(scores)
        parts = [scores.assign(title="").iloc[:0]]  # has the columns without any run
        for task in scores["task"].unique():
            # Table 5 has the mean of MNLI's halves, Figure 2 the matched one.
            own = [line for line in lines if line.task == task]
            shown = own if self.published else [headline(lines, task)]
            title = TABLE_5_TASKS[task] if self.published else shown[0].title
            run = next(run for run in chosen if run.task == task)
            title = title_with_metric(title, run, shown[0].metric)
            parts.append(one_for_each_run(scores, shown).assign(title=title))
        table = pd.concat(parts)
        of_rows = [chosen[number] for number in table["run"]]
        table["setting"] = [self.setting(run) for run in of_rows]
        table["kind"] = [run.kind for run in of_rows]
        table["init_from"] = [
            "" if run.is_from_scratch else run.config.init_from for run in of_rows
        ]
        table = table[table["split"].isin(self.splits)]
        if self.published:
            return table
        varied = "data.max_train_examples" in self.varied
        line = ["task", self.by] if varied else ["task"]
        settings = table.groupby(line)["setting"]
        return table[settings.transform("nunique") > 1]

    def _alike(self, runs: Sequence[Finished]) -> list[Finished]:
        """Runs of one task that differ only in the setting and the seed."""
        alike = self._largest_set(runs, self.varied)
        if not self.pairs_kinds:
            return alike
        varied = tuple(key for key in self.varied if key not in _ORIGIN)
        of_kinds = ([run for run in alike if run.kind == kind] for kind in KIND_NAMES)
        chosen = [run for own in of_kinds for run in self._largest_set(own, varied)]
        weights = [_weight(run) for run in chosen if _weight(run)]
        if not weights:
            return chosen
        # Of several lambdas, the one of most runs, or else the nearest to the paper's.
        usual = max(weights, key=lambda w: (weights.count(w), -abs(w - AUX_LM_WEIGHT)))
        return [run for run in chosen if _weight(run) in (0, usual)]

    def _largest_set(
        self, runs: Sequence[Finished], varied: tuple[str, ...]
    ) -> list[Finished]:
        """The largest set of runs of one task that differ only in `varied` and seeds.

        It has the most settings, at each number of training examples if that is varied;
        among equals, the most training examples, then the most runs.
        """
        sizes, origins = "data.max_train_examples" in varied, "init_from" in varied
        sets: dict[str, list[Finished]] = {}
        for run in runs:
            # Digests of training examples differ with their number, all digests with
            # the tokenizer.
            settings = run.settings(by_content=not (sizes or origins))
            if origins:
                settings["majority"] = run.result.get("majority")
            elif sizes and not run.config.data.folds:
                settings["dev"] = saved_digests(run.result).get("dev examples")
            same = {k: v for k, v in settings.items() if not k.startswith(varied)}
            sets.setdefault(json.dumps(same, sort_keys=True), []).append(run)

        def rank(alike: list[Finished]) -> tuple[int, float, int]:
            values = {
                (self.setting(run), run.train_examples if sizes else 0) for run in alike
            }
            size = max(run.config.data.max_train_examples or math.inf for run in alike)
            return len(values), size, len(alike)

        return max(sets.values(), key=rank, default=[])

    def lacking(self, scores: "pd.DataFrame") -> list[str]:
        """The settings that the paper has and no run of ours."""
        found = set(scores["setting"])
        return [paper.title for k, paper in self.published.items() if k not in found]

    def table(self, scores: "pd.DataFrame") -> str:
        """Markdown: a line for each task and `by`, a column for each setting.

        Args:
          scores: as `scores` returns them. With scores of the paper, each of its tasks
            has a line, and the average is over the tasks that both have.
        """
        tasks = TABLE_5_TASKS.items() if self.published else ()
        metrics = {line.task: line.metric for line in PAPER}
        lines: dict[tuple, dict[Setting, list[float]]] = {
            (title, metrics[task]): {} for task, title in tasks
        }
        keys = ["title", "metric", *filter(None, [self.by]), "setting"]
        groups = scores.replace(_SHOWN).groupby(keys, sort=False)["score"]
        for (*names, setting), own in groups:
            lines.setdefault(tuple(names), {})[setting] = [*own.dropna()]
        header = ["task", "metric", *(_BY[each] for each in keys[2:-1])]
        columns = [list(map(_cell, names)) for names in zip(*lines, strict=True)]
        average = ["**Average**", *[""] * (len(header) - 1)]
        found = {setting for line in lines.values() for setting in line}
        for setting in self.published or sorted(found):
            ours = [line.get(setting, []) for line in lines.values()]
            both = [number for number, each in enumerate(ours) if each]
            paper = self.published.get(str(setting))
            header.append(self.column.format(paper.title if paper else setting))
            columns.append(
                [spread(v, names[1]) for v, names in zip(ours, lines, strict=True)]
            )
            average.append(mean_of([statistics.median(ours[n]) for n in both]))
            if paper:
                header.append("paper (test)")
                columns.append([f"{score:.1f}" for score in paper.scores])
                mean = mean_of([paper.scores[n] for n in both])
                whole = f"{paper.average} ({len(lines)})"  # as printed
                average.append(whole if len(both) == len(lines) else mean)
        body = [list(cells) for cells in zip(*columns, strict=True)]
        note = self.note
        if self.published:
            body.append(average)
            note += _origins(scores)
        text_columns = 3 if self.by == "split" else 2
        return f"{markdown_table(header, body, text_columns)}\n\n{note}"

    def draw(self, scores: "pd.DataFrame") -> "Figure":
        """Draws scores over the setting: a panel for each task, a line for each `by`.

        Lines go through medians over seeds; bars reach from the lowest to the highest.
        """
        tasks = list(scores.groupby(["title", "metric"], sort=False))
        figure, panels = make_panels(len(tasks))
        for axes, ((title, metric), of_task) in zip(panels, tasks, strict=True):
            axes.set_xscale(self.scale)
            settings = sorted(of_task["setting"].unique())
            lines = list(of_task.replace(_SHOWN).groupby(self.by, sort=False))
            for number, (name, own) in enumerate(lines):
                found = own.groupby("setting")["score"].agg(["median", "min", "max"])
                bars = [found["median"] - found["min"], found["max"] - found["median"]]
                # Side by side, so that bars do not hide one another.
                aside = (number - (len(lines) - 1) / 2) * _ASIDE
                if self.scale == "log":
                    places = found.index * (settings[-1] / settings[0]) ** aside
                else:
                    places = found.index + aside * (settings[-1] - settings[0])
                axes.errorbar(
                    places,
                    found["median"],
                    bars if any(each.any() for each in bars) else None,
                    **BARS,
                    color=f"C{number}",
                    marker=MARKERS[number % len(MARKERS)],
                    linestyle=LINES[number % len(LINES)],
                    label=f"{_cell(name)} {_BY[self.by]}",
                )
            names = [f"{setting:,g}" for setting in settings]
            # On a logarithmic axis they may be close, and minor ticks between them.
            axes.set_xticks(settings, names, rotation=45 if self.scale == "log" else 0)
            axes.minorticks_off()
            name_panel(axes, title, self.label, metric)
        return figure


def _origins(scores: "pd.DataFrame") -> str:
    """A sentence on the pre-trained runs that runs started from; "" without any."""
    named = []
    for kind, name in KIND_NAMES.items():
        found = set(scores["init_from"][scores["kind"] == kind]) - {""}
        if found:
            named.append(f"the {name} of {', '.join(map(escape, sorted(found)))}")
    return f" Ours start from {' and '.join(named)}." if named else ""


def _cell(value: object) -> str:
    """A name or a number of examples as text."""
    return escape(value) if isinstance(value, str) else f"{value:,}"


def _weight(run: Finished) -> float:
    return run.config.head.aux_lm_weight


def _ablation(run: Finished) -> str | None:
    """The row of Table 5 that a run belongs to."""
    if run.is_own or run.task not in TABLE_5_TASKS:
        return None
    with_aux_lm = _weight(run) > 0
    if run.kind == "lstm":
        return "lstm" if run.is_whole and with_aux_lm else None
    if run.is_whole:
        return "full" if with_aux_lm else "no_aux_lm"
    return "no_pretraining" if run.is_from_scratch and with_aux_lm else None


_ALL = (
    Comparison(
        title="Ablations (Table 5)",
        suite="ablations",
        label="variant",
        column="{}, ours (dev)",
        setting=_ablation,
        varied=(*_ORIGIN, "transfer_layers", "head.aux_lm_weight"),
        note=_NOTE_ON_TABLE_5,
        published=TABLE_5,
    ),
    Comparison(
        title="Layers transferred (Figure 2, left)",
        suite="layer_transfer",
        label="layers transferred",
        column="layers: {}",
        setting=lambda run: None if run.is_from_scratch else run.layers_transferred,
        varied=("transfer_layers",),
        by="split",
        splits=("dev", "train"),
        paper="The paper's curves, as others have read them off its figure to about a "
        "point: from the embeddings alone to all 12 layers, RACE (dev) rises from "
        "about 40 to 60 and MultiNLI (dev, matched) from about 72 to 82.",
    ),
    Comparison(
        title="Training examples (learning curve)",
        suite="train_sizes",
        label="training examples",
        column="{:,} examples",
        setting=lambda run: run.train_examples or None,
        varied=("data.max_train_examples",),
        by="split",
        splits=("dev", "test", "train"),
        scale="log",
        note="Smaller training sets are parts of the larger ones. Over several runs: "
        "the median, then the lowest to highest.",
    ),
    Comparison(
        title="Weight of the auxiliary objective",
        suite="aux_lm_weight",
        label="lambda",
        column="lambda: {:g}",
        setting=_weight,
        varied=("head.aux_lm_weight", "data.max_train_examples"),
        by="train_examples",
        paper="The paper compares the weights 0.5 and 0 (Table 5, test): on average "
        "over eight tasks 74.7 with the auxiliary objective and 75.0 without. With it, "
        "large data sets gain (MNLI 81.8 against 81.1, QQP 70.3 against 69.8, QNLI "
        "88.1 against 86.9) and small ones lose (CoLA 45.4 against 47.9, MRPC 82.3 "
        "against 84.9, STS-B 82.0 against 83.2).",
    ),
)
COMPARISONS = {each.suite: each for each in _ALL}
