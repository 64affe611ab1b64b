"""The typed configurations of zero-shot tasks and of minimal pairs."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import DType, Names, NotNegative, Seed, not_empty
from gpt1_jax.config.finetune import ExamplesConfig
from gpt1_jax.studies.config import PairsDataConfig, ScoringConfig


@dataclasses.dataclass(frozen=True)
class ZeroShotDataConfig(ExamplesConfig):
    """Where the examples of zero-shot tasks come from."""

    # "tfds"; "hub": Parquet files of the Hugging Face Hub; "jsonl":
    # DIR/TASK/SPLIT.jsonl; "official": the files as their authors distribute them,
    # under DIR (not for dpr and wsc273).
    source: Literal["tfds", "hub", "jsonl", "official"] = "tfds"
    max_examples: NotNegative[int] = 0  # a random subset of each split; 0: all


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroShotConfig(ScoringConfig):
    """The configuration for tasks that the model was not trained on."""

    # Tasks, "all", or TASK:SPLIT for another split.
    tasks: Annotated[Names, not_empty]
    dtype: Literal["", DType] = ""  # "float32" or "bfloat16"; empty: the run's own
    seed: Seed = 0  # for the resamples that give standard errors
    data: ZeroShotDataConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinimalPairsConfig(ScoringConfig):
    """The configuration for pairs of sentences that differ in what is grammatical."""

    # Paradigms, terms or fields of BLiMP, "blimp" for all, or "custom".
    tasks: Annotated[Names, not_empty]
    data: PairsDataConfig
