"""Fine-tuned runs by what they started from, and by what the paper compares."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpt1_jax.report.markdown import escape
from gpt1_jax.report.paper import AUX_LM_WEIGHT, TABLE_5_COLUMNS
from gpt1_jax.runs.past_runs import Finished

_TABLE_5_TASKS = {column.task for column in TABLE_5_COLUMNS}


class Source(NamedTuple):
    """What fine-tuned runs started from."""

    init_from: str
    step: str | None  # "step 1,200"; None: from scratch, with its tokenizer and sizes
    kind: str  # "transformer" or "lstm"

    @classmethod
    def of(cls, run: Finished) -> "Source":
        """What a run started from."""
        if run.is_from_scratch:
            return cls(run.config.init_from, None, run.kind)
        step = run.result.get("init_step")
        known = step if isinstance(step, int) else run.config.step
        return cls(run.config.init_from, describe_step(known), run.kind)

    def describe(self) -> str:
        """For a heading, as Markdown."""
        kind = "an LSTM" if self.kind == "lstm" else "a Transformer"
        if self.step is None:
            return (
                f"From scratch, {kind} with the tokenizer and sizes of "
                f"{escape(self.init_from)}"
            )
        return f"From {escape(self.init_from)}, {kind} at {self.step}"


def by_source(finished: Sequence[Finished]) -> dict[Source, list[Finished]]:
    """The runs of each source, in order.

    Those from scratch stand beside the runs of every source with the same tokenizer
    and sizes, whichever they name, and by themselves if there is none.
    """
    architectures = {
        Source.of(run): run.architecture for run in finished if not run.is_from_scratch
    }
    groups: dict[Source, list[Finished]] = {}
    for run in finished:
        sources = [Source.of(run)]
        if run.is_from_scratch:
            own = run.architecture
            alike = [each for each, other in architectures.items() if other == own]
            sources = alike or sources
        for source in sources:
            groups.setdefault(source, []).append(run)
    return groups


def describe_step(step: int | str) -> str:
    """A step to start from, as a number or as a configuration has it."""
    number = str(step).isdecimal()
    return f"step {int(step):,}" if number else f"its {step} step"


def as_in_paper(finished: Sequence[Finished]) -> dict[str, dict[str, list[Any]]]:
    """The results for Tables 2 to 4, as `gpt1_jax.report.tables` takes them.

    Those with the paper's weight of the auxiliary objective, all layers or none
    transferred and, of each task and start, the most training examples.
    """
    chosen: dict[str, dict[str, list[Finished]]] = {}
    for run in shown(finished):
        scratch = run.is_from_scratch
        usual = run.config.head.aux_lm_weight == AUX_LM_WEIGHT
        if usual and (scratch or run.is_whole):
            by_start = chosen.setdefault(run.config.tasks[0], {})
            start = "scratch" if scratch else "pretrained"
            by_start.setdefault(start, []).append(run)
    return {
        task: {start: _largest(runs) for start, runs in by_start.items()}
        for task, by_start in chosen.items()
    }


def _largest(runs: Sequence[Finished]) -> list[Mapping[str, Any]]:
    """The results of the runs on the most training examples; 0 stands for all."""
    sizes = [run.config.data.max_train_examples or float("inf") for run in runs]
    return [
        run.result for run, size in zip(runs, sizes, strict=True) if size == max(sizes)
    ]


def for_table_5(finished: Sequence[Finished]) -> list[tuple[str, list[Finished]]]:
    """What stands in one Table 5 each: a Transformer's runs and those of an LSTM.

    Returns:
      Pairs of a heading and runs; none without a run on a task of Table 5.
    """
    on_tasks = [run for run in finished if run.config.tasks[0] in _TABLE_5_TASKS]
    groups = by_source(on_tasks)
    lstms = [source for source in groups if source.kind == "lstm"]
    others = [source for source in groups if source.kind != "lstm"]
    if not others:
        return [(lstm.describe(), groups[lstm]) for lstm in lstms]
    tables = []
    for source in others:
        for lstm in lstms or (None,):
            title, runs = source.describe(), groups[source]
            if lstm is not None:
                title += f"; LSTM: {escape(lstm.init_from)}"
                runs = [*runs, *groups[lstm]]
            tables.append((title, runs))
    return tables


def not_ablated(finished: Sequence[Finished]) -> list[str]:
    """The columns of Table 5 for which there is no run."""
    own = [run for run in finished if run.kind != "lstm"]
    weights = {run.config.head.aux_lm_weight > 0 for run in own if run.is_whole}
    starts = {run.config.transfer_layers for run in own}
    lines = {
        "with the auxiliary objective": True in weights,
        "without pre-training": "none" in starts,
        "without the auxiliary objective": False in weights,
        "with an LSTM (`--config.suite.lstm_init_from`)": own != list(finished),
    }
    return [name for name, done in lines.items() if not done]


def shown(finished: Sequence[Finished]) -> list[Finished]:
    """The runs with what their configurations name escaped, to be written out."""
    return [
        run._replace(
            config=dataclasses.replace(
                run.config,
                tasks=tuple(map(escape, run.config.tasks)),
                init_from=escape(run.config.init_from),
            )
        )
        for run in finished
    ]
