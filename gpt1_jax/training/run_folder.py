"""The run folder: what is written into it, and whether a run may go on in it."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, Protocol

import jax
from etils import epath

import gpt1_jax
from gpt1_jax.config import TrainConfig, default_cache_dir
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.parallel import processes

CONFIG_FILE = "config.json"
_WAY_OUT = "Give the saved values, or name another --workdir for a new run."


def locate(workdir: str) -> epath.Path:
    """The run folder as an absolute path, as orbax wants it; gs:// stays as it is."""
    return epath.Path(workdir if "://" in workdir else os.path.abspath(workdir))


class JobConfig(Protocol):
    """A job's configuration."""

    def to_dict(self) -> dict[str, Any]: ...


def check(folder: epath.Path, config: JobConfig, *, finished: bool = False) -> None:
    """Refuses a folder that cannot be written or belongs to another run.

    Args:
      folder: of the run.
      config: of the run.
      finished: whether it holds results, with or without checkpoints.

    Raises:
      PermissionError: if nothing can be written there.
      ValueError: if it holds checkpoints or results of another configuration.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{jax.process_index()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise PermissionError(
            f"The run folder {folder} cannot be written ({error.strerror}); name "
            "another with --workdir=DIR."
        ) from error
    saved, checkpoints = folder / CONFIG_FILE, folder / "checkpoints"
    begun = checkpoints.exists() and any(checkpoints.iterdir())
    if saved.exists() and (begun or finished):
        _refuse_changes(json.loads(saved.read_text()), config.to_dict(), str(folder))


def _refuse_changes(
    saved: Mapping[str, Any], current: Mapping[str, Any], where: str
) -> None:
    if saved["job"] != current["job"]:
        raise ValueError(
            f"The checkpoints in {where} belong to a run of the job {saved['job']!r}, "
            f"not {current['job']!r}; name another --workdir."
        )
    changes = changed_keys(saved, current)
    if changes:
        listed = "; ".join(
            f"config.{key} is {now!r}, saved {before!r}"
            for key, (before, now) in changes.items()
        )
        raise ValueError(
            f"The checkpoints in {where} belong to another configuration: {listed}. "
            + _WAY_OUT
        )


def write(folder: epath.Path, config: JobConfig, tokenizer: Tokenizer) -> None:
    """Writes the resolved configuration and the tokenizer."""
    if not processes.is_main_process():
        return
    write_json(folder / CONFIG_FILE, config.to_dict())
    if not (folder / "tokenizer").exists():
        tokenizer.save(folder / "tokenizer")


def write_json(path: epath.Path, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def write_whole(path: epath.Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to: it is saved with it and compared on resume."""

    config: Mapping[str, Any]
    tokenizer_fingerprint: str
    data_fingerprint: str

    def metadata(self, step: int) -> dict[str, Any]:
        """The record saved beside the state of a step."""
        return {
            "config": self.config,
            "tokenizer": self.tokenizer_fingerprint,
            "corpus": self.data_fingerprint,
            "data": {"next_index": step},
            "versions": {"gpt1_jax": gpt1_jax.__version__, "jax": jax.__version__},
        }

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raises a ValueError if a saved record is another run's."""
        _refuse_changes(saved["config"], self.config, "this run folder")
        for name, found, what in (
            ("tokenizer", self.tokenizer_fingerprint, "maps text to other ids"),
            ("corpus", self.data_fingerprint, "was prepared from other text"),
        ):
            if saved[name] != found:
                raise ValueError(
                    f"The {name} of this run {what}: its fingerprint is {found[:12]}, "
                    f"the checkpoint's {saved[name][:12]}. {_WAY_OUT}"
                )


# What a checkpoint's future depends on: a resumed run must agree on all of it.
# Everything else (cadences, cache folders, layer loop, ...) may change freely.
_FREE_KEYS = {
    "preset",
    "model.layer_loop",
    "model.remat",
    "data.cache_dir",
    "data.num_workers",
    "train.max_nonfinite_steps",
    "train.compilation_cache_dir",
}
_FREE_SECTIONS = {"eval", "checkpoint", "log", "suite"}


def changed_keys(
    saved: Mapping[str, Any], current: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The keys whose change would make a resumed run another run.

    Args:
      saved: `config.to_dict()` as read back from a checkpoint.
      current: the same of the run that wants to resume.

    Returns:
      `{key: (saved value, current value)}`, empty when the run may resume.
    """

    def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for key, value in tree.items():
            if isinstance(value, Mapping):
                flat.update(flatten(value, f"{prefix}{key}."))
            else:
                flat[prefix + key] = value
        return flat

    before, now = (flatten(json.loads(json.dumps(each))) for each in (saved, current))
    return {
        key: (before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if key not in _FREE_KEYS
        and key.split(".")[0] not in _FREE_SECTIONS
        and before.get(key) != now.get(key)
    }


def configure_jax(train: TrainConfig) -> None:
    """Sets the matrix precision and turns the persistent compilation cache on."""
    jax.config.update("jax_default_matmul_precision", train.matmul_precision)
    cache = train.compilation_cache_dir or f"{default_cache_dir()}/xla"
    jax.config.update("jax_compilation_cache_dir", cache)
