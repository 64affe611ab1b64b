"""The sections that jobs share; `configs/` documents every key."""

import dataclasses
import os
from typing import Any, ClassVar

from gpt1_jax.config.checks import (
    newer,
    not_negative,
    one_of,
    place,
    positive,
    require,
)

DTYPES = ("float32", "bfloat16")

KIND_NAMES = {"transformer": "Transformer", "lstm": "LSTM"}  # in texts
_LARGEST = 2**31 - 1  # index of an array


@dataclasses.dataclass(frozen=True)
class JobConfig:
    """What every job's configuration has."""

    writes_folder: ClassVar[bool] = True  # or only a file, `output`

    job: str
    preset: str

    @property
    def default_workdir(self) -> str:
        """The folder to write to unless another is named; "" if the job writes none."""
        if not self.writes_folder:
            return ""
        return os.path.join("runs", self.job, self.preset)

    def check_workdir(self, workdir: str) -> None:
        """Refuses a folder that is named for a job that writes none."""
        require(
            self.writes_folder or not workdir,
            f"--workdir={workdir!r}, but the job {self.job} writes no folder; leave it "
            "out, and name the file to write with --config.output=FILE.",
        )

    def to_dict(self) -> dict[str, Any]:
        """The resolved configuration as plain JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """How a model is regularised and computed; what may differ from run to run."""

    embed_dropout: float
    attn_dropout: float
    resid_dropout: float
    embed_dropout_on: str
    attention_impl: str
    layer_norm_impl: str = dataclasses.field(metadata=newer("plain"))
    softmax_rows: str
    loss_chunk: int
    dtype: str
    layer_loop: str
    remat: bool

    def __post_init__(self):
        for name in ("embed_dropout", "attn_dropout", "resid_dropout"):
            rate = getattr(self, name)
            require(
                0.0 <= rate < 1.0,
                f"config.model.{name}={rate} must lie in [0, 1); the paper uses 0.1.",
            )
        one_of(
            "model.embed_dropout_on",
            self.embed_dropout_on,
            ("sum", "matrix", "lookups"),
        )
        not_negative("model", self, "loss_chunk")
        one_of(
            "model.attention_impl", self.attention_impl, ("blocked", "fused", "plain")
        )
        one_of("model.layer_norm_impl", self.layer_norm_impl, ("fused", "plain"))
        one_of("model.softmax_rows", self.softmax_rows, ("tokens", "tokens+positions"))
        one_of("model.dtype", self.dtype, DTYPES)
        one_of("model.layer_loop", self.layer_loop, ("unrolled", "scan"))

    def with_sizes(self, model: "ModelSection") -> "ModelSection":
        """These options with the sizes of a model."""
        names = {field.name for field in dataclasses.fields(ModelOptions)}
        options = {name: getattr(self, name) for name in names}
        return ModelSection(**options, **model.sizes)


@dataclasses.dataclass(frozen=True)
class ModelSection(ModelOptions):
    """The section on the model: its options and sizes.

    An LSTM has no use for the sizes and implementations of layers that only the
    Transformer has.
    """

    kind: str = dataclasses.field(metadata=newer("transformer"))
    num_layers: int
    num_heads: int
    embed_dim: int
    mlp_dim: int
    lstm_units: int = dataclasses.field(metadata=newer(2048))
    max_seq_len: int

    def __post_init__(self):
        super().__post_init__()
        one_of("model.kind", self.kind, tuple(KIND_NAMES))
        for name, size in self.sizes.items():
            require(
                name == "kind" or size <= _LARGEST,
                f"config.model.{name}={size} must be at most {_LARGEST:,}, as no array "
                "has a larger index.",
            )
        positive("model", self, "embed_dim")
        if self.kind == "lstm":
            self._check_lstm()
        else:
            self._check_transformer()
        require(
            self.max_seq_len >= 2,
            f"config.model.max_seq_len={self.max_seq_len} must be at least 2: a "
            "sequence needs a token to predict and one to predict it from.",
        )

    def _check_transformer(self) -> None:
        positive("model", self, "num_layers", "num_heads", "mlp_dim")
        require(
            self.embed_dim % self.num_heads == 0,
            f"config.model.embed_dim={self.embed_dim} must be a multiple of "
            f"config.model.num_heads={self.num_heads}; use "
            f"--config.model.embed_dim={-(-self.embed_dim // self.num_heads)}"
            f"*{self.num_heads}="
            f"{-(-self.embed_dim // self.num_heads) * self.num_heads}.",
        )

    def _check_lstm(self) -> None:
        positive("model", self, "lstm_units")
        require(
            self.softmax_rows == "tokens",
            f"config.model.softmax_rows={self.softmax_rows!r} scores positions, and "
            "config.model.kind='lstm' has no position embeddings; use "
            "--config.model.softmax_rows=tokens.",
        )

    @property
    def sizes(self) -> dict[str, Any]:
        """What a run takes over from the one it starts from, by key."""
        options = {field.name for field in dataclasses.fields(ModelOptions)}
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(ModelSection)
            if field.name not in options
        }

    @property
    def depth(self) -> int:
        """The number of layers: L of the Transformer, 1 of the LSTM."""
        return 1 if self.kind == "lstm" else self.num_layers

    @property
    def main_size(self) -> str:
        """The key that, with `embed_dim`, decides how large the model is."""
        return "lstm_units" if self.kind == "lstm" else "num_layers"

    @property
    def layers(self) -> str:
        """The layers in words."""
        if self.kind == "lstm":
            return f"LSTM layer of {self.lstm_units:,} units"
        return f"{self.num_layers} layers"

    def with_vocab_size(self, vocab_size: int) -> "ModelConfig":
        """The model for a tokenizer of `vocab_size` entries."""
        return ModelConfig(**vars(self), vocab_size=vocab_size)


@dataclasses.dataclass(frozen=True)
class ModelConfig(ModelSection):
    """A model to make: the Transformer decoder (sec. 4.1), or the LSTM (sec. 5).

    `vocab_size` is not a key of `config.model`: the tokenizer decides it.
    """

    vocab_size: int


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


def check_num_steps(train: TrainConfig, optimizer: OptimizerConfig) -> None:
    """What can be said of it before examples or text are read."""
    if train.num_steps:
        counted = f"config.train.num_steps={train.num_steps}"
        optimizer.check_num_steps(train.num_steps, counted)


def check_source(source: str, folder: str, sources: tuple[str, ...]) -> None:
    one_of("data.source", source, sources)
    require(
        source in ("tfds", "files") or bool(folder),
        f"config.data.source={source!r} reads files below a folder; name it with "
        "--config.data.dir=DIR.",
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
