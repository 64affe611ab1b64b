"""The registry of tasks, and which of them a configuration names.

It holds the paper's tasks (Table 1), COPA from GPT-1's announcement, and WNLI for
GLUE's score. Three more are SuperGLUE's, which GPT-1 was not evaluated on but BabyLM
evaluates: BoolQ, MultiRC and WSC, in the wording of BabyLM's evaluation.

A new task is one more `Task` in this file. For a task of their own, users need no code:
`configs/finetune.py:custom` describes it in the configuration.
"""

import dataclasses
from collections.abc import Mapping

from gpt1_jax.config.finetune import CUSTOM_TASK, FinetuneConfig
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.custom_task import check_metrics, custom_task, fill_in_labels
from gpt1_jax.tasks.examples import SPLITS
from gpt1_jax.tasks.task import (
    BySplit,
    FileLayout,
    Glue,
    GlueFile,
    Inputs,
    Published,
    Record,
    Target,
    Task,
)

ALL = "all"  # the name of the paper's tasks together
_THEIR_SPLITS = {"train": "train", "dev": "validation", "test": "test"}  # as published
_NLI = ("entailment", "neutral", "contradiction")
_NOT_NLI = ("entailment", "not_entailment")
_TWO_SENTENCES = {"sentence1": "sentence1", "sentence2": "sentence2"}
_PAIR = Inputs("pair", ("sentence1", "sentence2"))
_PREMISE = {"premise": "sentence1", "hypothesis": "sentence2"}
_LABELLED = {**_PREMISE, "label": "gold_label"}
_NUMBERED = {**_PREMISE, "idx": "index"}
# Subsets, which every source has alike.
_MATCHED = ("matched", "mismatched")  # MNLI's, of the training genres and of others
_AX = "ax"  # GLUE's diagnostic set, which is tested with MNLI
_LEVELS = ("middle", "high")  # RACE's schools


def _tfds(name: str) -> BySplit:
    """The splits of a dataset in TFDS; "" stands for a split without subsets."""
    return {split: {"": f"{name}:{theirs}"} for split, theirs in _THEIR_SPLITS.items()}


def _hub(folder: str) -> BySplit:
    """The splits in a folder of a dataset on the Hub, as its library writes them."""
    return {
        split: {"": f"hf://datasets/{folder}/{theirs}-*.parquet"}
        for split, theirs in _THEIR_SPLITS.items()
    }


def _files(path: str, columns: Mapping[str, str | int]) -> BySplit:
    """Files alike for all splits, whose names are put into the path."""
    return {split: {"": FileLayout(path.format(split), columns)} for split in SPLITS}


def _with_one_id(record: Record) -> Record:
    """MultiRC: the numbers of paragraph, question and answer as one id, "3-0-1"."""
    numbers = record.columns.get("idx")
    if not isinstance(numbers, Mapping):
        return record
    names = (name for name in ("paragraph", "question", "answer") if name in numbers)
    one_id = "-".join(str(numbers[name]) for name in names)
    return record._replace(columns={**record.columns, "idx": one_id})


def _glue(
    folder: str,
    columns: Mapping[str, str | int],
    label: str | int = "label",
    index: str = "index",
    may_be_short: bool = False,
) -> dict[str, dict[str, FileLayout]]:
    """The files of gluebenchmark.com; only rows of the training file may be short."""
    labelled = {**columns, "label": label}
    training = FileLayout(f"{folder}/train.tsv", labelled, may_be_short=may_be_short)
    dev = FileLayout(f"{folder}/dev.tsv", labelled)
    test = FileLayout(f"{folder}/test.tsv", {**columns, "idx": index})
    return {"train": {"": training}, "dev": {"": dev}, "test": {"": test}}


def _glue_task(
    name: str,
    title: str,
    inputs: Inputs,
    target: Target,
    files: BySplit | None = None,
    *,
    test_rows: int,
    metrics: tuple[str, ...] = ("accuracy",),
    takes_names: bool = False,
) -> Task:
    """A task of GLUE, whose folder and file for the leaderboard are named as it is.

    By default the files of gluebenchmark.com have our columns.
    """
    return Task(
        name,
        title,
        inputs,
        target,
        metrics,
        Published(
            tfds=_tfds(f"glue/{name}"),
            hub=_hub(f"nyu-mll/glue/{name}"),
            files=files or _glue(title, {each: each for each in inputs.text}),
        ),
        Glue({"": GlueFile(f"{title}.tsv", test_rows)}, takes_names),
    )


def _mnli(place: str) -> BySplit:
    """MNLI's splits and GLUE's diagnostics, by dataset and split put into a place."""
    return {
        "train": {"": place.format("mnli", "train")},
        "dev": {each: place.format("mnli", f"validation_{each}") for each in _MATCHED},
        "test": {
            **{each: place.format("mnli", f"test_{each}") for each in _MATCHED},
            _AX: place.format("ax", "test"),
        },
    }


def _super_glue(name: str, folder: str = "") -> Published:
    """A task of SuperGLUE; its authors' files are read if their folder is named."""
    names = {"train": "train", "dev": "val", "test": "test"} if folder else {}
    return Published(
        tfds=_tfds(f"super_glue/{name}"),
        hub=_hub(f"aps/super_glue/{name}"),
        files={
            split: {"": FileLayout(f"{folder}/{theirs}.jsonl")}
            for split, theirs in names.items()
        },
    )


_PAPER_TASKS = (
    Task(
        name="snli",
        title="SNLI",
        inputs=Inputs("pair", ("premise", "hypothesis")),
        target=Target(
            _NLI,
            drop_unlabelled=True,  # annotators disagreed: -1 in TFDS, "-" in the files
        ),
        published=Published(
            tfds=_tfds("snli"),
            hub=_hub("stanfordnlp/snli/plain_text"),
            files=_files("snli_1.0/snli_1.0_{}.jsonl", {**_LABELLED, "idx": "pairID"}),
        ),
    ),
    Task(
        name="mnli",
        title="MNLI",
        inputs=Inputs("pair", ("premise", "hypothesis")),
        target=Target(_NLI),
        published=Published(
            tfds=_mnli("glue/{}:{}"),
            hub=_mnli("hf://datasets/nyu-mll/glue/{}/{}-*.parquet"),
            files={
                "train": {"": FileLayout("MNLI/train.tsv", _LABELLED)},
                "dev": {
                    subset: FileLayout(
                        f"MNLI/dev_{subset}.tsv", {**_LABELLED, "idx": "index"}
                    )
                    for subset in _MATCHED
                },
                "test": {
                    **{
                        subset: FileLayout(f"MNLI/test_{subset}.tsv", _NUMBERED)
                        for subset in _MATCHED
                    },
                    _AX: FileLayout("diagnostic/diagnostic.tsv", _NUMBERED),
                },
            },
            optional=(_AX,),
        ),
        glue=Glue(
            {
                "matched": GlueFile("MNLI-m.tsv", 9796),
                "mismatched": GlueFile("MNLI-mm.tsv", 9847),
                "ax": GlueFile("AX.tsv", 1104),
            },
            takes_names=True,
        ),
    ),
    _glue_task(
        "qnli",
        "QNLI",
        Inputs("pair", ("question", "sentence")),
        Target(_NOT_NLI),
        test_rows=5463,
        takes_names=True,
    ),
    Task(
        name="sci_tail",
        title="SciTail",
        inputs=Inputs("pair", ("premise", "hypothesis")),
        target=Target(("entails", "neutral")),
        published=Published(
            tfds=_tfds("sci_tail"),
            hub=_hub("allenai/scitail/tsv_format"),
            files=_files(
                "SciTailV1.1/tsv_format/scitail_1.0_{}.tsv",
                {"premise": 0, "hypothesis": 1, "label": 2},
            ),
        ),
    ),
    _glue_task("rte", "RTE", _PAIR, Target(_NOT_NLI), test_rows=3000, takes_names=True),
    Task(
        name="race",
        title="RACE",
        inputs=Inputs(
            "multiple_choice",
            ("article", "question"),
            choices=("options",),
            may_be_empty="all",  # some questions are: the passage itself has the gap
        ),
        target=Target(("A", "B", "C", "D"), column="answer"),
        published=Published(
            tfds={
                split: {level: f"race/{level}:{split}" for level in _LEVELS}
                for split in SPLITS
            },
            hub={
                split: {
                    level: f"hf://datasets/ehovy/race/{level}/{theirs}-*.parquet"
                    for level in _LEVELS
                }
                for split, theirs in _THEIR_SPLITS.items()
            },
            files={
                split: {level: FileLayout(f"RACE/{split}/{level}") for level in _LEVELS}
                for split in SPLITS
            },
            subset_column="example_id",
        ),
    ),
    Task(
        name="story_cloze",
        title="Story Cloze",
        inputs=Inputs("multiple_choice", ("context",), choices=("endings",)),
        target=Target(("1", "2")),
        published=Published(
            tfds={
                "dev": {"": "story_cloze/2016:validation"},
                "test": {"": "story_cloze/2016:test"},
            },
            tfds_first_label=1,
            files={
                split: {
                    "": FileLayout(
                        f"cloze_test_{name}__spring2016*.csv",
                        {
                            "context": tuple(f"InputSentence{i}" for i in (1, 2, 3, 4)),
                            "endings": [f"RandomFifthSentenceQuiz{i}" for i in (1, 2)],
                            "label": "AnswerRightEnding",
                            "idx": "InputStoryid",
                        },
                        newer_path=f"cloze_test_{name}__winter2018*.csv",
                    )
                }
                for split, name in (("dev", "val"), ("test", "test"))
            },
            dev_split=(374, 3535999445),  # released code, datasets.py
            terms="its authors send the files to those who fill in the form at "
            "https://cs.rochester.edu/nlp/rocstories",
        ),
    ),
    Task(
        name="copa",
        title="COPA",
        inputs=Inputs(
            "multiple_choice",
            ("premise", "question"),
            choices=("choice1", "choice2"),
            wording={  # as COPA's authors put it
                "question": {
                    "cause": "What was the cause of this?",
                    "effect": "What happened as a result?",
                }
            },
        ),
        target=Target(("choice1", "choice2")),
        published=_super_glue("copa", "COPA"),
    ),
    _glue_task(
        "mrpc",
        "MRPC",
        Inputs("similarity", ("sentence1", "sentence2")),
        Target(("not_equivalent", "equivalent")),
        _glue(
            "MRPC",
            {"sentence1": "#1 String", "sentence2": "#2 String"},
            label="Quality",
        ),
        test_rows=1725,
        metrics=("f1", "accuracy"),
    ),
    _glue_task(
        "qqp",
        "QQP",
        Inputs("similarity", ("question1", "question2"), may_be_empty="all"),
        Target(("not_duplicate", "duplicate")),
        _glue(
            "QQP",
            {"question1": "question1", "question2": "question2"},
            label="is_duplicate",
            index="id",
            may_be_short=True,  # line ends in questions break their rows
        ),
        test_rows=390965,
        metrics=("f1", "accuracy"),
    ),
    _glue_task(
        "stsb",
        "STS-B",
        Inputs("similarity", ("sentence1", "sentence2")),
        Target(score_range=(0.0, 5.0)),
        _glue("STS-B", _TWO_SENTENCES, label="score"),
        test_rows=1379,
        metrics=("pearson", "spearman"),
    ),
    _glue_task(
        "cola",
        "CoLA",
        Inputs("single", ("sentence",)),
        Target(("unacceptable", "acceptable")),
        {
            **_glue("CoLA", {"sentence": 3}, label=1),  # without a header, but for test
            "test": _glue("CoLA", {"sentence": "sentence"})["test"],
        },
        test_rows=1063,
        metrics=("matthews", "accuracy"),
    ),
    _glue_task(
        "sst2",
        "SST-2",
        Inputs("single", ("sentence",)),
        Target(("negative", "positive")),
        test_rows=1821,
    ),
    _glue_task("wnli", "WNLI", _PAIR, Target(_NOT_NLI[::-1]), test_rows=146),
)

_NO_YES = ("False", "True")  # TFDS' names

_BABYLM_TASKS = (
    Task(
        name="boolq",
        title="BoolQ",
        inputs=Inputs("pair", ("question", "passage"), cut_longer=True),
        target=Target(_NO_YES),
        published=_super_glue("boolq", "BoolQ"),
    ),
    Task(
        name="multirc",
        title="MultiRC",
        inputs=Inputs(
            "pair",
            ("question", "answer", "paragraph"),
            formats=("Question: {question} Answer: {answer}", "{paragraph}"),
            cut_longer=True,
            may_be_empty="all",  # as for BabyLM's evaluation
        ),
        target=Target(_NO_YES),
        published=dataclasses.replace(_super_glue("multirc"), prepare=_with_one_id),
    ),
    Task(
        name="wsc",
        title="WSC",
        inputs=Inputs(
            "pair",
            ("span2_text", "span1_text", "text"),
            formats=(
                'Does "{span2_text}" refer to "{span1_text}" in this passage?',
                "{text}",
            ),
            cut_longer=True,
        ),
        target=Target(_NO_YES),
        published=_super_glue("wsc.fixed"),
    ),
)

TASKS: Mapping[str, Task] = {task.name: task for task in _PAPER_TASKS + _BABYLM_TASKS}


def select_tasks(config: FinetuneConfig) -> tuple[list[Task], FinetuneConfig]:
    """The tasks to fine-tune on.

    Returns:
      The tasks that `config.tasks` names, and the configuration. If the labels of the
      user's own task are not given, it has those of the training file filled in.

    Raises:
      UserError: if there is no such task, files or columns are named beside a
        published one, or the user's own contradicts itself.
    """
    if config.tasks == (CUSTOM_TASK,):
        if config.custom.name in TASKS:
            raise UserError(
                f"config.custom.name={config.custom.name!r} is the name of one of "
                "the paper's tasks, and its scores would be shown under that name; "
                "choose another."
            )
        config = fill_in_labels(config)
        task = custom_task(config)
        check_metrics(task)
        return [task], config
    for name, path in config.data.paths().items():
        raise UserError(
            f"config.data.{name}={path!r} does not go with config.data.source="
            f"{config.data.source!r}, which has files of its own; leave it out, or "
            "describe a task of your own (configs/finetune.py:custom)."
        )
    for name, value in dataclasses.asdict(config.custom).items():
        given = any(value) if isinstance(value, tuple) else value
        if given and name != "label":  # which always has a value
            raise UserError(
                f"config.custom.{name}={value!r} describes a task of your own, but "
                f"config.tasks={config.tasks}; leave it out, or take "
                "configs/finetune.py:custom."
            )
    names = list(dict.fromkeys(config.tasks))
    if config.tasks == (ALL,):
        names = [task.name for task in _PAPER_TASKS]
    unknown = [name for name in names if name not in TASKS]
    if unknown:
        raise UserError(
            f"There is no task {', '.join(map(repr, unknown))}; there are "
            f"{', '.join(TASKS)}, or {ALL!r} or {CUSTOM_TASK!r} alone."
        )
    return [_published_task(name, config) for name in names], config


def find_task(config: FinetuneConfig) -> Task:
    """The task of a fine-tuned run.

    Raises:
      UserError: if its configuration names none.
    """
    name = config.tasks[0]
    if name == CUSTOM_TASK:
        return custom_task(config)
    if name not in TASKS:
        raise UserError(
            f"The run's configuration names the task {name!r:.40}; there are "
            f"{', '.join(TASKS)} and {CUSTOM_TASK}. Its folder is damaged, or another "
            "version has written it."
        )
    return _published_task(name, config)


def _published_task(name: str, config: FinetuneConfig) -> Task:
    """A task of the registry; the configuration says how it learns scores."""
    task = TASKS[name]
    if not task.target.score_range:
        return task
    target = dataclasses.replace(task.target, score_loss=config.head.score_loss)
    return dataclasses.replace(task, target=target)
