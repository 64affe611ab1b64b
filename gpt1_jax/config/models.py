"""The typed configurations of the jobs that use a trained model."""

import dataclasses

from gpt1_jax.config.checks import (
    ALL,
    MILESTONES,
    check_seed,
    check_step,
    is_device,
    one_of,
    place,
    require,
)
from gpt1_jax.config.sections import (
    DTYPES,
    JobConfig,
    ModelOptions,
    ModelSection,
    SamplingConfig,
)


@dataclasses.dataclass(frozen=True)
class PredictConfig(JobConfig):
    """The configuration for labelling new text."""

    writes_folder = False

    init_from: str = dataclasses.field(metadata=place())
    step: str
    text: str
    input: str = dataclasses.field(metadata=place())
    output: str = dataclasses.field(metadata=place())
    batch_size: int

    def __post_init__(self):
        require(
            bool(self.init_from),
            "Name a finished fine-tuned run with "
            "--config.init_from=runs/finetune/TASK.",
        )
        check_step("config.step", self.step)
        require(
            bool(self.text) != bool(self.input),
            f"config.text={self.text!r} and config.input={self.input!r}: set one of "
            "them, to a text or to a file of examples, one per line.",
        )
        require(
            self.batch_size > 0,
            f"config.batch_size={self.batch_size} must be positive.",
        )


@dataclasses.dataclass(frozen=True)
class GenerateConfig(JobConfig):
    """The configuration for continuing texts."""

    writes_folder = False

    init_from: str = dataclasses.field(metadata=place())
    step: str
    prompt: str
    input: str = dataclasses.field(metadata=place())
    output: str = dataclasses.field(metadata=place())
    num_return_sequences: int
    seed: int
    batch_size: int
    dtype: str
    log_probs: bool
    compilation_cache_dir: str = dataclasses.field(metadata=place())
    sampling: SamplingConfig

    def __post_init__(self):
        require(
            bool(self.init_from),
            "Name a run to generate from with --config.init_from=runs/pretrain/NAME.",
        )
        check_step("config.step", self.step)
        require(
            not (self.prompt and self.input),
            f"config.prompt={self.prompt!r} and config.input={self.input!r}: set one "
            "of them, to a text or to a file of prompts.",
        )
        for name in ("num_return_sequences", "batch_size"):
            value = getattr(self, name)
            require(value > 0, f"config.{name}={value} must be positive.")
        check_seed("seed", self.seed)
        check_seed("seed", self.seed + self.num_return_sequences - 1)
        one_of("dtype", self.dtype, ("", *DTYPES))
        require(
            not self.output or self.output.endswith(".jsonl") or is_device(self.output),
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

    `model` has no sizes until those of what is converted are written into it.
    """

    target: str
    init_from: str = dataclasses.field(metadata=place())
    step: str
    model: ModelOptions | ModelSection

    def __post_init__(self):
        one_of("target", self.target, ("run", "huggingface", "openai"))
        require(
            bool(self.init_from),
            "Name what to convert with --config.init_from=DIR: a run folder, OpenAI's "
            "model/ folder or a Hugging Face folder.",
        )
        check_step("config.step", self.step, ALL, MILESTONES)
