"""What a checkpoint belongs to, and when a run is no longer the same run."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import jax

import gpt1_jax
from gpt1_jax.config import flatten, upgrade
from gpt1_jax.errors import UserError

_WAY_OUT = "Use the saved values, or name another --workdir for a new run."

# Where a run can start from another one, there is a way to what is refused here.
_LENGTH_KEYS = {"train.num_steps", "train.num_epochs"}
_FURTHER = (
    " To train a finished run further, start a new one from it: "
    "--config.init_from=FOLDER --workdir=NEW (with --config.init_optimizer=True its "
    "schedule goes on)."
)

# What may change freely when a run resumes: cadences, cache folders, layer loop, ...
# A checkpoint's future depends on everything else, so that must stay the same.
_FREE_KEYS = {
    "preset",
    "model.layer_loop",
    "model.remat",
    "data.cache_dir",
    "data.num_workers",
    "train.max_nonfinite_steps",
    "train.compilation_cache_dir",
    "compilation_cache_dir",
    "batch_tokens",
}
_FREE_SECTIONS = {"mesh", "eval", "checkpoint", "log", "distributed", "suite"}


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to; saved with it and compared on resume."""

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
        refuse_changes(saved["config"], self.config, "this run folder")
        for name, found, what in (
            ("tokenizer", self.tokenizer_fingerprint, "maps text to other ids"),
            ("corpus", self.data_fingerprint, "was prepared from different text"),
        ):
            if saved[name] != found:
                raise UserError(
                    f"The {name} of this run {what}: its fingerprint is {found[:12]}, "
                    f"the checkpoint's {saved[name][:12]}. {_WAY_OUT}"
                )


def refuse_changes(
    saved: Mapping[str, Any], current: Mapping[str, Any], where: str
) -> None:
    """Raises a ValueError if a configuration would turn the saved run into another.

    Args:
      saved: the values read back, written by this version or an older one.
      current: `config.to_dict()` of the run that is to continue.
      where: where the saved run is, for the message.
    """
    if saved.get("job") != current["job"]:
        raise UserError(
            f"What is saved in {where} belongs to a run of the job "
            f"{saved.get('job')!r}, not {current['job']!r}; name another --workdir."
        )
    changes = changed_keys(saved, current)
    if changes:
        listed = "; ".join(
            f"config.{key} is {now!r}, saved {before!r}"
            for key, (before, now) in changes.items()
        )
        longer = _LENGTH_KEYS & changes.keys() and "init_optimizer" in current
        raise UserError(
            f"What is saved in {where} belongs to another configuration: {listed}. "
            + _WAY_OUT
            + (_FURTHER if longer else "")
        )


def changed_keys(
    saved: Mapping[str, Any], current: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The keys whose change would turn a resumed run into another run.

    Args:
      saved: `config.to_dict()` as read back from a checkpoint.
      current: the same for the run that is to resume.

    Returns:
      `{key: (saved value, current value)}`, empty when the run may resume.
    """
    before, now = (fixed_values(each) for each in (upgrade(saved), current))
    return {
        key: (before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    }


def fixed_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run's configuration, by flat key, that make it the run it is."""
    return {
        key: value
        for key, value in flatten(json.loads(json.dumps(config))).items()
        if key not in _FREE_KEYS and key.split(".")[0] not in _FREE_SECTIONS
    }
