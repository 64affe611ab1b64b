"""The same examples from every source, and what is said of those that are broken."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from made_up_tasks import (
    MadeUp,
    load,
    made_up,
    prepare_tfds,
    write_jsonl,
    write_official,
)

from gpt1_jax.data.tfds import NotPrepared
from gpt1_jax.tasks import datasets
from gpt1_jax.tasks.rows import MissingData
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
    [
        ("valid", "tfds", "'valid' is not one of train"),
        ("dev", "hub", "'hub' is not one of"),
    ],
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
            opened = datasets.open_dataset

            def without_ax(spec, *arguments, **more):
                if spec.startswith("glue/ax"):
                    raise NotPrepared(spec)
                return opened(spec, *arguments, **more)

            patch.setattr(datasets, "open_dataset", without_ax)
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


@pytest.mark.parametrize("content", ["", "\n", '{"sentence1": 0}'])
def test_split_without_examples_is_refused(write, tmp_path, content):
    row = {"premise": "One.", "hypothesis": "Two.", "label": -1}
    write("snli/dev.jsonl", json.dumps(row) if content.startswith("{") else content)
    with pytest.raises(ValueError, match=r"SNLI: the dev split .* holds no examples"):
        load(TASKS["snli"], "dev", "jsonl", tmp_path)


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


def test_official_file_that_is_there_twice_is_refused(tmp_path):
    write_official(STORY, "dev", made_up(STORY, "dev"), tmp_path)
    (tmp_path / "cloze_test_val__spring2016.csv").touch()
    (tmp_path / "cloze_test_val__winter2018.csv").touch()
    with pytest.raises(ValueError, match=r"matches 2 files: .*ALL_val\.csv.* keep one"):
        load(STORY, "dev", "official", tmp_path)


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
