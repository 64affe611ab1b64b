"""The paper's tasks (Table 1), COPA from GPT-1's announcement, WNLI for GLUE's score.

A new task takes one entry in `TASKS`, or none: `configs/finetune.py:custom` describes
one in the configuration.
"""

from collections.abc import Mapping

from gpt1_jax.tasks.task import FileLayout, GlueFile, Places, Task

_NLI = ("entailment", "neutral", "contradiction")
_NOT_NLI = ("entailment", "not_entailment")


def _tfds(name: str, *, train: str = "train", dev: str = "validation") -> Places:
    splits = {"train": train, "dev": dev, "test": "test"}
    return {key: {"": f"{name}:{split}"} for key, split in splits.items()}


def _glue(folder: str, columns: Mapping[str, str], label: str = "label") -> Places:
    """The files of gluebenchmark.com that have a header."""
    training = FileLayout(f"{folder}/train.tsv", {**columns, "label": label})
    dev = FileLayout(f"{folder}/dev.tsv", {**columns, "label": label})
    test = FileLayout(f"{folder}/test.tsv", {**columns, "idx": "index"})
    return {"train": {"": training}, "dev": {"": dev}, "test": {"": test}}


def _glue_file(name: str, rows: int) -> dict[str, GlueFile]:
    return {"": GlueFile(name, rows)}


_TWO_SENTENCES = {"sentence1": "sentence1", "sentence2": "sentence2"}
_MNLI_COLUMNS = {"premise": "sentence1", "hypothesis": "sentence2"}
_MRPC_COLUMNS = {"sentence1": "#1 String", "sentence2": "#2 String"}
_QQP_COLUMNS = {"question1": "question1", "question2": "question2"}
_COLA_COLUMNS = {"label": 1, "sentence": 3}
_STORY_COLUMNS: dict[str, str | int | tuple[str, ...] | list[str]] = {
    "context": tuple(f"InputSentence{i}" for i in (1, 2, 3, 4)),
    "endings": [f"RandomFifthSentenceQuiz{i}" for i in (1, 2)],
    "label": "AnswerRightEnding",
    "idx": "InputStoryid",
}


def _mnli_files(split: str) -> dict[str, FileLayout]:
    columns = {**_MNLI_COLUMNS, "idx": "index"}
    if split == "dev":
        columns["label"] = "gold_label"
    return {
        subset: FileLayout(f"MNLI/{split}_{subset}.tsv", columns)
        for subset in ("matched", "mismatched")
    }


def _mnli_test_files() -> dict[str, FileLayout]:
    """Both test sets, and GLUE's diagnostic set, which an MNLI model answers."""
    columns = {**_MNLI_COLUMNS, "idx": "index"}
    return {
        **_mnli_files("test"),
        "ax": FileLayout("diagnostic/diagnostic.tsv", columns),
    }


def _snli_file(split: str) -> dict[str, FileLayout]:
    columns = {**_MNLI_COLUMNS, "label": "gold_label", "idx": "pairID"}
    return {"": FileLayout(f"snli_1.0/snli_1.0_{split}.jsonl", columns, "jsonl")}


def _scitail_file(split: str) -> dict[str, FileLayout]:
    columns = {"premise": 0, "hypothesis": 1, "label": 2}
    return {"": FileLayout(f"SciTailV1.1/tsv_format/scitail_1.0_{split}.tsv", columns)}


def _copa_file(split: str) -> dict[str, FileLayout]:
    names = ("premise", "choice1", "choice2", "question", "label", "idx")
    return {"": FileLayout(f"COPA/{split}.jsonl", {n: n for n in names}, "jsonl")}


def _race_files(split: str) -> dict[str, FileLayout]:
    return {
        level: FileLayout(f"RACE/{split}/{level}", format="race")
        for level in ("middle", "high")
    }


def _story_file(name: str) -> dict[str, FileLayout]:
    return {
        "": FileLayout(f"cloze_test_{name}__spring2016*.csv", _STORY_COLUMNS, "csv")
    }


_TASKS = (
    Task(
        name="snli",
        title="SNLI",
        transform="pair",
        text=("premise", "hypothesis"),
        labels=_NLI,
        metrics=("accuracy",),
        tfds=_tfds("snli"),
        files={split: _snli_file(split) for split in ("train", "dev", "test")},
        drop_unlabelled=True,  # annotators disagreed: -1 in TFDS, "-" in the files
    ),
    Task(
        name="mnli",
        title="MNLI",
        transform="pair",
        text=("premise", "hypothesis"),
        labels=_NLI,
        metrics=("accuracy",),
        tfds={
            "train": {"": "glue/mnli:train"},
            "dev": {
                "matched": "glue/mnli:validation_matched",
                "mismatched": "glue/mnli:validation_mismatched",
            },
            "test": {
                "matched": "glue/mnli:test_matched",
                "mismatched": "glue/mnli:test_mismatched",
                "ax": "glue/ax:test",
            },
        },
        files={
            "train": {
                "": FileLayout(
                    "MNLI/train.tsv", {**_MNLI_COLUMNS, "label": "gold_label"}
                )
            },
            "dev": _mnli_files("dev"),
            "test": _mnli_test_files(),
        },
        optional=("ax",),
        glue={
            "matched": GlueFile("MNLI-m.tsv", 9796),
            "mismatched": GlueFile("MNLI-mm.tsv", 9847),
            "ax": GlueFile("AX.tsv", 1104),
        },
        glue_takes_names=True,
    ),
    Task(
        name="qnli",
        title="QNLI",
        transform="pair",
        text=("question", "sentence"),
        labels=_NOT_NLI,
        metrics=("accuracy",),
        tfds=_tfds("glue/qnli"),
        files=_glue("QNLI", {"question": "question", "sentence": "sentence"}),
        glue=_glue_file("QNLI.tsv", 5463),
        glue_takes_names=True,
    ),
    Task(
        name="sci_tail",
        title="SciTail",
        transform="pair",
        text=("premise", "hypothesis"),
        labels=("entails", "neutral"),
        metrics=("accuracy",),
        tfds=_tfds("sci_tail"),
        files={split: _scitail_file(split) for split in ("train", "dev", "test")},
    ),
    Task(
        name="rte",
        title="RTE",
        transform="pair",
        text=("sentence1", "sentence2"),
        labels=_NOT_NLI,
        metrics=("accuracy",),
        tfds=_tfds("glue/rte"),
        files=_glue("RTE", _TWO_SENTENCES),
        glue=_glue_file("RTE.tsv", 3000),
        glue_takes_names=True,
    ),
    Task(
        name="race",
        title="RACE",
        transform="multiple_choice",
        text=("article", "question"),
        choices=("options",),
        label="answer",
        labels=("A", "B", "C", "D"),
        metrics=("accuracy",),
        tfds={
            split: {level: f"race/{level}:{split}" for level in ("middle", "high")}
            for split in ("train", "dev", "test")
        },
        files={split: _race_files(split) for split in ("train", "dev", "test")},
        subset_column="example_id",
        may_be_empty=True,  # some questions are: the passage itself has the gap
    ),
    Task(
        name="story_cloze",
        title="Story Cloze",
        transform="multiple_choice",
        text=("context",),
        choices=("endings",),
        labels=("1", "2"),
        metrics=("accuracy",),
        tfds={
            "dev": {"": "story_cloze/2016:validation"},
            "test": {"": "story_cloze/2016:test"},
        },
        tfds_first_label=1,
        files={"dev": _story_file("val"), "test": _story_file("test")},
        dev_split=(374, 3535999445),  # released code, datasets.py
    ),
    Task(
        name="copa",
        title="COPA",
        transform="multiple_choice",
        text=("premise", "question"),
        choices=("choice1", "choice2"),
        labels=("choice1", "choice2"),
        metrics=("accuracy",),
        wording={  # as COPA's authors put it
            "question": {
                "cause": "What was the cause of this?",
                "effect": "What happened as a result?",
            }
        },
        tfds=_tfds("super_glue/copa"),
        files={
            "train": _copa_file("train"),
            "dev": _copa_file("val"),
            "test": _copa_file("test"),
        },
    ),
    Task(
        name="mrpc",
        title="MRPC",
        transform="similarity",
        text=("sentence1", "sentence2"),
        labels=("not_equivalent", "equivalent"),
        metrics=("f1", "accuracy"),
        tfds=_tfds("glue/mrpc"),
        files=_glue("MRPC", _MRPC_COLUMNS, label="Quality"),
        glue=_glue_file("MRPC.tsv", 1725),
    ),
    Task(
        name="qqp",
        title="QQP",
        transform="similarity",
        text=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        metrics=("f1", "accuracy"),
        tfds=_tfds("glue/qqp"),
        files={
            **_glue("QQP", _QQP_COLUMNS, label="is_duplicate"),
            "train": {  # line ends within some questions break their rows
                "": FileLayout(
                    "QQP/train.tsv",
                    {**_QQP_COLUMNS, "label": "is_duplicate"},
                    may_be_short=True,
                )
            },
            "test": {"": FileLayout("QQP/test.tsv", {**_QQP_COLUMNS, "idx": "id"})},
        },
        may_be_empty=True,
        glue=_glue_file("QQP.tsv", 390965),
    ),
    Task(
        name="stsb",
        title="STS-B",
        transform="similarity",
        text=("sentence1", "sentence2"),
        labels=(),
        score_range=(0.0, 5.0),
        metrics=("pearson", "spearman"),
        tfds=_tfds("glue/stsb"),
        files=_glue("STS-B", _TWO_SENTENCES, label="score"),
        glue=_glue_file("STS-B.tsv", 1379),
    ),
    Task(
        name="cola",
        title="CoLA",
        transform="single",
        text=("sentence",),
        labels=("unacceptable", "acceptable"),
        metrics=("matthews", "accuracy"),
        tfds=_tfds("glue/cola"),
        files={
            "train": {"": FileLayout("CoLA/train.tsv", _COLA_COLUMNS)},
            "dev": {"": FileLayout("CoLA/dev.tsv", _COLA_COLUMNS)},
            "test": {
                "": FileLayout(
                    "CoLA/test.tsv", {"sentence": "sentence", "idx": "index"}
                )
            },
        },
        glue=_glue_file("CoLA.tsv", 1063),
    ),
    Task(
        name="sst2",
        title="SST-2",
        transform="single",
        text=("sentence",),
        labels=("negative", "positive"),
        metrics=("accuracy",),
        tfds=_tfds("glue/sst2"),
        files=_glue("SST-2", {"sentence": "sentence"}),
        glue=_glue_file("SST-2.tsv", 1821),
    ),
    Task(
        name="wnli",
        title="WNLI",
        transform="pair",
        text=("sentence1", "sentence2"),
        labels=_NOT_NLI[::-1],
        metrics=("accuracy",),
        tfds=_tfds("glue/wnli"),
        files=_glue("WNLI", _TWO_SENTENCES),
        glue=_glue_file("WNLI.tsv", 146),
    ),
)

TASKS: Mapping[str, Task] = {task.name: task for task in _TASKS}
