"""The typed configurations of the jobs that train."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gpt1_jax.config.job import JobConfig, check_seed, make_model_config
from gpt1_jax.config.keep_at import PretrainCheckpointConfig
from gpt1_jax.config.model_section import ModelConfig
from gpt1_jax.config.sections import (
    DEFAULT,
    CheckpointConfig,
    DataConfig,
    DistributedConfig,
    EvalConfig,
    LogConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    check_step,
    newer,
    place,
    require,
)
from gpt1_jax.config.task_sections import (
    CUSTOM_TASK,
    CustomTaskConfig,
    FinetuneEvalConfig,
    HeadConfig,
    SuiteConfig,
    TaskDataConfig,
    split_names,
)


@dataclasses.dataclass(frozen=True)
class PretrainConfig(JobConfig):
    """The configuration of a pre-training run.

    `model` stays a plain mapping until the tokenizer has given the vocabulary
    size; `model_config` then makes the typed view. With `init_from`, sizes and
    vocabulary are those of that run (`gpt1_jax.training.start`).
    """

    seed: int
    init_from: str = dataclasses.field(metadata=newer("") | place())
    init_step: str = dataclasses.field(metadata=newer(DEFAULT))
    init_optimizer: bool = dataclasses.field(metadata=newer(False))
    model: Mapping[str, Any]
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
        check_step("config.init_step", self.init_step)
        self.model_config(self.tokenizer.vocab_size)
        require(
            bool(self.init_from)
            or (self.init_step == DEFAULT and not self.init_optimizer),
            f"config.init_step={self.init_step!r} and config.init_optimizer="
            f"{self.init_optimizer} are about a run to start from; name its folder "
            "with --config.init_from=FOLDER.",
        )
        require(
            not (self.init_from and self.tokenizer.path),
            f"config.init_from={self.init_from!r} and config.tokenizer.path="
            f"{self.tokenizer.path!r}: a run that starts from another one uses its "
            "tokenizer; leave out one of them.",
        )
        _check_num_steps(self.train, self.optimizer)

    def model_config(self, vocab_size: int) -> ModelConfig:
        """The model for a tokenizer of `vocab_size` entries."""
        return make_model_config({"vocab_size": vocab_size, **self.model})


@dataclasses.dataclass(frozen=True)
class FinetuneConfig(JobConfig):
    """The configuration of fine-tuning: a run for each task, variant and seed.

    `model` holds what may differ from the pre-trained run; the sizes are that run's.
    """

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    init_from: str = dataclasses.field(metadata=place())
    init_step: str
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
        object.__setattr__(self, "tasks", split_names(self.tasks))
        require(bool(self.seeds), "config.seeds is empty; name one or more.")
        for seed in self.seeds:
            check_seed("seeds", seed)
        require(bool(self.tasks), "config.tasks is empty; name one or more.")
        require(
            bool(self.init_from),
            "Fine-tuning starts from a pre-trained run, whose tokenizer and sizes it "
            "takes even when its weights are left out; name its folder with "
            "--config.init_from=runs/pretrain/quickstart.",
        )
        check_step("config.init_step", self.init_step)
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
        _check_num_steps(self.train, self.optimizer)
        _check_comparison(self)


def _check_num_steps(train: TrainConfig, optimizer: OptimizerConfig) -> None:
    """What can be said of it before examples or text are read."""
    if train.num_steps:
        counted = f"config.train.num_steps={train.num_steps}"
        optimizer.check_num_steps(train.num_steps, counted)


def _check_comparison(config: FinetuneConfig) -> None:
    """Refuses values that the comparison asked for would overrule."""
    compare = config.suite.compare
    require(
        compare in ("", "scratch") or config.transfer_layers == "all",
        f"config.transfer_layers={config.transfer_layers!r}, but the runs of "
        f"config.suite.compare={compare!r} start from all layers unless a variant says "
        "otherwise; leave it at 'all'.",
    )
    require(
        compare != "ablations" or config.head.aux_lm_weight > 0,
        "config.head.aux_lm_weight=0, but config.suite.compare='ablations' compares "
        "runs with and without the auxiliary objective; leave it above 0.",
    )
    require(
        compare != "aux_lm_weight" or config.data.max_train_examples == 0,
        f"config.data.max_train_examples={config.data.max_train_examples}, but "
        "config.suite.compare='aux_lm_weight' takes the sizes in "
        "config.suite.train_sizes; leave it at 0.",
    )
