"""The typed configurations of the jobs that use a trained model."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    DType,
    File,
    Free,
    Positive,
    RunFolder,
    Seed,
    Step,
    given,
    require,
    seed,
)
from gpt1_jax.config.constraints import Steps, ends_in
from gpt1_jax.config.sections import (
    JobConfig,
    ModelOptions,
    ModelSection,
    SamplingConfig,
)


@dataclasses.dataclass(frozen=True)
class PredictConfig(JobConfig):
    """The configuration for labelling new text."""

    writes_folder = False

    init_from: Annotated[
        RunFolder,
        given(
            "Name a finished fine-tuned run with --config.init_from=runs/finetune/TASK."
        ),
    ]
    step: Step
    text: str
    input: File
    output: File
    batch_size: Positive[int]

    def __post_init__(self):
        super().__post_init__()
        require(
            bool(self.text) != bool(self.input),
            f"config.text={self.text!r} and config.input={self.input!r}: set one of "
            "them, to a text or to a file of examples, one per line.",
        )


@dataclasses.dataclass(frozen=True)
class GenerateConfig(JobConfig):
    """The configuration for continuing texts."""

    writes_folder = False

    init_from: Annotated[
        RunFolder,
        given(
            "Name a run to generate from with --config.init_from=runs/pretrain/NAME."
        ),
    ]
    step: Step
    prompt: str
    input: File
    output: Annotated[File, ends_in(".jsonl", optional=True, device=True)]
    num_return_sequences: Positive[int]
    seed: Seed
    batch_size: Positive[int]
    dtype: Literal["", DType]
    log_probs: bool
    compilation_cache_dir: Free[File]
    sampling: SamplingConfig

    def __post_init__(self):
        super().__post_init__()
        seed("config.seed", self.seed + self.num_return_sequences - 1)  # the last seed
        require(
            not (self.prompt and self.input),
            f"config.prompt={self.prompt!r} and config.input={self.input!r}: set one "
            "of them, to a text or to a file of prompts.",
        )
        require(
            bool(self.output) or not self.log_probs,
            "config.log_probs=True writes them to a file; name it with "
            "--config.output=FILE.jsonl.",
        )


@dataclasses.dataclass(frozen=True)
class ConvertConfig(JobConfig):
    """The configuration for converting a model to another format.

    `model` has no sizes until those of the converted model are written into it.
    """

    target: Literal["run", "huggingface", "openai"]
    init_from: Annotated[
        RunFolder,
        given(
            "Name what to convert with --config.init_from=DIR: a run folder, OpenAI's "
            "model/ folder or a Hugging Face folder."
        ),
    ]
    step: Steps
    model: ModelOptions | ModelSection
