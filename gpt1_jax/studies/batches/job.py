"""The batches job: what updates read, and which updates read a passage."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpt1_jax.data.files import locate, write_json_lines
from gpt1_jax.data.progress import show_line
from gpt1_jax.report.markdown import counted
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.console import say
from gpt1_jax.runs.outputs import check_output_file, say_wrote
from gpt1_jax.studies.batches.config import BatchesConfig
from gpt1_jax.studies.batches.training_text import TrainingText


def run(config: BatchesConfig, workdir: str) -> None:
    """Prints or writes the sequences of updates, or the updates that read a passage.

    Args:
      config: the run, and the updates or the passage.
      workdir: must be empty; the records go to standard output or to `config.output`.

    Raises:
      FileNotFoundError, UserError: if the run, its text, an update or the passage is
        not there, or the text has changed since.
    """
    config.check_workdir(workdir)
    if config.output:
        check_output_file(locate(config.output), "--config.output=FILE")
    text = TrainingText(run_folder.locate_run(config.init_from), config.data)
    if config.passage:
        places, records = text.find(config.passage)
        say(_summary(text, places, records), beside_output=True)
    else:
        records = [record for step in config.steps for record in text.batch(step)]
    if config.output:
        write_json_lines(locate(config.output), records)
        say_wrote(config.output)
        return
    for record in records:
        show_line(_describe(record))


def _summary(
    text: TrainingText, places: int, records: Sequence[Mapping[str, Any]]
) -> str:
    """How often a passage was read."""
    if not places:
        return "The training text does not hold this passage, so no update read it."
    whole = sum(record["part"] == "whole" for record in records)
    cut = len(records) - whole
    return (
        f"{counted(places, 'place')} in the training text; in {text.num_steps:,} "
        f"updates {counted(whole, 'window')} read it whole, "
        f"{counted(cut, 'window')} cut it."
    )


def _describe(record: Mapping[str, Any]) -> str:
    """A record for people: where its tokens are, and its text."""
    places = "; ".join(
        f"{place['document']}, tokens {place['first_token']:,} to "
        f"{place['first_token'] + place['num_tokens'] - 1:,}"
        for place in record["documents"]
    )
    head = f"update {record['step']:,}, row {record['row']}, epoch {record['epoch']}"
    if "part" in record:
        return f"{head}: place {record['place']:,}, {record['part']}, {places}"
    body = record["text"].replace("\n", "\n    ")
    return f"{head}: {places}\n    {body}\n"
