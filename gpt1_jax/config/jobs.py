"""The typed configuration of each job, and how it is made from plain values."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from gpt1_jax.config.sections import (
    DTYPES,
    CheckpointConfig,
    DataConfig,
    DistributedConfig,
    EvalConfig,
    LogConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    SamplingConfig,
    TokenizerConfig,
    TrainConfig,
    newer,
    one_of,
    require,
)
from gpt1_jax.config.task_sections import (
    CUSTOM_TASK,
    CustomTaskConfig,
    FinetuneEvalConfig,
    HeadConfig,
    SuiteConfig,
    TaskDataConfig,
)


@dataclasses.dataclass(frozen=True)
class JobConfig:
    """What every job's configuration has."""

    job: str
    preset: str

    def to_dict(self) -> dict[str, Any]:
        """The resolved configuration as plain JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class PretrainConfig(JobConfig):
    """The configuration of a pre-training run.

    `model` stays a plain mapping until the tokenizer has given the vocabulary
    size; `model_config` then makes the typed view. With `init_from`, sizes and
    vocabulary are those of that run (`gpt1_jax.training.start`).
    """

    seed: int
    init_from: str = dataclasses.field(metadata=newer(""))
    init_step: int = dataclasses.field(metadata=newer(-1))
    init_optimizer: bool = dataclasses.field(metadata=newer(False))
    model: Mapping[str, Any]
    tokenizer: TokenizerConfig
    data: DataConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig
    log: LogConfig
    distributed: DistributedConfig

    def __post_init__(self):
        _check_seed("seed", self.seed)
        self.model_config(self.tokenizer.vocab_size)
        require(
            bool(self.init_from) or (self.init_step == -1 and not self.init_optimizer),
            f"config.init_step={self.init_step} and config.init_optimizer="
            f"{self.init_optimizer} are about a run to start from; name its folder "
            "with --config.init_from=FOLDER.",
        )
        require(
            not (self.init_from and self.tokenizer.path),
            f"config.init_from={self.init_from!r} and config.tokenizer.path="
            f"{self.tokenizer.path!r}: a run that starts from another one uses its "
            "tokenizer; leave out one of them.",
        )
        num_steps, warmup = self.train.num_steps, self.optimizer.warmup_steps
        require(
            not 0 < num_steps <= warmup,
            f"config.train.num_steps={num_steps} ends within "
            f"config.optimizer.warmup_steps={warmup}; add "
            f"--config.optimizer.warmup_steps={num_steps // 10}.",
        )

    def model_config(self, vocab_size: int) -> ModelConfig:
        """The model for a tokenizer of `vocab_size` entries."""
        return make_model_config({"vocab_size": vocab_size, **self.model})


@dataclasses.dataclass(frozen=True)
class FinetuneConfig(JobConfig):
    """The configuration of fine-tuning: a run for each task, seed and start.

    `model` holds what may differ from the pre-trained run; the sizes are that run's.
    """

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    init_from: str
    init_step: int
    transfer_layers: str
    model: Mapping[str, Any]
    custom: CustomTaskConfig
    data: TaskDataConfig
    head: HeadConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig
    eval: FinetuneEvalConfig
    checkpoint: CheckpointConfig
    log: LogConfig
    distributed: DistributedConfig
    suite: SuiteConfig

    def __post_init__(self):
        require(bool(self.seeds), "config.seeds is empty; name one or more.")
        for seed in self.seeds:
            _check_seed("seeds", seed)
        require(bool(self.tasks), "config.tasks is empty; name one or more.")
        require(
            bool(self.init_from),
            "Fine-tuning starts from a pre-trained run, whose tokenizer and sizes it "
            "takes even when its weights are left out; name its folder with "
            "--config.init_from=runs/pretrain/quickstart.",
        )
        require(
            self.transfer_layers in ("all", "none") or self.transfer_layers.isdigit(),
            f"config.transfer_layers={self.transfer_layers!r} must be all, none or a "
            "number of layers; 0 transfers the embeddings alone.",
        )
        require(
            (self.tasks == (CUSTOM_TASK,)) == (self.data.source == "files"),
            f"config.tasks={self.tasks} does not go with config.data.source="
            f"{self.data.source!r}: a task of your own (configs/finetune.py:custom) is "
            "read from source='files', and the paper's tasks from the others.",
        )


@dataclasses.dataclass(frozen=True)
class PredictConfig(JobConfig):
    """The configuration for labelling new text."""

    init_from: str
    text: str
    input: str
    output: str
    batch_size: int

    def __post_init__(self):
        require(
            bool(self.init_from),
            "Name a finished fine-tuned run with "
            "--config.init_from=runs/finetune/TASK.",
        )
        require(
            bool(self.text) != bool(self.input),
            f"config.text={self.text!r} and config.input={self.input!r}: set one of "
            "them, to a text or to a file of examples, one per line.",
        )
        require(
            self.batch_size > 0,
            f"config.batch_size={self.batch_size} must be positive.",
        )


# Stands in for the sizes that are not known before the source is read.
_SMALLEST = dict(
    vocab_size=1, num_layers=1, num_heads=1, embed_dim=1, mlp_dim=1, max_seq_len=2
)


@dataclasses.dataclass(frozen=True)
class GenerateConfig(JobConfig):
    """The configuration for continuing texts."""

    init_from: str
    step: str
    prompt: str
    input: str
    output: str
    num_return_sequences: int
    seed: int
    batch_size: int
    dtype: str
    log_probs: bool
    compilation_cache_dir: str
    sampling: SamplingConfig

    def __post_init__(self):
        require(
            bool(self.init_from),
            "Name a run to generate from with --config.init_from=runs/pretrain/NAME.",
        )
        require(
            not (self.prompt and self.input),
            f"config.prompt={self.prompt!r} and config.input={self.input!r}: set one "
            "of them, to a text or to a file of prompts.",
        )
        for name in ("num_return_sequences", "batch_size"):
            value = getattr(self, name)
            require(value > 0, f"config.{name}={value} must be positive.")
        _check_seed("seed", self.seed)
        _check_seed("seed", self.seed + self.num_return_sequences - 1)
        one_of("dtype", self.dtype, ("", *DTYPES))
        require(
            not self.output or self.output.endswith(".jsonl"),
            f"config.output={self.output!r} must end in .jsonl.",
        )
        require(
            bool(self.output) or not self.log_probs,
            "config.log_probs=True writes them to a file; name it with "
            "--config.output=FILE.jsonl.",
        )


@dataclasses.dataclass(frozen=True)
class ConvertConfig(JobConfig):
    """The configuration for converting a model to another format.

    `model` holds what is not a size; in a run folder that was made, the sizes too.
    """

    target: str
    init_from: str
    step: str
    model: Mapping[str, Any]

    def __post_init__(self):
        one_of("target", self.target, ("run", "huggingface", "openai"))
        require(
            bool(self.init_from),
            "Name what to convert with --config.init_from=DIR: a run folder, OpenAI's "
            "model/ folder or a Hugging Face folder.",
        )
        make_model_config({**_SMALLEST, **self.model})


# A job is a file in configs/, a file in jobs/ and a line here.
JOBS: Mapping[str, type[JobConfig]] = {
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "predict": PredictConfig,
    "generate": GenerateConfig,
    "convert": ConvertConfig,
}


def load(values: Mapping[str, Any]) -> Any:
    """Checks a configuration and freezes it.

    Args:
      values: the mapping built by a file in `configs/`, with overrides applied.

    Returns:
      The frozen configuration of the job that it names.

    Raises:
      ValueError: naming the first key that is unknown, missing or impossible.
    """
    one_of("job", values.get("job", ""), tuple(JOBS))
    return _section("", JOBS[values["job"]], values)


def make_model_config(values: Mapping[str, Any]) -> ModelConfig:
    """The model's section and the vocabulary size as one typed view."""
    return _section("model", ModelConfig, values)


def _check_seed(key: str, seed: int) -> None:
    require(
        0 <= seed < 2**32,
        f"config.{key}={seed} must be a whole number in [0, 2**32).",
    )


def _section(name: str, cls: Any, values: Mapping[str, Any]) -> Any:
    """Builds one section; a wrong set of keys or a wrong type is a ValueError."""
    key = f"config.{name}" if name else "config"
    require(
        isinstance(values, Mapping), f"{key}={values!r:.40} must be a section of keys."
    )
    fields: dict[str, Any] = {
        field.name: field.type for field in dataclasses.fields(cls)
    }
    unknown = sorted(set(values) - set(fields))
    missing = sorted(set(fields) - set(values))
    require(
        not unknown, f"{key} has unknown keys {unknown}; it takes {sorted(fields)}."
    )
    require(not missing, f"{key} lacks the keys {missing}.")
    return cls(
        **{
            field: _section(field, kind, values[field])
            if dataclasses.is_dataclass(kind)
            else _typed(f"{key}.{field}", kind, values[field])
            for field, kind in fields.items()
        }
    )


_KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def _typed(key: str, kind: Any, value: Any) -> Any:
    """The value if it has its field's type; otherwise a ValueError."""
    if get_origin(kind) is tuple:
        parts, listed = get_args(kind), isinstance(value, list | tuple)
        if parts[-1] is Ellipsis:
            parts = parts[:1] * (len(value) if listed else 1)
        require(
            listed and len(value) == len(parts),
            f"{key}={value!r:.80} must be a tuple of {len(parts)}.",
        )
        pairs = enumerate(zip(parts, value, strict=True))
        return tuple(_typed(f"{key}[{i}]", *pair) for i, pair in pairs)
    if kind is str and key.endswith("]") and type(value) in (int, float):
        return str(value)  # a name that looks like a number
    if kind in _KINDS:
        accepted: Any = int | float if kind is float else kind
        fits = isinstance(value, accepted) and (kind is bool) == isinstance(value, bool)
        require(fits, f"{key}={value!r:.80} must be {_KINDS[kind]}.")
    return value
