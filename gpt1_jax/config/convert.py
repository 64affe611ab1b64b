"""The typed configuration of converting a model to another format."""

import dataclasses
import re
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    DEFAULT,
    Limit,
    Names,
    RunFolder,
    Steps,
    given,
    matches,
    require,
)
from gpt1_jax.config.sections import JobConfig, ModelOptions, ModelSection

_licence = matches(
    r"[a-z0-9.-]*", "be the Hub's name of a licence, such as mit or apache-2.0"
)
_languages = Limit(
    "be codes of ISO 639 such as en, with commas between them",
    lambda value: all(
        re.fullmatch(r"[a-z]{2,3}|code|multilingual", each) for each in value
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertConfig(JobConfig):
    """The configuration for converting a model to another format.

    `model` has no sizes until those of the converted model are written into it.
    """

    target: Literal["run", "huggingface", "openai"] = "run"  # the format to write
    # The folder to convert.
    init_from: Annotated[
        RunFolder,
        given(
            "Name what to convert with --config.init_from=DIR: a run folder, OpenAI's "
            "model/ folder or a Hugging Face folder."
        ),
    ] = ""
    # The saved step: "default" (a fine-tuned run's best, any other run's newest),
    # "newest", "best" or a number; "all" (each to a folder step-N) or the "milestones"
    # (each to a folder chck_1M, chck_2M, ..).
    step: Steps = DEFAULT
    # Push the folder for transformers to the Hugging Face Hub: "hf://ORG/NAME". One
    # model goes to the branch main, each of several steps to one of its own.
    push_to: str = ""
    push_private: bool = True  # whether a new repository is private
    push_confirm: bool = False  # push without a question what is listed
    # For the model card, as the Hub calls it: "apache-2.0".
    push_license: Annotated[str, _licence] = ""
    push_language: Annotated[Names, _languages] = ()  # of ISO 639: "en" or "de,fr"
    # A run folder's values besides the sizes.
    model: ModelOptions | ModelSection

    def __post_init__(self):
        super().__post_init__()
        require(
            not self.push_to or self.target == "huggingface",
            f"config.push_to={self.push_to!r} pushes a folder for transformers, but "
            f"config.target={self.target!r}; choose configs/convert.py:huggingface.",
        )
