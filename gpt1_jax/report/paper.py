"""The paper's results: Tables 2 to 5, and what was published alongside."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A column of the paper's tables, a line of ours. Values are points."""

    title: str
    gpt1: float | None
    scratch: float | None  # Table 5, "Transformer w/o pre-training"
    table: int | None  # None: not in the paper
    subset: str = ""  # of the task's split, "" for all of it
    metric: str = "accuracy"
    split: str = "test"  # on which the paper's values were measured


# Tables 2 to 5. Without pre-training, MNLI is the mean of m and mm. WNLI is from the
# GLUE leaderboard, COPA from the announcement.
PAPER: Mapping[str, Sequence[Row]] = {
    "mnli": [
        Row("MNLI-m", 82.1, 75.7, 2, "matched"),
        Row("MNLI-mm", 81.4, 75.7, 2, "mismatched"),
    ],
    "snli": [Row("SNLI", 89.9, None, 2)],
    "sci_tail": [Row("SciTail", 88.3, None, 2)],
    "qnli": [Row("QNLI", 88.1, 71.2, 2)],
    "rte": [Row("RTE", 56.0, 53.8, 2)],
    "story_cloze": [Row("Story Cloze", 86.5, None, 3)],
    "race": [
        Row("RACE-m", 62.9, None, 3, "middle"),
        Row("RACE-h", 57.4, None, 3, "high"),
        Row("RACE", 59.0, None, 3),
    ],
    "cola": [Row("CoLA", 45.4, 18.9, 4, metric="matthews")],
    "sst2": [Row("SST-2", 91.3, 84.0, 4)],
    "mrpc": [Row("MRPC", 82.3, 79.4, 4, metric="f1")],
    "stsb": [Row("STS-B", 82.0, 30.9, 4, metric="pearson")],
    "qqp": [Row("QQP", 70.3, 65.5, 4, metric="f1")],
    "wnli": [Row("WNLI", 53.4, None, None)],
    "copa": [Row("COPA", 78.6, None, None)],
}
PAPER_GLUE = 72.8  # Table 4
AUX_LM_WEIGHT = 0.5  # lambda, sec. 4.1


class Column(NamedTuple):
    """A column of Table 5."""

    task: str
    title: str
    metric: str
    subsets: tuple[str, ...] = ()  # scored as their mean


TABLE_5_COLUMNS = (
    Column("cola", "CoLA", "matthews"),
    Column("sst2", "SST-2", "accuracy"),
    Column("mrpc", "MRPC", "f1"),
    Column("stsb", "STS-B", "pearson"),
    Column("qqp", "QQP", "f1"),
    Column("mnli", "MNLI", "accuracy", ("matched", "mismatched")),
    Column("qnli", "QNLI", "accuracy"),
    Column("rte", "RTE", "accuracy"),
)


class Ablation(NamedTuple):
    """A line of Table 5: the GLUE test scores of its columns. Values are points."""

    title: str
    scores: tuple[float, ...]
    average: float  # as printed; of the LSTM's scores it would be 69.2


TABLE_5: Mapping[str, Ablation] = {  # by the name of the variant
    "full": Ablation(
        "full",  # Transformer with auxiliary LM
        (45.4, 91.3, 82.3, 82.0, 70.3, 81.8, 88.1, 56.0),
        74.7,
    ),
    "no_pretraining": Ablation(
        "no pre-training",
        (18.9, 84.0, 79.4, 30.9, 65.5, 75.7, 71.2, 53.8),
        59.9,
    ),
    "no_aux_lm": Ablation(
        "no auxiliary LM",
        (47.9, 92.0, 84.9, 83.2, 69.8, 81.1, 86.9, 54.4),
        75.0,
    ),
    "lstm": Ablation(
        "LSTM",  # with auxiliary LM
        (30.3, 90.5, 83.2, 71.8, 68.1, 73.7, 81.1, 54.6),
        69.1,
    ),
}


class Reference(NamedTuple):
    """What Figure 2 (right) measures zero-shot scores by. Values are points."""

    chance: float
    best: float  # published before GPT-1


# The paper does not print the constants of its figure. These are what it cites or what
# was the best published; not all are of a single model, as the figure's are said to be.
ZERO_SHOT: Mapping[str, Reference] = {
    "cola": Reference(0.0, 35.0),  # Table 4: single-task BiLSTM with ELMo, attention
    "sst2": Reference(50.0, 93.2),  # Table 4: sparse byte mLSTM
    "race": Reference(25.0, 53.3),  # Table 3: BiAttention MRU, an ensemble of nine
    "dpr": Reference(50.0, 76.4),  # Peng et al. 2015, test split of 564
    "story_cloze": Reference(50.0, 77.6),  # Table 3: hidden coherence model
    "copa": Reference(50.0, 71.2),  # announcement of GPT-1
    "wsc273": Reference(50.0, 63.7),  # Trinh and Le 2018, an ensemble
}
