"""The sections of fine-tuning: its examples, the user's own task, the head."""

import dataclasses
import math

from gpt1_jax.config.sections import (
    newer,
    not_negative,
    one_of,
    place,
    positive,
    require,
)

CUSTOM_TASK = "custom"


@dataclasses.dataclass(frozen=True)
class TaskDataConfig:
    """Where task examples come from, and how they are batched."""

    source: str
    dir: str = dataclasses.field(metadata=place())
    train: str = dataclasses.field(metadata=place())
    dev: str = dataclasses.field(metadata=place())
    test: str = dataclasses.field(metadata=place())
    max_train_examples: int
    max_dev_examples: int
    max_test_examples: int = dataclasses.field(metadata=newer(0))
    max_seq_len: int
    drop_long: bool = dataclasses.field(metadata=newer(False))
    seq_len_buckets: tuple[int, ...]
    packed_sizes: int = dataclasses.field(metadata=newer(0))

    def __post_init__(self):
        _check_source(self.source, self.dir, ("tfds", "jsonl", "official", "files"))
        not_negative(
            "data",
            self,
            "max_train_examples",
            "max_dev_examples",
            "max_test_examples",
            "max_seq_len",
            "packed_sizes",
        )
        buckets = self.seq_len_buckets
        require(
            bool(buckets) and buckets[0] > 0 and list(buckets) == sorted(set(buckets)),
            f"config.data.seq_len_buckets={buckets} must be rising lengths in tokens, "
            "such as 32,64,128.",
        )

    def longest(self, model_max_seq_len: int) -> int:
        """Longest sequence in tokens, for a model that reads `model_max_seq_len`."""
        return self.max_seq_len or model_max_seq_len

    def paths(self) -> dict[str, str]:
        """The files of a custom task by split."""
        named = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: path for split, path in named.items() if path}


@dataclasses.dataclass(frozen=True)
class ZeroShotDataConfig:
    """Where the examples of zero-shot tasks come from."""

    source: str
    dir: str = dataclasses.field(metadata=place())
    max_examples: int

    def __post_init__(self):
        _check_source(self.source, self.dir, ("tfds", "jsonl", "official"))
        not_negative("data", self, "max_examples")


def _check_source(source: str, folder: str, sources: tuple[str, ...]) -> None:
    one_of("data.source", source, sources)
    require(
        source in ("tfds", "files") or bool(folder),
        f"config.data.source={source!r} reads files below a folder; name it with "
        "--config.data.dir=DIR.",
    )


@dataclasses.dataclass(frozen=True)
class CustomTaskConfig:
    """A task of the user's own: the columns of its files and their meaning.

    Names may come from the command line, which gives a,b as the one text "a,b".
    """

    head: str
    text: tuple[str, ...]
    choices: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    score_range: tuple[float, float]
    metrics: tuple[str, ...]

    def __post_init__(self):
        one_of(
            "custom.head",
            self.head,
            ("", "classification", "similarity", "multiple_choice"),
        )
        for name in ("text", "choices", "labels", "metrics"):
            names = _different(f"custom.{name}", getattr(self, name))
            object.__setattr__(self, name, names)
        score_range = self.score_range
        require(
            -math.inf < score_range[0] <= score_range[1] < math.inf,
            f"config.custom.score_range={score_range} must be the lowest and the "
            "highest score, such as 0,5; or 0,0 if labels are not scores.",
        )


def split_names(values: tuple[str, ...]) -> tuple[str, ...]:
    """The separate names; a flag gives `a,b` as one text."""
    if len(values) != 1:
        return values
    return tuple(name.strip() for name in values[0].split(","))


def _different(key: str, values: tuple[str, ...]) -> tuple[str, ...]:
    names = split_names(values)
    require(
        all(names) and len(set(names)) == len(names),
        f"config.{key}={names} must be different names, none of them empty.",
    )
    return names


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """The linear layer on the extract token, and the losses (eq. 3 to 5)."""

    dropout: float
    score_loss: str
    aux_lm_weight: float

    def __post_init__(self):
        require(
            0.0 <= self.dropout < 1.0,
            f"config.head.dropout={self.dropout} must lie in [0, 1).",
        )
        one_of("head.score_loss", self.score_loss, ("soft_labels", "regression"))
        not_negative("head", self, "aux_lm_weight")


@dataclasses.dataclass(frozen=True)
class FinetuneEvalConfig:
    """When to evaluate, besides at the end of each epoch, and on what at the end."""

    batch_size: int
    first_epoch_steps: tuple[int, ...]
    train_examples: int = dataclasses.field(metadata=newer(0))

    def __post_init__(self):
        positive("eval", self, "batch_size")
        not_negative("eval", self, "train_examples")


COMPARISONS = ("", "scratch", "ablations", "layer_transfer", "aux_lm_weight")


@dataclasses.dataclass(frozen=True)
class SuiteConfig:
    """Runs over several tasks, seeds and variants (`gpt1_jax.config.comparisons`)."""

    compare: str = dataclasses.field(metadata=newer(""))
    lstm_init_from: str = dataclasses.field(metadata=newer("") | place())
    aux_lm_weights: tuple[float, ...] = dataclasses.field(metadata=newer(()))
    train_sizes: tuple[int, ...] = dataclasses.field(metadata=newer(()))
    keep_checkpoints: bool

    def __post_init__(self):
        one_of("suite.compare", self.compare, COMPARISONS)
        for name in ("aux_lm_weights", "train_sizes"):
            values = getattr(self, name)
            require(
                all(0 <= value < math.inf for value in values)
                and len(set(values)) == len(values),
                f"config.suite.{name}={values} must be different numbers, none of "
                "them below 0.",
            )
            require(
                bool(values) or self.compare != "aux_lm_weight",
                f"config.suite.{name} is empty, but config.suite.compare="
                "'aux_lm_weight' compares its values; name one or more.",
            )
