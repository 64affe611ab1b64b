"""New examples to label and prompts to continue, as people write them."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from etils import epath

from gpt1_jax.config.checks import check_encodable
from gpt1_jax.data.tables import FORMATS, STANDARD_INPUT, open_input, read_rows
from gpt1_jax.data.text import text_lines
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.task import Example, Record, Task

_JSON_SUFFIXES = (".json", ".ndjson")  # besides .jsonl


def read_examples(task: Task, source: str) -> list[Example]:
    """Reads examples to label; labels they already have are ignored.

    Args:
      task: the task the model was trained for.
      source: a file, or "-" for standard input. A `.jsonl`, `.json` or `.ndjson` file
        holds a JSON object on each line, a `.tsv` or `.csv` file has a header; both use
        the task's column names. Any other file holds an example on each line, as
        `examples_of_lines` reads it; so does standard input, unless it begins with "{":
        then it is JSON lines.

    Returns:
      The examples in the order of the source. An example's `id` is the value in
      the column `idx`, `id` or `index`, or "".

    Raises:
      FileNotFoundError: if the file cannot be read.
      ValueError: naming the line of an example that cannot be read, for instance
        because it is not UTF-8; or if there are no examples.
    """
    name = "standard input" if source == STANDARD_INPUT else source
    with open_input(source, or_standard_input=True) as file:
        file, format_name = _format(source, file)
        if format_name:
            examples = _examples(task, read_rows(file, name, format_name))
        else:
            examples = examples_of_lines(task, text_lines(file, name), name)
    if not examples:
        raise UserError(f"{name} holds no example.")
    return examples


def read_prompts(source: str) -> list[str]:
    """Reads prompts: one on each line that is not blank, or in JSON lines.

    Args:
      source: as for `read_examples`; the column is named "prompt".

    Raises:
      FileNotFoundError: if the file cannot be read.
      ValueError: naming the line that holds no prompt; or if there are none.
    """
    name = "standard input" if source == STANDARD_INPUT else source
    with open_input(source, or_standard_input=True) as file:
        file, format_name = _format(source, file)
        if format_name:
            rows = read_rows(file, name, format_name)
            prompts = [_prompt(where, row) for where, row in rows]
        else:
            lines = enumerate(text_lines(file, name), 1)
            prompts = []
            for number, line in lines:
                check_encodable(line, f"{name}:{number}")
                if line.strip():
                    prompts.append(line.rstrip("\r\n"))
    if not prompts:
        raise UserError(f"{name} holds no prompt.")
    return prompts


def examples_of_lines(task: Task, lines: Iterable[str], name: str) -> list[Example]:
    """The examples on lines that are not blank, one per line.

    Args:
      task: the task. A line holds the texts of its columns in order, then of its
        choices, separated by tabs.
      lines: the lines, with or without their ends.
      name: the source's name, for messages.

    Raises:
      ValueError: naming the line that has too few or too many texts.
    """

    def rows() -> Iterator[tuple[str, dict[str, Any]]]:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{name}:{number}"
                check_encodable(line, where)
                yield where, _cells(task, line, where)

    return _examples(task, rows())


def _prompt(where: str, row: Mapping[str, Any]) -> str:
    prompt = row.get("prompt")
    if not isinstance(prompt, str):
        raise UserError(
            f'{where}: there is no text "prompt"; the columns are {sorted(row)}.'
        )
    check_encodable(prompt, where)
    return prompt


def _examples(task: Task, rows: Iterable[tuple[str, Any]]) -> list[Example]:
    task = dataclasses.replace(task, drop_unlabelled=False)
    found = []
    for where, row in rows:
        columns = {name: value for name, value in row.items() if name != task.label}
        example = task.example(Record(columns, where), needs_label=False)
        if example is not None:
            found.append(example)
    return found


def _cells(task: Task, line: str, where: str) -> dict[str, Any]:
    cells = line.rstrip("\r\n").split("\t")
    choices = len(task.labels) if task.choices else 0
    names = [*task.text, *task.choices]
    wanted = len(task.text) + choices
    if len(cells) != wanted:
        raise UserError(
            f"{where}: {task.title} needs {wanted} texts separated by tabs, "
            f"{', '.join(names)}, but the line holds {len(cells)}."
        )
    if len(task.choices) == 1:
        return dict(zip(names, [*cells[:-choices], cells[-choices:]], strict=True))
    return dict(zip(names, cells, strict=True))


def _format(source: str, file: Iterable[bytes]) -> tuple[Iterable[bytes], str]:
    """The same lines, and the name of their format, "" for plain lines."""
    suffix = epath.Path(source).suffix.lower()
    if suffix in FORMATS:
        return file, FORMATS[suffix]
    if suffix in _JSON_SUFFIXES:
        return file, "jsonl"
    if source != STANDARD_INPUT:
        return file, ""
    lines = iter(file)
    first: list[bytes] = []  # up to the first line that is not blank
    for line in lines:
        first.append(line)
        if line.strip():
            break
    begins = first[-1].removeprefix(b"\xef\xbb\xbf").lstrip() if first else b""
    return itertools.chain(first, lines), "jsonl" if begins[:1] == b"{" else ""
