"""The same examples from every source, and messages on those that are broken."""

import dataclasses
import json
import logging
import re
import shutil

import numpy as np
import pytest
from made_up_tasks import MadeUp, made_up, prepare_tfds, write_jsonl, write_official

from gpt1_jax.tasks import datasets
from gpt1_jax.tasks.splits import MissingData, load_split
from gpt1_jax.tasks.table import TASKS
from gpt1_jax.tasks.task import Task

OWN = Task(
    name="own",
    title="Own",
    transform="pair",
    text=("first", "second"),
    labels=("no", "yes"),
    metrics=("accuracy",),
)
STORY = dataclasses.replace(TASKS["story_cloze"], dev_split=(3, 3535999445))
COUNT = 4  # of a subset


def splits_of(task):
    return [split for split in ("train", "dev", "test") if split in task.files]


def plain(task, examples):
    """What all sources agree on, with COPA's wording undone."""
    undone = {
        new: old
        for old, new in task.wording.get("question", {}).items()
        if task.name == "copa"
    }
    return [
        MadeUp(tuple(undone.get(t, t) for t in e.text), e.choices, e.label, e.subset)
        for e in examples
    ]


def load(task, split, source, directory, **paths):
    return load_split(
        task, split, source=source, directory=str(directory), paths=paths or None
    )


@pytest.fixture
def write(tmp_path):
    """`write(name, text)` makes a file; returns its path as a string."""

    def make(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make


# --- all tasks, all sources -----------------------------------------------------


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_examples_are_the_same_from_every_source(task, tmp_path):
    task = dataclasses.replace(task, dev_split=None)
    made = {split: made_up(task, split, COUNT) for split in splits_of(task)}
    for split, examples in made.items():
        write_jsonl(task, split, examples, tmp_path / "jsonl")
        (tmp_path / "official").mkdir(exist_ok=True)
        write_official(task, split, examples, tmp_path / "official")
    prepare_tfds(task, made, tmp_path / "tfds")
    for split, examples in made.items():
        for source in ("jsonl", "official", "tfds"):
            loaded = plain(task, load(task, split, source, tmp_path / source))
            if source == "tfds":  # which shuffles
                key = str
                assert sorted(loaded, key=key) == sorted(examples, key=key)
                subsets = [example.subset for example in loaded]
                assert subsets == [example.subset for example in examples]
            else:
                assert loaded == examples


def test_examples_for_submission_keep_their_numbers(tmp_path):
    for name in ("mnli", "qqp", "cola", "mrpc"):
        task = TASKS[name]
        write_official(task, "test", made_up(task, "test"), tmp_path)
        examples = load(task, "test", "official", tmp_path)
        assert [e.id for e in examples[:COUNT]] == [*"0123"]


def test_examples_say_where_they_are(tmp_path):
    task = TASKS["sst2"]
    write_jsonl(task, "dev", made_up(task, "dev"), tmp_path)
    write_official(task, "dev", made_up(task, "dev"), tmp_path)
    prepare_tfds(task, {"dev": made_up(task, "dev")}, tmp_path)
    first = {s: load(task, "dev", s, tmp_path)[0] for s in ("jsonl", "official")}
    assert first["jsonl"].where == f"{tmp_path}/sst2/dev.jsonl:1"
    assert first["official"].where == f"{tmp_path}/SST-2/dev.tsv:2"
    third = load(task, "dev", "tfds", tmp_path)[2]
    assert third.where == "glue/sst2:validation[2]"


@pytest.mark.parametrize(
    ("split", "source", "message"),
    [("valid", "tfds", "'valid' is none of train"), ("dev", "hub", "'hub' is none of")],
)
def test_split_or_source_that_is_none_is_refused(tmp_path, split, source, message):
    with pytest.raises(ValueError, match=message):
        load(TASKS["rte"], split, source, tmp_path)


@pytest.mark.parametrize("source", ["jsonl", "official", "tfds"])
def test_diagnostic_set_of_glue_may_be_missing(tmp_path, source):
    """It goes with MNLI's test split, and is not needed for it."""
    task = TASKS["mnli"]
    made = [m for m in made_up(task, "test") if m.subset != "ax"]
    write_jsonl(task, "test", made, tmp_path)
    write_official(task, "test", made, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        if source == "tfds":
            prepare_tfds(task, {"test": made}, tmp_path)
            opened = datasets._open_dataset

            def without_ax(spec, directory):
                if spec.startswith("glue/ax"):
                    raise MissingData(spec)
                return opened(spec, directory)

            patch.setattr(datasets, "_open_dataset", without_ax)
        examples = load(task, "test", source, tmp_path)
    assert len(examples) == len(made)
    assert {e.subset for e in examples} == {"matched", "mismatched"}


# --- the division of Story Cloze ------------------------------------------------


@pytest.mark.parametrize("source", ["jsonl", "official", "tfds"])
def test_dev_split_is_divided_as_the_released_code_does(tmp_path, source):
    from sklearn.model_selection import train_test_split

    made = {split: made_up(STORY, split, 9) for split in ("dev", "test")}
    for split, examples in made.items():
        write_jsonl(STORY, split, examples, tmp_path)
        write_official(STORY, split, examples, tmp_path)
    prepare_tfds(STORY, made, tmp_path)
    write_jsonl(STORY, "train", made["test"], tmp_path)  # is not to be read
    train, dev, test = (
        plain(STORY, load(STORY, split, source, tmp_path))
        for split in ("train", "dev", "test")
    )
    assert (len(train), len(dev), len(test)) == (6, 3, 9)
    assert set(train) | set(dev) == set(made["dev"])
    assert set(test) == set(made["test"])
    if source != "tfds":  # which shuffles
        texts = [m.text for m in made["dev"]]
        parts = train_test_split(texts, test_size=3, random_state=3535999445)
        assert [[m.text for m in part] for part in (train, dev)] == parts


def test_dev_split_of_story_cloze_has_the_released_sizes(tmp_path):
    task = TASKS["story_cloze"]
    write_official(task, "dev", made_up(task, "dev", 1871), tmp_path)
    train, dev = (load(task, s, "official", tmp_path) for s in ("train", "dev"))
    assert (len(train), len(dev)) == (1497, 374)
    rows = [int(re.search(r"context (\d+)", e.text[0])[1]) for e in dev + train]
    assert rows == list(np.random.RandomState(3535999445).permutation(1871))


def test_dev_split_too_small_to_divide_is_refused(tmp_path):
    write_jsonl(STORY, "dev", made_up(STORY, "dev", 3), tmp_path)
    for split in ("train", "dev"):
        with pytest.raises(ValueError, match=r"divided into 3 .* but it holds 3;"):
            load(STORY, split, "jsonl", tmp_path)


# --- JSON lines -----------------------------------------------------------------


def test_jsonl_subsets_but_the_first_may_be_missing(tmp_path):
    task = TASKS["mnli"]
    made = made_up(task, "dev")
    write_jsonl(task, "dev", made, tmp_path)
    folder = tmp_path / "mnli"
    assert {e.subset for e in load(task, "dev", "jsonl", tmp_path)} == {
        "matched",
        "mismatched",
    }
    (folder / "dev_mismatched.jsonl").rename(folder / "kept")
    assert plain(task, load(task, "dev", "jsonl", tmp_path)) == made[:COUNT]
    (folder / "dev.jsonl").rename(folder / "dev_matched.jsonl")
    assert plain(task, load(task, "dev", "jsonl", tmp_path)) == made[:COUNT]
    shutil.copy(folder / "dev_matched.jsonl", folder / "dev.jsonl")
    with pytest.raises(ValueError, match=r"both hold the subset 'matched'; remove"):
        load(task, "dev", "jsonl", tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence": "", "label": 1}', "is empty"),
        ('{"text": "Good.", "label": 1}', "no column 'sentence'"),
        ('{"sentence": "Good.", "label": 2}', "label 2 is none of"),
        ('{"sentence": "Good."}', "no label"),
        ('{"sentence": "A.", "label": ' + "9" * 400 + "}", "label 9+.*9 is none of"),
        ('{"sentence": "A.", "label": 1e999}', "label inf is none of"),
        ('{"sentence": "A.", "label": NaN}', "label nan is none of"),
        (
            '{"label": 1, "sentence": ' + "[" * 500 + "]" * 500 + "}",
            r"holds \[.*\], not text",
        ),
        ('{"sentence": "A.", "idx": [1], "label": 1}', r"the id \[1\] is neither text"),
    ],
)
def test_jsonl_broken_line_is_named(write, tmp_path, line, message):
    good = b'\xef\xbb\xbf{"sentence": "Good.", "label": 1}\r\n\n'
    path = write("sst2/train.jsonl", good + line.encode() + b"\n")
    with pytest.raises(ValueError, match=message) as raised:
        load(TASKS["sst2"], "train", "jsonl", tmp_path)
    assert str(raised.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize("content", ["", "\n", '{"sentence1": 0}'])
def test_split_without_examples_is_refused(write, tmp_path, content):
    row = {"premise": "One.", "hypothesis": "Two.", "label": -1}
    write("snli/dev.jsonl", json.dumps(row) if content.startswith("{") else content)
    with pytest.raises(ValueError, match=r"SNLI: the dev split .* holds no examples"):
        load(TASKS["snli"], "dev", "jsonl", tmp_path)


@pytest.mark.parametrize(
    "score", ["9" * 400, "1e999", "-Infinity", "[" * 300 + "]" * 300]
)
def test_jsonl_score_beyond_all_bounds_is_named(write, tmp_path, score):
    row = f'{{"sentence1": "A.", "sentence2": "B.", "label": {score}}}'
    path = write("stsb/train.jsonl", row)
    with pytest.raises(ValueError, match=r"score .* is not a number from") as raised:
        load(TASKS["stsb"], "train", "jsonl", tmp_path)
    assert str(raised.value).startswith(f"{path}:1: ")
    assert len(str(raised.value)) < 300


# --- data that is missing -------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize("source", ["jsonl", "official"])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_missing_data_is_named(tmp_path, task, source, split):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(MissingData, match=re.escape(str(folder))) as raised:
            load(task, split, source, folder)
        assert task.title in str(raised.value)
    assert isinstance(raised.value, FileNotFoundError)


@pytest.mark.parametrize("source", ["official", "tfds"])
def test_missing_split_of_a_source_is_named(tmp_path, source):
    with pytest.raises(MissingData, match=f"Own: source '{source}' has no dev split"):
        load(OWN, "dev", source, tmp_path)


# --- the files as distributed ---------------------------------------------------

QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"


def test_official_short_rows_of_qqp_are_left_out_for_training(write, tmp_path, caplog):
    rows = (
        QQP
        + "1\t2\t3\tWhy?\tHow?\t0\n4\t5\t6\tWhy this\nline?\tHow?\t1\n"
        + ("7\t8\t9\t\tWho?\t1\n")
    )
    path = write("QQP/train.tsv", rows)
    with caplog.at_level(logging.WARNING):
        examples = load(TASKS["qqp"], "train", "official", tmp_path)
    assert [e.text for e in examples] == [("Why?", "How?"), ("", "Who?")]
    assert caplog.messages == [
        f"2 rows are left out for lack of columns; the first is {path}:3."
    ]
    write("QQP/dev.tsv", rows)
    with pytest.raises(ValueError, match=r"dev\.tsv:3: the row has 4 columns, .* 6"):
        load(TASKS["qqp"], "dev", "official", tmp_path)


def test_official_further_columns_are_let_be(write, tmp_path):
    write("SST-2/dev.tsv", "sentence\tlabel\nGood.\t1\tmore\n")
    assert load(TASKS["sst2"], "dev", "official", tmp_path)[0].text == ("Good.",)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("SST-2/train.tsv", "text\tlabel\nGood.\t1\n", "2: .*'sentence'; .* text, lab"),
        ("SST-2/train.tsv", "sentence\tgrade\nGood.\t1\n", "2: .* no column 'label'"),
        ("SST-2/train.tsv", "sentence\tlabel\nGood.\t2\n", "2: label '2' is none"),
        ("SST-2/train.tsv", "sentence\tlabel\n\t1\n", "2: the text .* is empty"),
        ("CoLA/train.tsv", "gj04\t1\n", "1: there is no column 3; .* 0, 1"),
        ("CoLA/train.tsv", "gj\t1\t\tGood.\ngj\t1\n", "2: the row has 2 columns, .* 4"),
    ],
)
def test_official_broken_table_is_named(write, tmp_path, file, content, message):
    path = write(file, content)
    task = TASKS[{"S": "sst2", "C": "cola"}[file[0]]]
    with pytest.raises(ValueError, match=f"^{re.escape(path)}:{message}"):
        load(task, "train", "official", tmp_path)


def test_official_file_that_is_there_twice_is_refused(tmp_path):
    write_official(STORY, "dev", made_up(STORY, "dev"), tmp_path)
    (tmp_path / "cloze_test_val__spring2016.csv").touch()
    (tmp_path / "cloze_test_val__winter2018.csv").touch()
    with pytest.raises(ValueError, match=r"matches 2 files: .*ALL_val\.csv.* keep one"):
        load(STORY, "dev", "official", tmp_path)


@pytest.mark.parametrize(
    ("options", "answer", "message"),
    [
        ([*"abcd"], "E", "label 'E' is none of"),
        (["a hat"], "A", ".*not a list of 4"),
    ],
)
def test_official_broken_question_is_named(write, tmp_path, options, answer, message):
    row = {"article": "Ann has a hat.", "questions": ["Ann has _ ."], "id": "high1.txt"}
    row |= {"options": [[*"abcd"]], "answers": ["A"]}
    write("RACE/dev/middle/1.txt", json.dumps(row))
    row |= {"options": [options], "answers": [answer]}
    path = write("RACE/dev/high/2.txt", json.dumps(row))
    with pytest.raises(ValueError, match=f"^{path}:1, question 1: {message}"):
        load(TASKS["race"], "dev", "official", tmp_path)


# --- files of the user's own ----------------------------------------------------

OWN_FILES = {
    ".tsv": 'second\tlabel\tfirst\nA "b\tyes\tc\nd\tno\te\n',
    ".csv": 'first,second,label\nc,"A ""b",yes\ne,"d",0\n',
    ".jsonl": '{"first": "c", "second": "A \\"b", "label": "yes"}\n'
    '{"first": "e", "second": "d", "label": 0}\n',
}


@pytest.mark.parametrize("suffix", OWN_FILES)
def test_own_files_have_the_columns_of_the_task(write, suffix):
    path = write(f"mine{suffix}", OWN_FILES[suffix])
    examples = load(OWN, "train", "files", "", train=path)
    assert [(e.text, e.label) for e in examples] == [
        (("c", 'A "b'), 1),
        (("e", "d"), 0),
    ]


def test_own_test_file_needs_no_label(write):
    path = write("mine.csv", 'first,second\n"one\ntwo",b\nc,\n')
    with pytest.raises(ValueError, match=r"mine\.csv:4: .*'second' is empty"):
        load(OWN, "test", "files", "", test=path)
    path = write("mine.csv", 'first,second\n"one\ntwo",b\n')
    (example,) = load(OWN, "test", "files", "", test=path)
    assert (example.text, example.label) == (("one\ntwo", "b"), None)
    with pytest.raises(ValueError, match=r"mine\.csv:2: .* no label"):
        load(OWN, "dev", "files", "", dev=path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "first\tsecond\tlabel\na\tb\tc\t1\n", "a.tsv:2: the row has 4 col"),
        ("a.csv", 'first,second,label\na,"b"c,1\n', "a.csv:2: this is not CSV"),
        ("a.csv", 'first,second,label\na,"b,1\nc,d,0\n', "a.csv:2: this is not CSV"),
        ("a.txt", "first", "a.txt ends in '.txt'; .* .jsonl, .tsv, .csv"),
        ("a", "first", "ends in ''"),
        ("a.csv", "first,second,first\n1,2,3\n", "a.csv:1: two .* named 'first'"),
    ],
)
def test_own_broken_file_is_named(write, name, content, message):
    with pytest.raises(ValueError, match=message):
        load(OWN, "dev", "files", "", dev=write(name, content))


@pytest.mark.parametrize("paths", [{}, {"train": "x.tsv", "dev": ""}])
def test_own_file_that_is_not_given_is_missing(paths):
    with pytest.raises(MissingData, match="No file is given for the dev split"):
        load(OWN, "dev", "files", "", **paths)


def test_own_file_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(MissingData, match=r"The dev file .*no\.tsv does not"):
        load(OWN, "dev", "files", "", dev=f"{tmp_path}/no.tsv")
