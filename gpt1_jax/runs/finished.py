"""Finished fine-tuned runs, read back from their folders."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config import FinetuneConfig
from gpt1_jax.config.saved import load_saved, read_json
from gpt1_jax.config.sections import SIZES, depth
from gpt1_jax.errors import UserError
from gpt1_jax.runs.folder import CONFIG_FILE, RESULTS_FILE
from gpt1_jax.tasks.metrics import METRICS


class Finished(NamedTuple):
    """A finished fine-tuned run: what it was, and its scores."""

    folder: epath.Path
    config: FinetuneConfig  # with one task and one seed
    result: Mapping[str, Any]  # its results.json

    @property
    def kind(self) -> str:
        """ "transformer" or "lstm"."""
        return self.config.model["kind"]

    @property
    def is_from_scratch(self) -> bool:
        """Whether it took nothing but tokenizer and sizes of the run it names."""
        return self.config.transfer_layers == "none"

    @property
    def architecture(self) -> tuple[Any, ...]:
        """Its sizes and its tokenizer's fingerprint, or else where that is from."""
        file = self.folder / "tokenizer" / "tokenizer.json"
        saved = read_json(file).get("fingerprint") if file.exists() else None
        sizes = (self.config.model.get(name) for name in SIZES)
        return (saved or self.config.init_from, *sizes)

    @property
    def layers_transferred(self) -> int:
        """How many; -1 if not even the embeddings were."""
        named = self.config.transfer_layers
        if self.is_from_scratch:
            return -1
        return depth(self.config.model) if named == "all" else int(named)

    @property
    def is_whole(self) -> bool:
        """Whether all layers were transferred."""
        return self.layers_transferred == depth(self.config.model)


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
    return Finished(folder, load_saved(config), read_results(results))


def read_results(file: epath.Path) -> dict[str, Any]:
    """The results of a fine-tuned run.

    Raises:
      ValueError: if the file holds anything else.
    """
    results = read_json(file)
    for name in ("dev", "majority", "test", "train"):
        always = name in ("dev", "majority")  # and with labels
        if (always or name in results) and not _is_scores(results.get(name), always):
            raise _damaged(file, f"no {name!r} scores")
    for name in ("train_examples", "init_step"):
        if not _is_count(results.get(name, 0)):
            raise _damaged(file, f"a {name!r} that is no number")
    return results


def _is_scores(value: Any, labelled: bool) -> bool:
    """Whether a value is what `gpt1_jax.tasks.metrics.evaluate` returns.

    Of a split without labels it has no metrics.
    """
    if not isinstance(value, dict):
        return False
    subsets = value.get("subsets", {})
    return isinstance(subsets, dict) and all(
        isinstance(part, dict)
        and _is_count(part.get("n"))
        and (not labelled or not METRICS.keys().isdisjoint(part))
        and all(_is_score(part[name]) for name in METRICS.keys() & part.keys())
        for part in (value, *subsets.values())
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_score(value: Any) -> bool:
    """Whether a value is a number that a metric gives; a correlation may be NaN."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and not abs(value) > 1


def _damaged(file: epath.Path, what: str) -> UserError:
    return UserError(
        f"{file} holds {what}; it is damaged or was not written by this program. "
        "Remove it and run the fine-tuning again, or name other folders."
    )
