"""The typed configuration of continuing texts."""

import dataclasses
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    DEFAULT,
    DType,
    File,
    Free,
    Positive,
    RunFolder,
    Seed,
    Step,
    ends_in,
    given,
    require,
    seed,
)
from gpt1_jax.config.sections import JobConfig, SamplingConfig

_SAMPLING = SamplingConfig(max_new_tokens=40, do_sample=True, top_k=40)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateConfig(JobConfig):
    """The configuration for continuing texts."""

    writes_folder = False

    # The folder of a run: pre-trained, fine-tuned or converted.
    init_from: Annotated[
        RunFolder,
        given(
            "Name a run to generate from with --config.init_from=runs/pretrain/NAME."
        ),
    ] = ""
    # The saved step: "default" (a fine-tuned run's best, any other run's newest),
    # "newest", "best" or a number.
    step: Step = DEFAULT
    prompt: str = ""  # one text, or
    input: File = ""  # a file of them, .jsonl or one a line; "-": standard input
    # A .jsonl file; empty: standard output, as text.
    output: Annotated[File, ends_in(".jsonl", optional=True, device=True)] = ""
    num_return_sequences: Positive[int] = 1  # continuations of each prompt
    seed: Seed = 0  # for each prompt's first continuation; the next has seed + 1, ..
    # Continuations computed together. Each is independent of the others, but its last
    # bits may depend on this number.
    batch_size: Positive[int] = 8
    dtype: Literal["", DType] = ""  # "float32" or "bfloat16"; empty: the run's own
    log_probs: bool = False  # write the log-probability of each token, in nats
    compilation_cache_dir: Free[File] = ""  # empty: ~/.cache/gpt1_jax/xla
    sampling: SamplingConfig = _SAMPLING

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
