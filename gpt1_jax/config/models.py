"""The typed configurations of the jobs that use a trained model."""

import dataclasses
import re
from typing import Annotated, Any, Literal

from gpt1_jax.config.checks import (
    DType,
    File,
    Free,
    Newer,
    Positive,
    RunFolder,
    Seed,
    Step,
    given,
    require,
    seed,
)
from gpt1_jax.config.constraints import Names, Steps, ends_in
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


def _licence(key: str, value: str) -> None:
    require(
        bool(re.fullmatch(r"[a-z0-9.-]*", value)),
        f"{key}={value!r} must be the Hub's name of a licence, such as mit or "
        "apache-2.0.",
    )


def _languages(key: str, value: tuple[Any, ...]) -> None:
    for each in value:
        require(
            bool(re.fullmatch(r"[a-z]{2,3}|code|multilingual", each)),
            f"{key} has {each!r}; it takes codes of ISO 639 such as en, with commas "
            "between them.",
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
    push_to: Annotated[str, Newer("")]
    push_private: Annotated[bool, Newer(True)]
    push_confirm: Annotated[bool, Newer(False)]
    push_license: Annotated[str, Newer(""), _licence]
    push_language: Annotated[Names, Newer(()), _languages]
    model: ModelOptions | ModelSection

    def __post_init__(self):
        super().__post_init__()
        require(
            not self.push_to or self.target == "huggingface",
            f"config.push_to={self.push_to!r} pushes a folder for transformers, but "
            f"config.target={self.target!r}; choose configs/convert.py:huggingface.",
        )
