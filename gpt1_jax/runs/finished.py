"""Finished fine-tuned runs, read back from their folders."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.config import SIZES, FinetuneConfig, load_saved, read_json
from gpt1_jax.config.model_section import depth
from gpt1_jax.runs.folder import CONFIG_FILE, RESULTS_FILE


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
    return Finished(folder, load_saved(config), read_json(results))
