"""Finished fine-tuned runs, read back from their folders."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config import FinetuneConfig, load_saved, read_json
from gpt1_jax.runs.folder import CONFIG_FILE, RESULTS_FILE


class Finished(NamedTuple):
    """A finished fine-tuned run: what it was, and its scores."""

    folder: epath.Path
    config: FinetuneConfig  # with one task and one seed
    result: Mapping[str, Any]  # its results.json


def read(folder: epath.Path) -> Finished | None:
    """The finished run in a folder; None if there is none.

    Raises:
      ValueError: if a file of it is damaged.
    """
    results, config = folder / RESULTS_FILE, folder / CONFIG_FILE
    # Other jobs write results too, and leave out the configuration or name themselves.
    if not (results.exists() and config.exists()):
        return None
    if read_json(config).get("job") != "finetune":
        return None
    return Finished(folder, load_saved(config), read_json(results))


def find(folder: epath.Path) -> list[Finished]:
    """All finished runs in a folder and, at any depth, below it, sorted by path.

    Raises:
      ValueError: if a file of one is damaged.
    """
    found = (read(each) for each in _with_those_below(folder))
    return [run for run in found if run is not None]


def _with_those_below(folder: epath.Path) -> Iterator[epath.Path]:
    yield folder
    for each in sorted(folder.iterdir() if folder.exists() else ()):
        if each.is_dir() and each.name != "checkpoints":  # has many files, and no run
            yield from _with_those_below(each)


def model_kind(model: Mapping[str, Any]) -> str:
    """ "transformer" or "lstm", from the model's section of a configuration."""
    return model.get("kind", "transformer")
