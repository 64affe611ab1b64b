"""The typed configuration of fine-tuning: tasks, suites and their comparisons.

Each variant of a comparison has its own configuration. Training code knows nothing of
comparisons.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Annotated, Literal

from gpt1_jax.config.checks import (
    BEST,
    ByContent,
    FigureSuffix,
    File,
    Free,
    Limit,
    Names,
    NotNegative,
    OptionalRunFolder,
    Positive,
    RunFolder,
    Section,
    Seed,
    Share,
    different,
    given,
    matches,
    not_empty,
    require,
    rising,
)
from gpt1_jax.config.sections import (
    DropoutRate,
    ModelOptions,
    ModelSection,
    TrainingConfig,
)

CUSTOM_TASK = "custom"


DifferentNames = Annotated[Names, different]
_own_name = matches(
    r"|\w[\w.-]*",
    "be letters, digits, '_', '-' and '.', as it names a folder and stands in tables, "
    "such as reviews-2024",
)
_different_numbers = Limit(
    "be different numbers, none of them below 0",
    lambda values: (
        all(0 <= value < math.inf for value in values)
        and len(set(values)) == len(values)
    ),
)
_folds = Limit("be 0, or at least 2", lambda value: value != 1)
_score_range = Limit(
    "be the lowest and the highest score, such as 0,5; or 0,0 if labels are not scores",
    lambda value: -math.inf < value[0] <= value[1] < math.inf,
)
_layers = matches(
    r"all|none|[0-9]{1,9}",
    "be all, none or a number of layers; 0 transfers the embeddings alone",
)


@dataclasses.dataclass(frozen=True)
class ExamplesConfig(Section):
    """Where the examples of tasks come from."""

    section = "data"

    source: str = "tfds"  # a class derived from this one says which there are
    dir: ByContent[File] = ""  # DIR; for tfds its data_dir, empty: TFDS' own default

    def __post_init__(self):
        super().__post_init__()
        require(
            self.source != "hub" or not self.dir,
            f"config.data.dir={self.dir!r} does not go with config.data.source='hub', "
            "whose files are kept where HF_HUB_CACHE says; leave it empty.",
        )
        require(
            self.source in ("tfds", "hub", "files") or bool(self.dir),
            f"config.data.source={self.source!r} reads files below a folder; name it "
            "with --config.data.dir=DIR.",
        )


@dataclasses.dataclass(frozen=True)
class TaskDataConfig(ExamplesConfig):
    """Where task examples come from, and how they are batched."""

    # "tfds"; "hub": Parquet files of the Hugging Face Hub; "jsonl":
    # DIR/TASK/{train,dev,test}.jsonl; "official": their authors' files, under DIR;
    # "babylm": DIR/TASK.{train,valid}.jsonl of BabyLM's evaluation; "files": a custom
    # task's own.
    source: Literal["tfds", "hub", "jsonl", "official", "babylm", "files"] = "tfds"
    # A custom task's files: .jsonl, .json, .tsv, .csv or .parquet.
    train: ByContent[File] = ""
    dev: ByContent[File] = ""  # as `train`
    test: ByContent[File] = ""  # as `train`
    max_train_examples: NotNegative[int] = 0  # a random subset of this size; 0: all
    max_dev_examples: NotNegative[int] = 0  # as for training examples
    max_test_examples: NotNegative[int] = 0  # as for training examples
    # The longest sequence in tokens; 0: the longest the model reads.
    max_seq_len: NotNegative[int] = 0
    # Without a dev file: the share of a custom task's training file held out as one,
    # the same rows for every seed; 0: none.
    dev_fraction: Share = 0.0
    # Without a dev file: a run for each of so many parts of a custom task's training
    # file, which holds that part out; 0: none.
    folds: Annotated[NotNegative[int], _folds] = 0
    fold: NotNegative[int] = 0  # which part a run holds out, from 1; a suite sets it
    skip_empty: bool = False  # pass over rows whose texts are all empty
    skip_unlabelled: bool = False  # pass over training and dev rows without a label
    # Leave out longer training and dev examples instead of cutting them.
    drop_long: bool = False
    # Batches are padded to the first of these lengths that fits.
    seq_len_buckets: Annotated[tuple[int, ...], not_empty, rising("32,64,128")] = (
        *(32, 64, 128, 256, 512),
    )
    # In training, only attention sees padding; elsewhere, a batch is filled up to one
    # of so many sizes at most. 0: padding is left in.
    unpadded_sizes: NotNegative[int] = 16

    def __post_init__(self):
        super().__post_init__()
        dev_fraction = f"config.data.dev_fraction={self.dev_fraction}"
        folds = f"config.data.folds={self.folds}"
        if self.dev_fraction or self.folds:
            named = folds if self.folds else dev_fraction
            require(
                self.source == "files",
                f"{named} divides the training file of a task of your own "
                "(configs/finetune.py:custom); published tasks have a dev split.",
            )
            require(
                not (self.dev_fraction and self.folds),
                f"{folds} does not go with {dev_fraction}, as each holds out a dev "
                "split; leave one at 0.",
            )
            require(
                not self.dev,
                f"{named} holds rows of the training file out as the dev split, but "
                f"config.data.dev={self.dev!r} names one; leave one of the two out.",
            )
        require(
            self.fold <= self.folds,
            f"config.data.fold={self.fold} is none of the parts of the training file; "
            f"{folds} is their number.",
        )

    @property
    def holds_out(self) -> bool:
        """Whether the dev split is a part of the training file."""
        return bool(self.dev_fraction or self.fold)

    def longest(self, model_max_seq_len: int) -> int:
        """Longest sequence in tokens, for a model that reads `model_max_seq_len`."""
        return self.max_seq_len or model_max_seq_len

    def paths(self) -> dict[str, str]:
        """The files of a custom task by split."""
        named = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: path for split, path in named.items() if path}


@dataclasses.dataclass(frozen=True)
class CustomTaskConfig(Section):
    """A task of the user's own: the columns of its files and their meaning."""

    section = "custom"

    # The name of the task, in tables and as its default folder.
    name: Free[Annotated[str, _own_name]] = ""
    # What the model learns: "classification", "multilabel" (any number of labels a
    # row), "similarity" or "multiple_choice".
    head: Literal[
        "", "classification", "multilabel", "similarity", "multiple_choice"
    ] = ""
    # Columns: a text or a pair; with choices, context (and question).
    text: DifferentNames = ()
    # In place of `text`, a text of several columns, "{title} by {author}"; of a pair,
    # "FIRST ||| SECOND".
    template: str = ""
    # Columns of a multiple choice; a single column has a list.
    choices: DifferentNames = ()
    label: str = "label"  # the label's column
    labels: DifferentNames = ()  # their names in order; empty: as in the training file
    # The lowest and the highest score; 0,0: labels, not scores.
    score_range: Annotated[tuple[float, float], _score_range] = (0.0, 0.0)
    # The first ranks steps; empty: accuracy, micro_f1 of several labels a row, or
    # pearson of scores.
    metrics: DifferentNames = ()
    # Of two labels, the one that F1 is about; empty: the rarer of the training file.
    positive: str = ""
    # Weights of the labels in the loss: "balanced" (inverse frequencies), or a number
    # for each; empty: all alike.
    class_weights: Names = ()
    calibrate: bool = False  # fit a temperature of the probabilities on the dev split


@dataclasses.dataclass(frozen=True)
class HeadConfig(Section):
    """The linear layer on the extract token, and the losses (eq. 3 to 5)."""

    section = "head"

    dropout: DropoutRate = 0.1  # sec. 4.1, on the state at the extract token
    # Scores are learnt as "soft_labels" over whole numbers (released code; 0 to 5 for
    # STS-B) or by "regression".
    score_loss: Literal["soft_labels", "regression"] = "soft_labels"
    # lambda of L3 = L2 + lambda L1 (eq. 5, sec. 4.1).
    aux_lm_weight: NotNegative[float] = 0.5


@dataclasses.dataclass(frozen=True)
class FinetuneEvalConfig(Section):
    """When to evaluate, besides at the end of each epoch, and on what at the end."""

    section = "eval"

    batch_size: Positive[int] = 64  # examples
    # Evaluate after these updates of the first epoch, and at the end of every epoch
    # (released code).
    first_epoch_steps: tuple[int, ...] = (1000, 2000, 4000, 8000, 16000, 32000)
    # Random training examples to score at the end (Figure 2, left, dashed); 0: none.
    train_examples: NotNegative[int] = 0
    # End after so many evaluations in a row without a better score; 0: never.
    patience: NotNegative[int] = 0


# The comparisons that read a key of `SuiteConfig`.
_READ_BY = {
    "lstm_init_from": ("ablations",),
    "aux_lm_weights": ("aux_lm_weight",),
    "train_sizes": ("train_sizes", "aux_lm_weight"),
}


@dataclasses.dataclass(frozen=True)
class SuiteConfig(Section):
    """Runs over several tasks, seeds and variants (`suite_variants`)."""

    section = "suite"

    # What to compare on each task: "scratch", runs with and without pre-training; an
    # analysis of the paper: "ablations" (Table 5), "layer_transfer" (Figure 2, left) or
    # "aux_lm_weight"; or "train_sizes", a learning curve.
    compare: Literal[
        "", "scratch", "ablations", "layer_transfer", "aux_lm_weight", "train_sizes"
    ] = ""
    # For ablations, the folder of a pre-trained LSTM, also read at `step`; empty: none.
    lstm_init_from: OptionalRunFolder = ""
    # For aux_lm_weight: the values of lambda.
    aux_lm_weights: Annotated[tuple[float, ...], _different_numbers] = (
        *(0.0, 0.25, 0.5, 1.0),
    )
    # For train_sizes and aux_lm_weight: training examples; 0: all.
    train_sizes: Annotated[tuple[int, ...], _different_numbers] = (1000, 4000, 16000, 0)
    keep_checkpoints: bool = False  # False: keep only predictions and scores

    def __post_init__(self):
        super().__post_init__()
        for name, comparisons in _READ_BY.items():
            value = getattr(self, name)
            if self.compare in comparisons:
                require(
                    value != (),
                    f"config.suite.{name} is empty, but config.suite.compare="
                    f"{self.compare!r} compares its values; name one or more.",
                )
            else:
                require(
                    not value or value == getattr(SuiteConfig, name),
                    f"config.suite.{name}={value!r} does nothing with "
                    f"config.suite.compare={self.compare!r}; leave it out, or set that "
                    f"to {' or '.join(map(repr, comparisons))}.",
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingConfig):
    """The configuration of fine-tuning: a run for each task, variant and seed.

    `model` has no sizes until those of the pre-trained run are written into it.
    """

    default_step = BEST  # the run's results are this step's scores
    adds_head = True

    tasks: Annotated[Names, not_empty]  # the paper's or BabyLM's, or "custom"
    # For the head and the special tokens, the order of examples and dropout masks.
    seeds: Annotated[tuple[Seed, ...], not_empty] = (0,)
    # The folder of a pre-trained run.
    init_from: Annotated[
        RunFolder,
        given(
            "Fine-tuning starts from a pre-trained run, whose tokenizer and sizes it "
            "takes even when its weights are left out; name its folder with "
            "--config.init_from=runs/pretrain/quickstart."
        ),
    ] = ""
    # Layers to copy from it, from the first on: "all", a number (0 copies only the
    # embeddings; Figure 2, left), or "none" (Table 5, no pre-training).
    transfer_layers: Annotated[str, _layers] = "all"
    model: ModelOptions | ModelSection
    custom: CustomTaskConfig
    data: TaskDataConfig
    head: HeadConfig
    eval: Free[FinetuneEvalConfig]
    suite: Free[SuiteConfig]
    # The format of the pictures in plots/; .csv files beside them hold the numbers.
    figure: Free[FigureSuffix] = ".png"

    @property
    def default_workdir(self) -> str:
        """As of every job; a task of one's own that has a name has its own folder."""
        return os.path.join("runs", self.job, self.custom.name or self.preset)

    def __post_init__(self):
        super().__post_init__()
        require(
            (self.tasks == (CUSTOM_TASK,)) == (self.data.source == "files"),
            f"config.tasks={self.tasks} does not go with config.data.source="
            f"{self.data.source!r}: a task of your own (configs/finetune.py:custom) is "
            "read from source='files', and published tasks from the others.",
        )
        if isinstance(self.model, ModelSection):
            require(
                self.data.max_seq_len <= self.model.max_seq_len,
                f"config.data.max_seq_len={self.data.max_seq_len}, but its model reads "
                f"{self.model.max_seq_len} tokens at most.",
            )
        # Values that the comparison would override.
        compare = self.suite.compare
        require(
            compare in ("", "scratch", "train_sizes") or self.transfer_layers == "all",
            f"config.transfer_layers={self.transfer_layers!r}, but the runs of "
            f"config.suite.compare={compare!r} start from all layers unless a variant "
            "says otherwise; leave it at 'all'.",
        )
        require(
            compare != "ablations" or self.head.aux_lm_weight > 0,
            "config.head.aux_lm_weight=0, but config.suite.compare='ablations' "
            "compares runs with and without the auxiliary objective; leave it above 0.",
        )
        require(
            compare not in _READ_BY["train_sizes"] or not self.data.max_train_examples,
            f"config.data.max_train_examples={self.data.max_train_examples}, but "
            f"config.suite.compare={compare!r} takes the sizes in "
            "config.suite.train_sizes; leave it at 0.",
        )


# --- comparisons: the paper's analyses ------------------------------------------------

LSTM = "lstm"  # the variant that starts from `suite.lstm_init_from`

_OF_THE_TRANSFORMER = ("full", "no_pretraining", "no_aux_lm")
Variants = Mapping[str, FinetuneConfig]


def suite_variants(config: FinetuneConfig, num_layers: int) -> Variants:
    """The variants that `config.suite.compare` names, in the order they are run.

    Args:
      config: the suite's configuration.
      num_layers: layers of the model at `config.init_from`.

    Returns:
      The configurations by variant name, which is a part of the folders' names. Each
      is of a single run, which compares nothing.
    """
    alone = dataclasses.replace(
        config.suite, compare="", lstm_init_from="", aux_lm_weights=(), train_sizes=()
    )
    base = dataclasses.replace(config, suite=alone)
    own = "scratch" if config.transfer_layers == "none" else "pretrained"
    scratch = dataclasses.replace(base, transfer_layers="none")
    match config.suite.compare:
        case "scratch":
            return {own: base, "scratch": scratch}
        case "ablations":  # the rows of Table 5
            own_rows = base, scratch, _with_aux_lm(base, 0.0)
            rows = dict(zip(_OF_THE_TRANSFORMER, own_rows, strict=True))
            if lstm := config.suite.lstm_init_from:
                rows[LSTM] = dataclasses.replace(base, init_from=lstm)
            return rows
        case "layer_transfer":
            return {
                f"layers{number}": dataclasses.replace(
                    base, transfer_layers=str(number)
                )
                for number in range(num_layers + 1)
            }
        case "aux_lm_weight":
            return {
                f"lambda{weight:.12g}-{size}": _with_aux_lm(sized, float(weight))
                for size, sized in _train_sizes(config.suite, base).items()
                for weight in config.suite.aux_lm_weights
            }
        case "train_sizes":
            return _train_sizes(config.suite, base)
    return {own: base}


def describe_left_out(config: FinetuneConfig) -> str:
    """A line on what is missing from the comparison, or ""."""
    if config.suite.compare != "ablations" or config.suite.lstm_init_from:
        return ""
    return (
        "Table 5's LSTM is left out; for it, name the run folder of a pre-trained LSTM "
        "with --config.suite.lstm_init_from=DIR."
    )


def check_kind(name: str, variant: FinetuneConfig, kind: str) -> None:
    """Refuses a model that would end up in the wrong row of Table 5.

    Args:
      name: the variant's name.
      variant: its configuration.
      kind: the kind of model it starts from, "transformer" or "lstm".

    Raises:
      UserError: naming the key that holds the other kind.
    """
    require(
        name != LSTM or kind == "lstm",
        f"config.suite.lstm_init_from={variant.init_from!r} is a {kind}, not an LSTM; "
        "name the run folder of one, or leave the key empty.",
    )
    require(
        name not in _OF_THE_TRANSFORMER or kind == "transformer",
        f"config.init_from={variant.init_from!r} is an {kind}, but the ablations of "
        "Table 5 are the Transformer's; name the LSTM with "
        "--config.suite.lstm_init_from.",
    )


def _train_sizes(suite: SuiteConfig, base: FinetuneConfig) -> Variants:
    """Each number of training examples, the largest first."""
    found = {}
    for size in sorted(suite.train_sizes, key=lambda n: n or math.inf, reverse=True):
        data = dataclasses.replace(base.data, max_train_examples=size)
        name = f"size{size}" if size else "all"
        found[name] = dataclasses.replace(base, data=data)
    return found


def _with_aux_lm(config: FinetuneConfig, weight: float) -> FinetuneConfig:
    head = dataclasses.replace(config.head, aux_lm_weight=weight)
    return dataclasses.replace(config, head=head)
