"""The typed configuration of pre-training."""

import dataclasses

from gpt1_jax.config.checks import (
    DEFAULT,
    check_rising,
    check_seed,
    check_step,
    newer,
    place,
    require,
)
from gpt1_jax.config.sections import (
    CheckpointConfig,
    DataConfig,
    DistributedConfig,
    EvalConfig,
    JobConfig,
    LogConfig,
    MeshConfig,
    ModelSection,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    check_num_steps,
)

MILESTONE_UNITS = ("words", "tokens", "steps")


@dataclasses.dataclass(frozen=True)
class PretrainCheckpointConfig(CheckpointConfig):
    """Also the milestones: after how much training a checkpoint is kept for good."""

    milestone_words: tuple[int, ...] = dataclasses.field(metadata=newer(()))
    milestone_tokens: tuple[int, ...] = dataclasses.field(metadata=newer(()))
    milestone_steps: tuple[int, ...] = dataclasses.field(metadata=newer(()))

    def __post_init__(self):
        super().__post_init__()
        given = {
            f"config.checkpoint.milestone_{unit}": amounts
            for unit in MILESTONE_UNITS
            if (amounts := getattr(self, f"milestone_{unit}"))
        }
        for key, amounts in given.items():
            check_rising(key, amounts, "1000,2000,5000")
        require(
            len(given) <= 1,
            f"{' and '.join(given)} are set; set one of them and leave the others "
            "empty.",
        )

    @property
    def milestones(self) -> tuple[str, tuple[int, ...]]:
        """What is counted, one of `MILESTONE_UNITS`, and the amounts, rising."""
        units = {unit: getattr(self, f"milestone_{unit}") for unit in MILESTONE_UNITS}
        return next((each for each in units.items() if each[1]), ("steps", ()))


@dataclasses.dataclass(frozen=True)
class PretrainConfig(JobConfig):
    """The configuration of a pre-training run.

    With `init_from`, the sizes of the model and the tokenizer are those of that run.
    """

    seed: int
    init_from: str = dataclasses.field(metadata=newer("") | place())
    step: str = dataclasses.field(metadata=newer(DEFAULT))
    init_optimizer: bool = dataclasses.field(metadata=newer(False))
    model: ModelSection
    tokenizer: TokenizerConfig
    data: DataConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig
    eval: EvalConfig
    checkpoint: PretrainCheckpointConfig
    log: LogConfig
    distributed: DistributedConfig

    def __post_init__(self):
        check_seed("seed", self.seed)
        check_step("config.step", self.step)
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
        check_num_steps(self.train, self.optimizer)
