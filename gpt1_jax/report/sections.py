"""The sections of a report, from the runs that it is about."""

import functools
import statistics
from collections import Counter
from collections.abc import Sequence

from gpt1_jax.report import analyses, commands, figures
from gpt1_jax.report.configurations import one, several
from gpt1_jax.report.figures import LossCurve
from gpt1_jax.report.gather import Material
from gpt1_jax.report.markdown import counted, escape, markdown_table
from gpt1_jax.report.model_card import UNKNOWN, card, hardware, listed, versions
from gpt1_jax.report.page import (
    Block,
    Document,
    Folded,
    Picture,
    Section,
    Text,
    missing,
)
from gpt1_jax.runs.past_runs import Pretrained, tokens_before
from gpt1_jax.runs.records import SESSIONS_FILE, package_versions, read_sessions


def document(material: Material, title: str, date: str) -> Document:
    """The whole report.

    Args:
      material: the runs.
      title: its heading, plain text.
      date: of today, for people.
    """
    counts = [
        counted(len(material.pretrained), "pre-trained run"),
        counted(len(material.finished), "finished fine-tuned run"),
        counted(len(material.zero_shot), "zero-shot evaluation"),
    ]
    version = package_versions()["gpt1_jax"]
    introduction = (
        "What was trained and measured in a reproduction of GPT-1 (Radford et al. "
        "2018, *Improving Language Understanding by Generative Pre-Training*), beside "
        f"the paper's numbers: {', '.join(counts)}. Made on {date} by gpt1_jax "
        f"{escape(version)} from the run folders alone. Test scores are the paper's "
        "unless a column says otherwise; ours are on the development splits."
    )
    names = short_names(material.pretrained)
    sections = [
        Section("Models", _models(material, names)),
        Section("Pre-training", _pretraining(material, names)),
        Section("Fine-tuning (Tables 2 to 4)", analyses.tables_2_to_4(material)),
        Section("Ablations (Table 5)", analyses.table_5(material)),
        Section(
            "Layers transferred (Figure 2, left)", analyses.layer_transfer(material)
        ),
        Section(
            "Zero-shot over updates (Figure 2, right)",
            analyses.over_updates(material),
        ),
        Section("Weight of the auxiliary objective", analyses.aux_lm_weight(material)),
        Section("Configurations", _configurations(material, names)),
        Section("Versions", _versions(material, names)),
    ]
    return Document(title, introduction, sections)


def short_names(runs: Sequence[Pretrained]) -> list[str]:
    """What to call runs: the ends of their paths, as long as it takes to differ."""
    parts = [str(run.folder).strip("/").split("/") for run in runs]
    longest = max(map(len, parts), default=0)
    for length in range(1, longest + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return []


def _models(material: Material, names: Sequence[str]) -> list[Block]:
    if not names:
        return [
            missing("a pre-trained run, whose card this would be", commands.pretrain())
        ]
    runs = zip(names, material.pretrained, strict=True)
    return [
        Text(f"### {escape(name)}\n\n{card(run, _before(material, run))}")
        for name, run in runs
    ]


def _before(material: Material, run: Pretrained) -> int:
    return tokens_before(run, material.pretrained)


# --- pre-training -------------------------------------------------------------------


def _pretraining(material: Material, names: Sequence[str]) -> list[Block]:
    runs = [
        (name, run)
        for name, run in zip(names, material.pretrained, strict=True)
        if run.records
    ]
    if not runs:
        return [missing("the records of a pre-training run", commands.pretrain())]
    curves = [_loss_curve(name, run, _before(material, run)) for name, run in runs]
    last = "; ".join(
        f"{curve.name}: {curve.valid[1][-1]:.3f}" for curve in curves if curve.valid[1]
    )
    picture = Picture(
        "pretraining",
        "Training and validation loss over the tokens read. Last validation loss in "
        f"nats per token: {last or 'none yet'}.",
        functools.partial(figures.pretraining_loss, curves),
    )
    header = ["run", "hardware", "updates", "tokens", "validation, nats per token"]
    header += ["time", "in training steps", "tokens per second", "MFU"]
    table = markdown_table(header, [_speed(*each) for each in runs], text_columns=2)
    note = (
        "Time is that of the programs that trained, from their start to their end, "
        "with compilation, evaluation and checkpoints; steps done again after a crash "
        "count twice. Speed and MFU, the share of the device's peak, are medians over "
        "training. Losses compare only between runs with one tokenizer and one "
        "validation text; bits per word, in the cards, between tokenizers too."
    )
    return [picture, Text(table), Text(note)]


def _loss_curve(name: str, run: Pretrained, before: int) -> LossCurve:
    """A run's curve, which goes on where that of the run it started from ends."""

    def over_tokens(metric: str) -> tuple[list[float], list[float]]:
        steps, values = run.series(metric)
        return [before + step * run.tokens_per_step for step in steps], values

    return LossCurve(name, over_tokens("loss"), over_tokens("valid_loss"))


def _speed(name: str, run: Pretrained) -> list[str]:
    loss, rates = run.last("valid_loss"), run.series("tokens_per_second")[1]
    shares, seconds = run.series("mfu")[1], run.seconds()
    return [
        escape(name),
        hardware(run),
        f"{run.step:,}",
        f"{run.tokens:,}",
        "-" if loss is None else f"{loss:.3f}",
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


# --- what was configured and used -----------------------------------------------------


def _configurations(material: Material, names: Sequence[str]) -> list[Block]:
    blocks: list[Block] = [
        Text("Only values that differ from those of the files in `configs/`.")
    ]
    for name, run in zip(names, material.pretrained, strict=True):
        blocks.append(Folded(f"Pre-training: {name}", one(run.config)))
    if material.finished:
        count = counted(len(material.finished), "run")
        blocks.append(Folded(f"Fine-tuning: {count}", several(material.finished)))
    for each in material.zero_shot:
        title = f"Zero-shot: {each.config.init_from}"
        blocks.append(Folded(title, one(each.config)))
    return blocks


def _versions(material: Material, names: Sequence[str]) -> list[Block]:
    rows = [["this page", listed(package_versions())]]
    for name, run in zip(names, material.pretrained, strict=True):
        rows.append([escape(name), versions(run)])
    finetuned: Counter[str] = Counter()
    for tuned in material.finished:
        sessions = read_sessions(tuned.folder / SESSIONS_FILE)
        finetuned[listed(sessions[-1]["versions"]) if sessions else UNKNOWN] += 1
    for shown, count in finetuned.items():
        rows.append([f"{counted(count, 'fine-tuned run')}", shown])
    for each in material.zero_shot:
        rows.append(
            [
                f"zero-shot of {escape(each.config.init_from)}",
                listed(each.versions),
            ]
        )
    return [Text(markdown_table(["of", "versions"], rows, text_columns=2))]
