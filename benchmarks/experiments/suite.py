"""What differs between models by more than between seeds, over training.

    python -m benchmarks.experiments.suite finetuning/suite runs/scores runs/finetuned \
        --output=DIR

Reads the members of a suite (`configs/pretrain.py:suite` with several seeds and kinds
of model), what `minimal_pairs`, `reading_times` and `zero_shot` measured at their
milestones (`--config.step=milestones`), and runs fine-tuned from them, below the
folders named. Writes every score (`scores.csv`, `finetuned.csv`), the curves of all
members, and prints tables: the kinds after the last update with a 95% interval of their
difference (Student, members as the sample), and the spread of fine-tuned scores between
the members of a kind against that between the fine-tuning seeds of a member (one-way
analysis of variance).
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etils import epath

from benchmarks import harness
from gpt1_jax.config.report import KIND_NAMES
from gpt1_jax.config.saved import read_json
from gpt1_jax.finetuning.results import read_finished
from gpt1_jax.formats import RESULTS
from gpt1_jax.report.plots import new_figure, scale_updates
from gpt1_jax.report.studies import find_study
from gpt1_jax.report.study_scores import long_table
from gpt1_jax.runs.folder import RESULTS_FILE
from gpt1_jax.runs.pretrained import read_pretrained
from gpt1_jax.runs.run_folder import find_folders
from gpt1_jax.studies.reading_times.job import ALL_STORIES, GAINS
from gpt1_jax.studies.zero_shot.pairs import ALL, group_means, of_paradigms
from gpt1_jax.tasks.metrics import METRICS
from gpt1_jax.tasks.paper_tasks import TASKS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LOSS = "validation loss, nats a token"
GAIN = "reading times, gain x 1000"
ALL_PAIRS = "BLiMP"
LEVEL = 0.95


def read_all(places: Sequence[Path]) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """All scores below some folders.

    Returns:
      Of the members, columns "member", "kind", "measure", "step" and "score"; of runs
      fine-tuned from them "member", "kind", "task", "seed" and "score", as
      tables show it.
    """
    import pandas as pd

    kinds, rows, finetuned, results = {}, [], [], []
    for folder in (
        each for place in places for each in find_folders(epath.Path(place))
    ):
        if run := read_pretrained(folder):
            kinds[folder.name] = run.config.model.kind
            steps, losses = run.series("valid_loss")
            rows += [
                (folder.name, LOSS, step, loss)
                for step, loss in zip(steps, losses, strict=True)
            ]
        elif (tuned := read_finished(folder)) and not tuned.is_own:
            task = tuned.config.tasks[0]
            metric = TASKS[task].metrics[0]
            score = METRICS[metric].shown(tuned.result["dev"][metric])
            member = Path(tuned.config.init_from).name
            finetuned.append((member, task, tuned.config.seeds[0], score))
        elif (file := folder / RESULTS_FILE).exists():
            found = read_json(file)
            if "runs" in found:
                RESULTS.check(found, file)
                results.append(found)
    for each in results:
        for run in each["runs"]:
            member = Path(run["init_from"]).name
            rows += [(member, *score) for score in measured(each["config"]["job"], run)]
    scores = pd.DataFrame(rows, columns=["member", "measure", "step", "score"])
    tuned = pd.DataFrame(finetuned, columns=["member", "task", "seed", "score"])
    for table in (scores, tuned):
        if unknown := sorted(set(table["member"]) - set(kinds)):
            raise SystemExit(f"{', '.join(unknown)}: no such member in {places}")
        table.insert(1, "kind", table["member"].map(kinds))
        keys = [name for name in table if name != "score"]
        for one in table[table.duplicated(keys)].itertuples():
            raise SystemExit(f"{one}: scored twice; name one of the two folders")
    return scores, tuned


def measured(job: str, run: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    """The measure, step and score of all that a job found out about a run."""
    if (study := find_study(job)) is None:
        return
    scores = long_table([run], study.rows)
    if job == "minimal_pairs":
        means = group_means(of_paradigms(scores), "all", "term")
        for each in means[means["step"] >= 0].itertuples():
            label = f"{ALL_PAIRS}: {each.group.replace('_', ' ')}"
            yield ALL_PAIRS if each.group == ALL else label, each.step, each.score
    elif job == "reading_times":
        whole = scores[(scores["measure"] == GAINS) & (scores["story"] == ALL_STORIES)]
        yield from ((GAIN, each.step, each.score) for each in whole.itertuples())
    elif job == "zero_shot":
        for each in scores[scores["metric"] != "auc"].itertuples():
            yield f"zero-shot: {each.task}", each.step, each.score


def compared(scores: "pd.DataFrame") -> str:
    """Markdown: both kinds after the last update, and their difference."""
    from scipy.stats import ttest_ind

    rows = []
    for measure, own in scores.groupby("measure", sort=False):
        last = own[own["step"] == own["step"].max()]
        by_kind = [last[last["kind"] == kind]["score"] for kind in KIND_NAMES]
        row = [str(measure), *map(_mean_and_range, by_kind)]
        if min(map(len, by_kind)) > 1 and last["score"].nunique() > 1:
            test = ttest_ind(*by_kind)
            low, high = test.confidence_interval(LEVEL)
            mean = by_kind[0].mean() - by_kind[1].mean()
            beyond = "yes" if low > 0 or high < 0 else "no"
            row += [f"{mean:+.2f} ({low:+.2f} to {high:+.2f})", beyond]
        rows.append(row + ["-"] * (5 - len(row)))
    header = ["measure", *KIND_NAMES.values(), "difference", "beyond seeds"]
    return harness.markdown(header, rows)


def _mean_and_range(scores: "pd.Series") -> str:
    """`mean (lowest to highest)`, of at least one member."""
    if scores.empty:
        return "-"
    return f"{scores.mean():.2f} ({scores.min():.2f} to {scores.max():.2f})"


def spreads(finetuned: "pd.DataFrame") -> str:
    """Markdown: for each task, the standard deviation that either seed causes.

    The mean square between members of a kind is expected to be v + n u, within members
    v, with n fine-tuning seeds each, u and v the variances of both seeds. The last
    column is the upper limit of sqrt(u / v), one-sided, from the distribution of F.
    """
    from scipy.stats import f

    rows = []
    for task, own in finetuned.groupby("task", sort=False):
        means = [
            _mean_and_range(own[own["kind"] == kind]["score"]) for kind in KIND_NAMES
        ]
        row = [str(task), *means]
        # Sums of squares around the means of kinds, and of their members.
        around_kinds, around_members = (
            ((own["score"] - own.groupby(by)["score"].transform("mean")) ** 2).sum()
            for by in ("kind", "member")
        )
        members = own["member"].nunique()
        df_between, df_within = members - own["kind"].nunique(), len(own) - members
        if df_within > 0 and df_between > 0:
            within = around_members / df_within
            mean_square = (around_kinds - around_members) / df_between
            seeds = len(own) / members
            between = max(mean_square - within, 0) / seeds
            least = f.ppf(1 - LEVEL, df_between, df_within)
            ratio = max(mean_square / within / least - 1, 0) / seeds
            row += [
                f"{between**0.5:.2f}",
                f"{within**0.5:.2f}",
                f"{mean_square / within:.1f} ({df_between}, {df_within})",
                f"{ratio**0.5:.2f}",
            ]
        rows.append(row + ["-"] * (7 - len(row)))
    deviations = ["pre-training seed", "fine-tuning seed", "F", "ratio, at most"]
    header = ["task", *KIND_NAMES.values(), *deviations]
    return harness.markdown(header, rows)


def draw(scores: "pd.DataFrame", path: Path) -> None:
    """The curves of all members, a panel for each measure."""
    measures = list(dict.fromkeys(scores["measure"]))
    columns = 4 if len(measures) > 9 else 3
    lines = -(-len(measures) // columns)
    figure = new_figure(3.1 * columns, 2.3 * lines + 0.5)
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True).flat
    for axes, measure in zip(panels, measures, strict=False):
        _panel(axes, scores[scores["measure"] == measure])
        axes.set_title(measure.removeprefix(f"{ALL_PAIRS}: "), fontsize=9)
    for axes in list(panels)[: 0 if len(measures) % columns == 0 else None]:
        axes.set_axis_off()
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False)
    figure.supxlabel("updates", fontsize=9)
    figure.savefig(path)


def _panel(axes: "Axes", own: "pd.DataFrame") -> None:
    """A thin line for each member, a thick one for the mean of a kind."""
    for number, (kind, name) in enumerate(KIND_NAMES.items()):
        color = f"C{number}"
        curves = own[own["kind"] == kind].pivot_table("score", "step", "member")
        for member in curves:
            axes.plot(curves[member].dropna(), color=color, linewidth=0.7, alpha=0.6)
        mean = curves.dropna().mean(axis=1)
        axes.plot(mean, color=color, linewidth=1.8, label=name)
    scale_updates(axes, [0, *own["step"]])
    axes.set_xticks([0, 1, 10, 100, 1000])
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)


def main(arguments: Sequence[str]) -> None:
    """Reads, compares, draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", help="of runs, or above some")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    flags = parser.parse_args(arguments)
    scores, finetuned = read_all(flags.folders)
    flags.output.mkdir(parents=True, exist_ok=True)
    is_term = scores["measure"].str.startswith(f"{ALL_PAIRS}: ")
    for name, part in {"suite": scores[~is_term], "blimp": scores[is_term]}.items():
        if not part.empty:
            draw(part, flags.output / f"{name}.png")
    scores.to_csv(flags.output / "scores.csv", index=False, float_format="%.4f")
    finetuned.to_csv(flags.output / "finetuned.csv", index=False, float_format="%.4f")
    print(compared(scores), end="\n\n")
    if not finetuned.empty:
        print(spreads(finetuned))


if __name__ == "__main__":
    main(sys.argv[1:])
