"""The typed configuration of pre-training."""

import dataclasses
from typing import Annotated

from gpt1_jax.config.checks import DEFAULT, FigureSuffix, Free, Seed, require, rising
from gpt1_jax.config.sections import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    ModelSection,
    TokenizerConfig,
    TrainingConfig,
)

MILESTONE_UNITS = ("words", "tokens", "steps")
Milestones = Annotated[tuple[int, ...], rising("1000,2000,5000", least=0)]


@dataclasses.dataclass(frozen=True)
class PretrainCheckpointConfig(CheckpointConfig):
    """Adds milestones: amounts of training whose checkpoints are kept for good."""

    # Milestones in words of training text, separated by white space.
    milestone_words: Milestones = ()
    milestone_tokens: Milestones = ()  # in tokens, instead of words
    # In updates, instead of words or tokens: 1000,2000,5000.
    milestone_steps: Milestones = ()

    def __post_init__(self):
        super().__post_init__()
        names = [f"milestone_{unit}" for unit in MILESTONE_UNITS]
        used = [f"config.checkpoint.{name}" for name in names if getattr(self, name)]
        require(
            len(used) <= 1,
            f"{' and '.join(used)} are set; set one of them and leave the others "
            "empty.",
        )

    @property
    def milestones(self) -> tuple[str, tuple[int, ...]]:
        """The unit, one of `MILESTONE_UNITS`, and the amounts, rising."""
        units = {unit: getattr(self, f"milestone_{unit}") for unit in MILESTONE_UNITS}
        return next((each for each in units.items() if each[1]), ("steps", ()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainingConfig):
    """The configuration of a pre-training run."""

    seed: Seed = 0  # for initialisation, data order and dropout masks
    # Take the origin's optimizer too: moments, schedule and data continue after its
    # step, up to train.num_steps in all.
    init_optimizer: bool = False
    model: ModelSection
    tokenizer: TokenizerConfig
    data: DataConfig
    eval: Free[EvalConfig]
    checkpoint: Free[PretrainCheckpointConfig]
    # The format of the pictures in plots/; .csv files beside them hold the numbers.
    figure: Free[FigureSuffix] = ".png"

    def __post_init__(self):
        super().__post_init__()
        require(
            bool(self.init_from) or (self.step == DEFAULT and not self.init_optimizer),
            f"config.step={self.step!r} and config.init_optimizer="
            f"{self.init_optimizer} are about a run to start from; name its folder "
            "with --config.init_from=FOLDER.",
        )
        require(
            not (self.init_from and self.tokenizer.path),
            f"config.init_from={self.init_from!r} and config.tokenizer.path="
            f"{self.tokenizer.path!r}: a run that starts from another one uses its "
            "tokenizer; leave out one of them.",
        )
        require(
            bool(self.data.source != "tokens" or self.init_from or self.tokenizer.path),
            "config.data.source='tokens' needs the tokenizer that made them: "
            "--config.tokenizer.kind=huggingface --config.tokenizer.path=PATH.",
        )
