"""The paper's results: Tables 2 to 5, and what was published alongside."""

from collections.abc import Mapping
from typing import NamedTuple

AUX_LM_WEIGHT = 0.5  # lambda, sec. 4.1


class PaperScore(NamedTuple):
    """A score of GPT-1 on a task or a part of it, in points."""

    task: str
    title: str  # as the paper prints it
    metric: str
    gpt1: float | None
    from_scratch: float | None  # Table 5, "Transformer w/o pre-training"
    table: int  # 0: not in the paper
    subset: str = ""  # of the test split, "" for all of it


# Tables 2 to 5, all on test splits. Without pre-training, MNLI is the mean of m and mm.
# WNLI is from the GLUE leaderboard, COPA from the announcement.
PAPER = (
    PaperScore("mnli", "MNLI-m", "accuracy", 82.1, 75.7, 2, "matched"),
    PaperScore("mnli", "MNLI-mm", "accuracy", 81.4, 75.7, 2, "mismatched"),
    PaperScore("snli", "SNLI", "accuracy", 89.9, None, 2),
    PaperScore("sci_tail", "SciTail", "accuracy", 88.3, None, 2),
    PaperScore("qnli", "QNLI", "accuracy", 88.1, 71.2, 2),
    PaperScore("rte", "RTE", "accuracy", 56.0, 53.8, 2),
    PaperScore("story_cloze", "Story Cloze", "accuracy", 86.5, None, 3),
    PaperScore("race", "RACE-m", "accuracy", 62.9, None, 3, "middle"),
    PaperScore("race", "RACE-h", "accuracy", 57.4, None, 3, "high"),
    PaperScore("race", "RACE", "accuracy", 59.0, None, 3),
    PaperScore("cola", "CoLA", "matthews", 45.4, 18.9, 4),
    PaperScore("sst2", "SST-2", "accuracy", 91.3, 84.0, 4),
    PaperScore("mrpc", "MRPC", "f1", 82.3, 79.4, 4),
    PaperScore("stsb", "STS-B", "pearson", 82.0, 30.9, 4),
    PaperScore("qqp", "QQP", "f1", 70.3, 65.5, 4),
    PaperScore("wnli", "WNLI", "accuracy", 53.4, None, 0),
    PaperScore("copa", "COPA", "accuracy", 78.6, None, 0),
)
TABLES = {
    2: "Table 2: natural language inference",
    3: "Table 3: question answering and commonsense reasoning",
    4: "Table 4: classification and semantic similarity",
    0: "Not in the paper's tables",
}

GLUE = 72.8  # Table 4
# The scores that the GLUE leaderboard first averages within each task: metric, subset.
GLUE_SCORES: Mapping[str, list[tuple[str, str]]] = {
    **{task: [("accuracy", "")] for task in ("sst2", "qnli", "rte", "wnli")},
    **{task: [("f1", ""), ("accuracy", "")] for task in ("mrpc", "qqp")},
    "cola": [("matthews", "")],
    "stsb": [("pearson", ""), ("spearman", "")],
    "mnli": [("accuracy", "matched"), ("accuracy", "mismatched")],
}

# The columns of Table 5, with PAPER's metrics. MNLI is the mean of m and mm.
TABLE_5_TASKS = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
}


class Ablation(NamedTuple):
    """A row of Table 5: test scores in points, in the order of `TABLE_5_TASKS`."""

    title: str
    scores: tuple[float, ...]
    average: float  # as printed; the mean of the LSTM's scores would be 69.2


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
