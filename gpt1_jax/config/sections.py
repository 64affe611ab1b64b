"""The sections that jobs share; `configs/` documents every key."""

import dataclasses
import os
import re
from typing import Any

from gpt1_jax.errors import UserError

DTYPES = ("float32", "bfloat16")


def newer(neutral: Any) -> dict[str, Any]:
    """Metadata of a field whose key is newer than some run folders.

    Args:
      neutral: the value that does what runs did before the key existed.
    """
    return {"neutral": neutral}


def place(*, several: bool = False, local: bool = False) -> dict[str, Any]:
    """Metadata of a field that names a file or folder.

    Args:
      several: whether it may name several, separated by commas.
      local: whether it must be on this machine, not in a bucket.
    """
    return {"place": {"several": several, "local": local}}


def require(condition: bool, message: str) -> None:
    """Raises a ValueError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


def is_device(path: str) -> bool:
    """Whether an output is a device such as /dev/stdout, whose name has no ending."""
    return path.startswith("/dev/") and not path.startswith("/dev/shm/")  # a folder


def one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuses a value that is not one of the choices."""
    require(
        value in choices,
        f"config.{key}={value!r} is not known; choose one of "
        f"{', '.join(choice or repr(choice) for choice in choices)}.",
    )


DEFAULT, NEWEST, BEST = "default", "newest", "best"  # in place of a step's number
ALL, KEPT = "all", "kept"  # each saved step, or those that are kept for good


def check_step(key: str, step: str, *several: str) -> None:
    """Refuses what names no saved step of a run.

    Args:
      key: what holds the step, for the message.
      step: `DEFAULT`, which is a fine-tuned run's best step and any other run's newest,
        `NEWEST`, `BEST` or a number.
      several: further words that are allowed.
    """
    words = (DEFAULT, NEWEST, BEST, *several)
    require(
        step in words or re.fullmatch("[0-9]{1,18}", step) is not None,
        f"{key}={step!r} must be {', '.join(words)} or the number of a saved step, "
        "such as 1200.",
    )


def positive(section: str, values: Any, *names: str) -> None:
    """Refuses values of a section that are not above 0."""
    for name in names:
        value = getattr(values, name)
        require(value > 0, f"config.{section}.{name}={value} must be positive.")


def not_negative(section: str, values: Any, *names: str) -> None:
    """Refuses values of a section that are below 0."""
    for name in names:
        value = getattr(values, name)
        require(value >= 0, f"config.{section}.{name}={value} must not be negative.")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Which tokenizer turns text into ids."""

    kind: str
    vocab_size: int
    path: str = dataclasses.field(metadata=place(local=True))
    train_megabytes: float

    def __post_init__(self):
        one_of("tokenizer.kind", self.kind, ("sentencepiece", "gpt1"))
        positive("tokenizer", self, "vocab_size", "train_megabytes")
        require(
            self.kind != "gpt1" or bool(self.path),
            "config.tokenizer.kind='gpt1' needs OpenAI's two vocabulary files; name "
            "their folder (the `model/` folder of openai/finetune-transformer-lm) "
            "with --config.tokenizer.path=DIR.",
        )


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the text comes from and where its token shards are kept."""

    source: str
    train: str = dataclasses.field(metadata=place(several=True))
    valid: str = dataclasses.field(metadata=place(several=True))
    valid_fraction: float
    valid_split: str = dataclasses.field(metadata=newer("documents"))
    jsonl_field: str = dataclasses.field(metadata=newer(""))
    tfds_feature: str
    tfds_data_dir: str = dataclasses.field(metadata=place())
    cache_dir: str = dataclasses.field(metadata=place(local=True))
    num_workers: int

    def __post_init__(self):
        one_of("data.source", self.source, ("builtin", "text", "tfds"))
        require(
            0.0 < self.valid_fraction < 1.0,
            f"config.data.valid_fraction={self.valid_fraction} must lie in (0, 1).",
        )
        one_of("data.valid_split", self.valid_split, ("size", "documents"))
        not_negative("data", self, "num_workers")
        if self.source == "builtin":
            require(
                not self.train and not self.valid,
                f"config.data.train={self.train!r} or config.data.valid="
                f"{self.valid!r} is set, but config.data.source='builtin' reads the "
                "documentation on this machine; add --config.data.source=text.",
            )
        elif self.source == "text":
            require(
                bool(self.train),
                "config.data.source='text' needs --config.data.train=PATHS: files, "
                "folders or globs, separated by commas.",
            )
        else:
            require(
                bool(self.train),
                "config.data.source='tfds' needs --config.data.train=NAME:SPLIT, for "
                "example lm1b:train.",
            )


_MAX_STEPS = 2**31 - 1  # they are counted in int32


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adam as released, its schedule and clipping (sec. 4.1; opt.py)."""

    name: str
    learning_rate: float
    b1: float
    b2: float
    eps: float
    weight_decay: float
    clip_norm: float
    schedule: str
    warmup_steps: int
    warmup_fraction: float

    def __post_init__(self):
        one_of("optimizer.name", self.name, ("released_adam", "adamw"))
        one_of(
            "optimizer.schedule",
            self.schedule,
            ("cosine", "cosine_after_warmup", "linear", "constant"),
        )
        positive("optimizer", self, "learning_rate", "eps", "clip_norm")
        not_negative("optimizer", self, "weight_decay", "warmup_steps")
        require(
            0.0 <= self.warmup_fraction < 1.0,
            f"config.optimizer.warmup_fraction={self.warmup_fraction} must lie in "
            "[0, 1).",
        )
        require(
            not (self.warmup_steps and self.warmup_fraction),
            f"config.optimizer.warmup_steps={self.warmup_steps} and "
            f"config.optimizer.warmup_fraction={self.warmup_fraction}: set one of them "
            "and leave the other at 0.",
        )
        for name in ("b1", "b2"):
            beta = getattr(self, name)
            require(
                0.0 <= beta < 1.0, f"config.optimizer.{name}={beta} must lie in [0, 1)."
            )

    def check_num_steps(self, num_steps: int, counted: str) -> None:
        """Refuses a run that ends before it has warmed up, or has too many updates.

        Args:
          num_steps: updates in the whole run.
          counted: what their number comes from, for the message.
        """
        require(
            num_steps <= _MAX_STEPS,
            f"The run has {num_steps:,} updates ({counted}); steps are numbered up to "
            f"{_MAX_STEPS:,}. Train for less.",
        )
        require(
            num_steps > self.warmup_steps,
            f"The run has {num_steps:,} updates ({counted}), all within "
            f"config.optimizer.warmup_steps={self.warmup_steps}; train longer, or warm "
            f"up for less with --config.optimizer.warmup_steps={num_steps // 10}.",
        )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Length, batch and numerical guards of the training run."""

    num_epochs: float
    num_steps: int
    batch_size: int
    accumulation_steps: int
    max_nonfinite_steps: int
    matmul_precision: str
    compilation_cache_dir: str = dataclasses.field(metadata=place())

    @property
    def compilation_cache(self) -> str:
        """The folder for compiled programs: as configured, or else the default."""
        return compilation_cache(self.compilation_cache_dir)

    def __post_init__(self):
        not_negative("train", self, "num_epochs", "num_steps")
        require(
            self.num_epochs <= _MAX_STEPS,
            f"config.train.num_epochs={self.num_epochs} must be at most "
            f"{_MAX_STEPS:,}, as steps are.",
        )
        require(
            (self.num_epochs > 0) != (self.num_steps > 0),
            f"config.train.num_epochs={self.num_epochs} and config.train.num_steps="
            f"{self.num_steps}: set one of them and leave the other at 0.",
        )
        positive("train", self, "batch_size", "max_nonfinite_steps")
        not_negative("train", self, "accumulation_steps")
        require(
            self.batch_size % max(1, self.accumulation_steps) == 0,
            f"config.train.batch_size={self.batch_size} must be a multiple of "
            f"config.train.accumulation_steps={self.accumulation_steps}.",
        )
        one_of(
            "train.matmul_precision",
            self.matmul_precision,
            ("default", "high", "highest"),
        )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How the devices share the work and the state."""

    sharding: str = dataclasses.field(metadata=newer("replicated"))
    tensor_parallelism: int = dataclasses.field(metadata=newer(1))

    def __post_init__(self):
        one_of("mesh.sharding", self.sharding, ("replicated", "optimizer", "full"))
        positive("mesh", self, "tensor_parallelism")
        require(
            self.sharding == "replicated" or self.tensor_parallelism == 1,
            f"config.mesh.sharding={self.sharding!r} and config.mesh."
            f"tensor_parallelism={self.tensor_parallelism}: choose one way to split "
            "the state; leave the other at 'replicated' or 1.",
        )


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Validation and the text sampled at each evaluation."""

    every_steps: int
    batch_size: int
    max_batches: int = dataclasses.field(metadata=newer(0))
    sample_prompt: str
    sample_tokens: int
    sample_temperature: float
    sample_top_k: int

    def __post_init__(self):
        positive("eval", self, "every_steps", "batch_size", "sample_temperature")
        not_negative("eval", self, "max_batches", "sample_tokens", "sample_top_k")


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How text is generated; the keys are those of transformers' GenerationConfig."""

    max_new_tokens: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    stop_strings: tuple[str, ...]

    def __post_init__(self):
        positive("sampling", self, "max_new_tokens", "temperature")
        positive("sampling", self, "repetition_penalty")
        not_negative("sampling", self, "top_k")
        for name in ("top_p", "min_p"):
            value, above = getattr(self, name), name == "min_p"
            require(
                0.0 <= value <= 1.0 and (above or value > 0.0),
                f"config.sampling.{name}={value} must lie in "
                f"{'[' if above else '('}0, 1].",
            )
        require(
            all(self.stop_strings),
            f"config.sampling.stop_strings={self.stop_strings} holds an empty text, "
            "which every text contains.",
        )


# The values that transformers' GenerationConfig has.
DEFAULT_SAMPLING = SamplingConfig(
    max_new_tokens=20,
    do_sample=False,
    temperature=1.0,
    top_k=50,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    stop_strings=(),
)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """How often a run is saved and how many saved steps are kept."""

    every_steps: int
    keep_latest: int
    keep_best: int

    def __post_init__(self):
        positive("checkpoint", self, "every_steps")
        require(
            self.keep_latest >= 2,
            f"config.checkpoint.keep_latest={self.keep_latest} must be at least 2: the "
            "newest checkpoint may turn out to be damaged.",
        )
        not_negative("checkpoint", self, "keep_best")


_LONGEST_WAIT = 1_000_000


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """How long the processes of a run wait for each other, and for a stuck one."""

    initialization_seconds: int = dataclasses.field(metadata=newer(300))
    heartbeat_seconds: int = dataclasses.field(metadata=newer(100))
    shutdown_seconds: int = dataclasses.field(metadata=newer(300))
    stuck_minutes: float = dataclasses.field(metadata=newer(30.0))

    def __post_init__(self):
        positive("distributed", self, "initialization_seconds", "shutdown_seconds")
        require(
            self.heartbeat_seconds >= 10,
            f"config.distributed.heartbeat_seconds={self.heartbeat_seconds} must be at "
            "least 10, or a busy process is taken for a dead one.",
        )
        not_negative("distributed", self, "stuck_minutes")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            require(
                value <= _LONGEST_WAIT,
                f"config.distributed.{field.name}={value} must be at most "
                f"{_LONGEST_WAIT:,}; 0 minutes watch nothing.",
            )


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Records on disk and the profiler."""

    every_steps: int
    tensorboard: bool
    profile_first_step: int
    profile_steps: int

    def __post_init__(self):
        positive("log", self, "every_steps")
        not_negative("log", self, "profile_first_step", "profile_steps")


def compilation_cache(configured: str) -> str:
    """The folder of compiled programs, by default in the user's cache folder."""
    return configured or os.path.join(default_cache_dir(), "xla")


def default_cache_dir() -> str:
    """The user's cache folder: $XDG_CACHE_HOME/gpt1_jax or ~/.cache/gpt1_jax."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "gpt1_jax")
