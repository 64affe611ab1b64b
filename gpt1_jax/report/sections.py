"""The sections of a report: scores, comparisons, curves and, last, model cards."""

import functools
import itertools
import json
import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpt1_jax.config import JOBS
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.flat import flatten
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.config.usage import defaults
from gpt1_jax.finetuning.results import Finished
from gpt1_jax.interop.repository import describe_folder
from gpt1_jax.report import figures
from gpt1_jax.report.comparisons import COMPARISONS, Comparison
from gpt1_jax.report.markdown import counted, escape, markdown_table
from gpt1_jax.report.model_card import (
    UNKNOWN,
    describe_step,
    hardware,
    last_versions,
    list_versions,
    model_card,
)
from gpt1_jax.report.own_tasks import dev_curves, own_pictures, own_results
from gpt1_jax.report.page import Block, Report, ReportSection, missing
from gpt1_jax.report.paper import AUX_LM_WEIGHT, PAPER
from gpt1_jax.report.plots import Picture
from gpt1_jax.report.runs import ReportedRuns
from gpt1_jax.report.tables import (
    IN_COLUMNS,
    paper_table,
    paper_table_notes,
    row_names,
    run_names,
    runs_by_row,
    score_table,
    tell_apart,
)
from gpt1_jax.runs.pretrained import Pretrained, tokens_before
from gpt1_jax.runs.records import SESSIONS_FILE, package_versions, read_sessions
from gpt1_jax.runs.resume import saved_digests
from gpt1_jax.tasks.paper_tasks import TASKS

_OF_THE_PAPER = (
    " in a reproduction of GPT-1 (Radford et al. 2018, *Improving Language "
    "Understanding by Generative Pre-Training*), beside the paper's numbers",
    "Test scores are the paper's unless a column says otherwise; ours are on the "
    "development splits.",
)
_OF_ONES_OWN = ("", "Scores are on the development splits unless a column says test.")
_MOST_NAMES = 4  # in a title
_NOTE_ON_ROWS = (
    "Runs with the paper's weight of the auxiliary objective and all layers or none "
    "transferred; of runs that differ in `data.max_train_examples`, those with the "
    "most. A line holds runs with the same data and settings, but for their seeds; a "
    "task with several lines has no average."
)


def make_report(
    runs: ReportedRuns, title: str, date: str, suffix: str = ".png"
) -> Report:
    """The whole report: scores, comparisons, curves and, folded, the models.

    Args:
      runs: the runs to report.
      title: its heading, plain text; empty: made of what was run.
      date: today's date, as text.
      suffix: of the files of pictures, ".png", ".svg" or ".pdf".
    """
    comparisons = [_comparison(runs, each) for each in COMPARISONS.values()]
    models = [
        _titled(name, model_card(run, tokens_before(run, runs.pretrained)))
        for name, run in short_names(runs.pretrained).items()
    ]
    sections = [
        ReportSection("Fine-tuning", _own_results(runs)),
        ReportSection("Fine-tuning (Tables 2 to 4)", _tables_2_to_4(runs)),
        *comparisons[:-1],
        *_of_studies(runs),
        comparisons[-1],
        ReportSection("Pre-training", _pretraining(runs)),
        ReportSection("Fine-tuning over updates", _dev_curves(runs)),
        ReportSection("Models", models, folded=True),
        ReportSection("Configurations", _configurations(runs), folded=True),
        ReportSection("Versions", [_versions(runs)]),
    ]
    reproduces = bool(_on_whole_data(runs)) or any(study.note for study in runs.studies)
    found: list[tuple[Sequence[Any], str]] = [(runs.pretrained, "pre-trained run")]
    found += [(runs.finetuned, "finished fine-tuned run")]
    found += [(own, f"{study.title} evaluation") for study, own in runs.studies.items()]
    counts = [counted(len(own), noun) for own, noun in found if own]
    version = package_versions()["gpt1_jax"]
    what, scores = _OF_THE_PAPER if reproduces else _OF_ONES_OWN
    introduction = (
        f"What was trained and measured{what}: {', '.join(counts)}. Made on {date} by "
        f"gpt1_jax {escape(version)} from the run folders alone. {scores}"
    )
    filled = [section for section in sections if section.blocks]
    return Report(title or _title(runs, reproduces), introduction, filled, suffix)


def _title(runs: ReportedRuns, reproduces: bool) -> str:
    """A heading for a report that has none: the names of one's own runs or studies."""
    if reproduces:
        return "A reproduction of GPT-1"
    names = [*short_names(runs.pretrained), *(run.task for run in runs.finetuned)]
    names = list(dict.fromkeys(names)) or [study.title for study in runs.studies]
    named, more = ", ".join(names[:_MOST_NAMES]), len(names) - _MOST_NAMES
    return f"{named} and {more} more" if more > 0 else named


# --- commands for missing results -----------------------------------------------


def _missing(runs: Sequence[Finished], preset: str, what: str) -> list[Block]:
    """What runs of a preset lack, and the command that makes it.

    Without a run of the preset there is none: nobody has asked for it.
    """
    begun = [run for run in runs if run.config.preset == preset]
    if not (begun and what):
        return []
    kind = "transformer" if preset == "ablations" else begun[0].kind
    flags = [f"--config=configs/finetune.py:{preset}"]
    flags.append(f"--config.init_from={_origin_of(begun, kind)}")
    if preset == "ablations":
        flags.append(f"--config.suite.lstm_init_from={_origin_of(begun, 'lstm')}")
    seeds = sorted({run.config.seeds[0] for run in begun})
    flags.append(f"--config.seeds={','.join(map(str, seeds))}")
    command = " \\\n    ".join(map(shlex.quote, flags))
    return [missing(what, f"python -m gpt1_jax.main {command}")]


def _origin_of(runs: Sequence[Finished], kind: str) -> str:
    """The pre-trained run of a kind that runs start from, or else a preset's."""
    preset = "lstm" if kind == "lstm" else "quickstart"
    known = (run.config.init_from for run in runs if run.kind == kind)
    return describe_folder(next(known, f"runs/pretrain/{preset}"))


# --- pre-trained models ---------------------------------------------------------


def _pretraining(runs: ReportedRuns) -> list[Block]:
    named = {n: run for n, run in short_names(runs.pretrained).items() if run.records}
    if not named:
        return []
    losses: dict[str, dict[str, figures.Curve]] = {}
    rows: list[dict[str, Any]] = []
    for name, run in named.items():
        losses[name] = {}
        # A curve continues the one of the run that it started from.
        before = tokens_before(run, runs.pretrained)
        for split, metric in (("training", "loss"), ("validation", "valid_loss")):
            steps, values = run.series(metric)
            tokens = [before + step * run.tokens_per_step for step in steps]
            losses[name][split] = tokens, values
            rows += [
                {"run": name, "split": split, "tokens": number, "loss": loss}
                for number, loss in zip(tokens, values, strict=True)
            ]
    known = {name: run.last("valid_loss") for name, run in named.items()}
    last = "; ".join(
        f"{k}: {loss:.3f}" for k, loss in known.items() if loss is not None
    )
    sizes = sorted({run.model.vocab_size for run in named.values()})
    guesses = " or ".join(f"{math.log(size):.2f}" for size in sizes)
    picture = Picture(
        "pretraining",
        "Training and validation loss over the tokens read. Last validation loss in "
        f"nats per token: {last or 'none yet'}. A model that knows nothing has the "
        f"logarithm of its vocabulary's size, {guesses}.",
        functools.partial(figures.pretraining_loss, losses),
        rows,
    )
    header = ["run", "hardware", "validation, nats per token", "updates", "tokens"]
    header += ["time", "in training steps", "tokens per second", "MFU"]
    speeds = [_speed(name, run) for name, run in named.items()]
    table = markdown_table(header, speeds, text_columns=2)
    note = (
        "Time is how long the training programs ran, from their start to their end, "
        "with compilation, evaluation and checkpoints; steps done again after a crash "
        "count twice. Speed and MFU, the share of the device's peak, are medians over "
        "training. Losses compare only between runs with one tokenizer and one "
        "validation text; bits per word, in the cards, between tokenizers too."
    )
    return [table, note, picture]


def short_names(runs: Sequence[Pretrained]) -> dict[str, Pretrained]:
    """Runs by names that tell them apart."""
    folders = [{"init_from": run.folder, "kind": run.model.kind} for run in runs]
    return dict(zip(run_names(folders), runs, strict=True))


def _speed(name: str, run: Pretrained) -> list[str]:
    loss, rates = run.last("valid_loss"), run.series("tokens_per_second")[1]
    shares, seconds = run.series("mfu")[1], run.seconds()
    return [
        escape(name),
        hardware(run),
        "-" if loss is None else f"{loss:.3f}",
        f"{run.step:,}",
        f"{run.tokens:,}",
        _duration(seconds[1]) if seconds else UNKNOWN,
        f"{seconds[0] / seconds[1]:.1%}" if seconds else UNKNOWN,
        f"{statistics.median(rates):,.0f}" if rates else "-",
        f"{statistics.median(shares):.1%}" if shares else "-",
    ]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


# --- fine-tuned runs, by the run that they start from ---------------------------


class Origin(NamedTuple):
    """The pre-trained run that fine-tuned runs start from."""

    init_from: str
    step: str | None  # "step 1,200"; None: from scratch, with its tokenizer and sizes
    kind: str  # "transformer" or "lstm"
    digest: str = ""  # of its parameters, if another has the same name and step

    @property
    def heading(self) -> str:
        """A heading for its runs, as Markdown."""
        name = escape(describe_folder(self.init_from))
        kind = "an LSTM" if self.kind == "lstm" else "a Transformer"
        if self.step is None:
            return f"From scratch, {kind} with the tokenizer and sizes of {name}"
        content = f", content {escape(self.digest[:12])}" if self.digest else ""
        return f"From {name}, {kind} at {self.step}{content}"


def by_origin(runs: Sequence[Finished]) -> dict[Origin, list[Finished]]:
    """The runs of each origin, in order; origins are told apart by content, too.

    Runs from scratch belong to every origin with their tokenizer and sizes, whichever
    they name. If there is none, they form a group of their own.
    """
    architectures = {
        _origin(run): run.architecture for run in runs if not run.is_from_scratch
    }
    groups: dict[Origin, list[Finished]] = {}
    for run in runs:
        origins = []
        if run.is_from_scratch:
            own = run.architecture
            origins = [each for each, other in architectures.items() if other == own]
        for origin in origins or [_origin(run)]:
            groups.setdefault(origin, []).append(run)
    names = Counter(origin._replace(digest="") for origin in groups)
    return {
        origin if names[alone] > 1 else alone: of_origin
        for origin, of_origin in groups.items()
        if (alone := origin._replace(digest=""))
    }


def _origin(run: Finished) -> Origin:
    if run.is_from_scratch:
        return Origin(run.config.init_from, None, run.kind)
    step = describe_step(run.result["origin_step"])
    digest = saved_digests(run.result).get("origin", "")
    return Origin(run.config.init_from, step, run.kind, digest)


def _is_partial(run: Finished) -> bool:
    """Whether it was trained on BabyLM's data, which is a part of each task's."""
    return run.config.data.source == "babylm"


def _on_whole_data(runs: ReportedRuns) -> list[Finished]:
    """The fine-tuned runs for the paper's tables: its tasks, not BabyLM's data."""
    return [run for run in runs.finetuned if not (_is_partial(run) or run.is_own)]


def _own_runs(runs: ReportedRuns) -> dict[Origin, list[Finished]]:
    """By origin, the fine-tuned runs that are in no table of the paper."""
    return by_origin([r for r in runs.finetuned if _is_partial(r) or r.is_own])


def _own_results(runs: ReportedRuns) -> list[Block]:
    """Scores on tasks of one's own and on BabyLM's data, a table for each origin."""
    blocks: list[Block] = []
    for origin, of_origin in _own_runs(runs).items():
        blocks.append(f"### {origin.heading}\n\n{own_results(of_origin)}")
        numbered = [
            run
            for run, name in zip(of_origin, row_names(of_origin), strict=True)
            if re.fullmatch(r" \(\d+\)", name.removeprefix(run.title))
        ]
        blocks += row_differences(numbered)
        for picture in own_pictures(of_origin):
            name = _picture_name(picture.name, blocks)
            blocks.append(picture._replace(name=name))
    return blocks


def _dev_curves(runs: ReportedRuns) -> list[Block]:
    """The curves of the runs in `_own_results`, a picture for each origin."""
    blocks: list[Block] = []
    for origin, of_origin in _own_runs(runs).items():
        if curves := dev_curves(of_origin):
            picture = Picture(
                _picture_name("finetuning", blocks),
                "Scores on the dev split over updates, a curve for each seed; a model "
                "that has learnt something is above the lines.",
                functools.partial(figures.dev_scores, curves),
                figures.dev_score_rows(curves),
            )
            blocks += [f"### {origin.heading}", picture]
    return blocks


def _tables_2_to_4(runs: ReportedRuns) -> list[Block]:
    """Scores on the paper's tasks, a table for each origin."""
    blocks: list[Block] = []
    notes: dict[str, None] = {}  # without repetitions, below the last table
    done: set[str] = set()
    for origin, of_origin in by_origin(_on_whole_data(runs)).items():
        if chosen := as_in_paper(of_origin):
            scores = score_table(chosen)
            blocks.append(f"### {origin.heading}\n\n{paper_table(scores)}")
            blocks += row_differences(chosen)
            notes |= dict.fromkeys(paper_table_notes(scores))
            done |= set(scores["task"])
    if blocks:
        blocks += [*notes, _NOTE_ON_ROWS]
        if number := sum(map(_is_partial, runs.finetuned)):
            count = counted(number, "fine-tuned run")
            blocks.append(
                f"The paper's tables and figures leave out {count} on BabyLM's data, "
                "which is a part of each task's."
            )
    tasks = dict.fromkeys(line.task for line in PAPER)
    left = ", ".join(TASKS[task].title for task in tasks if task not in done)
    return [*blocks, *_missing(runs.finetuned, "all", left)]


def as_in_paper(runs: Sequence[Finished]) -> list[Finished]:
    """The runs for Tables 2 to 4.

    They have the paper's weight of the auxiliary objective, and all layers or none
    transferred. Of runs that differ only in seed and in the number of training examples
    that was asked for, those on the most are kept.
    """
    chosen: dict[str, dict[float, list[Finished]]] = {}  # by settings, then by number
    for run in runs:
        usual = run.config.head.aux_lm_weight == AUX_LM_WEIGHT
        if usual and (run.is_from_scratch or run.is_whole):
            settings = run.settings(by_content=False)
            number = settings.pop("data.max_train_examples") or math.inf  # 0: all
            alike = chosen.setdefault(json.dumps(settings, sort_keys=True), {})
            alike.setdefault(number, []).append(run)
    return [run for alike in chosen.values() for run in alike[max(alike)]]


def row_differences(runs: Sequence[Finished]) -> list[str]:
    """Markdown tables of the settings that tell the lines of `paper_table` apart.

    Args:
      runs: all runs in the table.

    Returns:
      A table for each task that has several lines.
    """
    tables = []
    for rows in runs_by_row(runs).values():
        if len(rows) > 1:
            facts = tell_apart([*map(_facts, rows)])
            if len({tuple(each.values()) for each in facts}) < len(rows):
                contents = tell_apart([*map(_contents, rows)])
                facts = [f | c for f, c in zip(facts, contents, strict=True)]
            title = escape(rows[0].title)
            body = [
                [f"{title} ({number})", *map(_value, each.values())]
                for number, each in enumerate(facts, 1)
            ]
            header = ["what differs", *facts[0]]
            tables.append(markdown_table(header, body, text_columns=len(header)))
    return tables


def _facts(run: Finished) -> dict[str, Any]:
    """The settings and the origin of a run, as numbers and names."""
    settings = run.settings(by_content=False).items()
    return {
        "training examples": run.result.get("train_examples"),
        "dev examples": run.result.get("dev", {}).get("n"),
        "test examples": run.result.get("test", {}).get("n"),
        **{k: v for k, v in settings if not k.startswith(IN_COLUMNS)},
    }


def _contents(run: Finished) -> dict[str, str]:
    """The beginnings of the content digests of a run's examples."""
    digests = saved_digests(run.result).items()
    return {f"content of {escape(k)}": v[:12] for k, v in digests if k != "origin"}


def _comparison(runs: ReportedRuns, compared: Comparison) -> ReportSection:
    """The figure and table of a comparison, for each origin that has any."""
    blocks: list[Block] = []
    for heading, own in origins_compared(compared, runs.finetuned):
        scores = compared.scores(own)
        if scores["setting"].nunique() < 2:
            continue
        blocks.append(f"### {heading}")
        if compared.has_figure:
            name = _picture_name(compared.suite, blocks)
            alt = f"Scores over {compared.label}; the numbers are in the table."
            draw = functools.partial(compared.draw, scores)
            blocks.append(Picture(name, alt, draw, scores))
        blocks.append(compared.table(scores))
        columns = ", ".join(compared.lacking(scores))
        what = f"runs for {columns} in the table above" if columns else ""
        blocks += _missing(own, compared.suite, what)
    if blocks and compared.paper:
        blocks.append(compared.paper)
    if not blocks:
        what = f"runs that differ in {compared.label}"
        blocks = _missing(runs.finetuned, compared.suite, what)
    return ReportSection(compared.title, blocks)


def origins_compared(
    compared: Comparison, runs: Sequence[Finished]
) -> list[tuple[str, list[Finished]]]:
    """Headings and runs of the tables of a comparison, so that models are not mixed.

    A table has the runs of one origin; where kinds are compared, those of one
    Transformer and one LSTM. Runs on a part of a task's data are left out.
    """
    groups = by_origin(
        [r for r in runs if not _is_partial(r) and compared.setting(r) is not None]
    )
    lstms = [origin for origin in groups if origin.kind == "lstm"]
    others = [origin for origin in groups if origin.kind != "lstm"]
    if not (compared.pairs_kinds and lstms and others):
        return [(origin.heading, own) for origin, own in groups.items()]
    return [
        (
            f"{origin.heading}; LSTM: {escape(lstm.init_from)}",
            [*groups[origin], *groups[lstm]],
        )
        for origin, lstm in itertools.product(others, lstms)
    ]


def _picture_name(name: str, blocks: Sequence[Block]) -> str:
    """The name of the next picture of its kind; the first has no number."""
    pictures = (block.name for block in blocks if isinstance(block, Picture))
    number = 1 + sum(each.startswith(name) for each in pictures)
    return f"{name}_{number}" if number > 1 else name


# --- studies --------------------------------------------------------------------


def _of_studies(runs: ReportedRuns) -> list[ReportSection]:
    """A section for each study: figure and table of each of its evaluations."""
    sections = []
    for study, evaluations in runs.studies.items():
        blocks: list[Block] = []
        headings = Counter(tuple(each.origins) for each in evaluations)
        for each in evaluations:
            several = headings[tuple(each.origins)] > 1
            where = f", in {escape(str(each.folder))}" if several else ""
            blocks.append(f"### Of {' and '.join(each.origins)}{where}")
            if study.figure:
                name = _picture_name(study.picture, blocks)
                alt = f"{study.heading or study.title}; the numbers are in the table."
                draw = functools.partial(study.figure, each.scores)
                blocks.append(Picture(name, alt, draw, each.scores))
            table = study.table(each.scores, each.config)
            blocks.append(re.sub("(?m)^### ", "#### ", table))
        if study.note:
            blocks.append(study.note)
        sections.append(ReportSection(study.heading or study.title, blocks))
    return sections


# --- configurations and versions ------------------------------------------------


def _configurations(runs: ReportedRuns) -> list[Block]:
    blocks: list[Block] = [
        "Only values that differ from those of the files in `configs/`."
    ]
    for name, run in short_names(runs.pretrained).items():
        blocks.append(_titled(f"Pre-training: {name}", describe_config(run.config)))
    if runs.finetuned:
        title = f"Fine-tuning: {counted(len(runs.finetuned), 'run')}"
        configs = [run.config for run in runs.finetuned]
        blocks.append(_titled(title, describe_configs(configs)))
    for each in itertools.chain(*runs.studies.values()):
        name = each.study.title[:1].upper() + each.study.title[1:]
        title = f"{name}: {each.config.init_from}"
        blocks.append(_titled(title, describe_config(each.config)))
    return blocks


def _titled(title: str, text: str) -> str:
    return f"### {escape(title)}\n\n{text}"


def changed_values(config: JobConfig) -> dict[str, Any]:
    """The values that differ from the job's file in `configs/`, by key.

    Args:
      config: a run's. Its preset is applied to the file, if the file still has it. All
        values are those of a job outside of this package, which has no file there.
    """
    values = flatten(config.to_dict())
    if config.job not in JOBS:
        return values
    known = flatten(defaults(config.job, config.preset))
    return {k: v for k, v in values.items() if k in known and known[k] != v}


def describe_config(config: JobConfig) -> str:
    """The changed values of a run as a Markdown table."""
    preset = f"{config.job}.py:{config.preset}" if config.preset else config.job
    file = f"`configs/` file: {escape(preset)}"
    if config.job not in JOBS:
        file = f"Module: {escape(config.job)}"
    return f"{file}\n\n{_values(changed_values(config))}"


def describe_configs(configs: Sequence[FinetuneConfig]) -> str:
    """The changed values of fine-tuned runs, as Markdown tables.

    The first table has the values that differ between runs, a line for each group of
    runs that differ only in task, seed and fold; the second has the shared values.
    """
    keys = {key for config in configs for key in changed_values(config)}
    # Without the names of runs, and the section that tells a suite which runs to make.
    keys -= {key for key in keys if key.startswith("suite.")}
    keys -= {"preset", "tasks", "seeds", "data.fold"}
    flat = [flatten(config.to_dict()) for config in configs]
    chosen = [{key: values[key] for key in sorted(keys)} for values in flat]
    groups: dict[tuple[str, ...], list[FinetuneConfig]] = {}
    apart = tell_apart(chosen)
    for config, values in zip(configs, apart, strict=True):
        groups.setdefault(tuple(map(_value, values.values())), []).append(config)
    body = [[_tasks_and_seeds(alike), *cells] for cells, alike in groups.items()]
    header = ["tasks (seeds)", *apart[0]]
    lines = markdown_table(header, body, text_columns=len(header))
    shared = {key: value for key, value in chosen[0].items() if key not in apart[0]}
    return f"{lines}\n\nAll of them:\n\n{_values(shared)}"


def _tasks_and_seeds(configs: Sequence[FinetuneConfig]) -> str:
    seeds: dict[str, set[int]] = {}
    for config in configs:
        task = config.custom.name or config.tasks[0]
        seeds.setdefault(task, set()).add(config.seeds[0])
    return "; ".join(
        f"{escape(task)} ({', '.join(map(str, sorted(of_task)))})"
        for task, of_task in seeds.items()
    )


def _values(values: Mapping[str, Any]) -> str:
    if not values:
        return "All values are those of the file."
    body = [[escape(key), _value(value)] for key, value in values.items()]
    return markdown_table(["key", "value"], body, text_columns=2)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return escape(", ".join(map(str, value)) or "()")
    return escape(repr(value) if value == "" else str(value))


def _versions(runs: ReportedRuns) -> Block:
    rows = [["this page", list_versions(package_versions())]]
    for name, run in short_names(runs.pretrained).items():
        rows.append([escape(name), last_versions(run)])
    sessions = [read_sessions(run.folder / SESSIONS_FILE) for run in runs.finetuned]
    counts = Counter(
        list_versions(each[-1]["versions"]) if each else UNKNOWN for each in sessions
    )
    for used, count in counts.items():
        rows.append([counted(count, "fine-tuned run"), used])
    for each in itertools.chain(*runs.studies.values()):
        name = f"{each.study.title} of {escape(each.config.init_from)}"
        rows.append([name, list_versions(each.versions)])
    return markdown_table(["of", "versions"], rows, text_columns=2)
