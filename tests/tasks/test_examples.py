"""Examples from every source: the same from all, and errors that name the place."""

import csv
import dataclasses
import gzip
import io
import itertools
import json
import logging
import re
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow_datasets as tfds
from etils import epath
from made_up_tasks import (
    MadeUp,
    columns,
    load,
    made_up,
    on_disk,
    prepare_tfds,
    write_babylm,
    write_hub,
    write_jsonl,
    write_official,
)
from made_up_tokenizer import Numbers
from tiny_tasks import changed, finetune_config, read_lines, write_lines

from gpt1_jax.data.records import plain_lines, read_input
from gpt1_jax.errors import MissingData, MissingPackage, UserError
from gpt1_jax.studies.zero_shot.tasks import ZERO_SHOT
from gpt1_jax.tasks import examples as examples_module
from gpt1_jax.tasks.examples import (
    SPLITS,
    check_new_examples,
    count_training_examples,
    describe_long_examples,
    file_digests,
    load_task,
    read_records,
)
from gpt1_jax.tasks.paper_tasks import TASKS, select_tasks
from gpt1_jax.tasks.task import FileLayout, Inputs, Target, Task

OWN = Task(
    name="own",
    title="Own",
    inputs=Inputs(
        transform="pair",
        text=("first", "second"),
    ),
    target=Target(
        labels=("no", "yes"),
    ),
    metrics=("accuracy",),
)
OWN_CONFIG = finetune_config(
    "custom",
    {"init_from": "runs/pretrain/tiny"},
    custom__head="classification",
    custom__text=("a", "b"),
    custom__labels=("n", "y"),
)
STORY = changed(TASKS["story_cloze"], "published", dev_split=(3, 3535999445))
COUNT = 4  # of a subset


def splits_of(task):
    return [split for split in SPLITS if split in task.published.tfds]


def sources_of(task):
    also = {"official": task.published.files, "hub": task.published.hub}
    return ["jsonl", "tfds", *(source for source, where in also.items() if where)]


def plain(task, examples):
    """What all sources agree on, with COPA's wording undone."""
    undone = {
        new: old
        for old, new in task.inputs.wording.get("question", {}).items()
        if task.name == "copa"
    }
    return [
        MadeUp(tuple(undone.get(t, t) for t in e.text), e.choices, e.label, e.subset)
        for e in examples
    ]


# --- all tasks, all sources -----------------------------------------------------


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_examples_are_the_same_from_every_source(task, tmp_path):
    task = changed(task, "published", dev_split=None)
    made = {split: made_up(task, split, COUNT) for split in splits_of(task)}
    tmp_path = tmp_path / "a [1]*"  # a name, not a pattern
    for split, examples in made.items():
        write_jsonl(task, split, examples, tmp_path / "jsonl")
        (tmp_path / "official").mkdir(parents=True, exist_ok=True)
        if task.published.files:
            write_official(task, split, examples, tmp_path / "official")
        if task.published.hub:
            write_hub(task, split, examples, tmp_path / "hub")
    prepare_tfds(task, made, tmp_path / "tfds")
    for split, examples in made.items():
        for source in sources_of(task):
            loaded = plain(task, load(task, split, source, tmp_path / source))
            if source == "tfds":  # which shuffles
                key = str
                assert sorted(loaded, key=key) == sorted(examples, key=key)
                subsets = [example.subset for example in loaded]
                assert subsets == [example.subset for example in examples]
            else:
                assert loaded == examples


def digests_of(task, source, folder):
    """`file_digests`, with nothing of the files parsed."""
    of_hub = source == "hub"
    data = {"data__source": source, "data__dir": "" if of_hub else str(folder)}
    config = finetune_config(task.name, {"init_from": "run"}, **data).data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            examples_module, "read_rows", lambda *a, **k: pytest.fail("it was parsed")
        )
        return file_digests(on_disk(task, folder) if of_hub else task, config)


def write_source(source, task, split, made, folder):
    folder.mkdir(parents=True, exist_ok=True)
    write = {"official": write_official, "hub": write_hub}.get(source, write_jsonl)
    write(task, split, made, folder)


@pytest.mark.parametrize("name", ["mnli", "race"])
@pytest.mark.parametrize("source", ["jsonl", "official", "hub"])
def test_files_have_the_digests_of_what_they_hold_wherever_they_lie(
    name, source, tmp_path
):
    task, folder = TASKS[name], tmp_path / "data"
    for split in SPLITS:
        write_source(source, task, split, made_up(task, split, COUNT), folder)
    before = digests_of(task, source, folder)
    assert list(before) == [*SPLITS] and len({*before.values()}) == len(SPLITS)
    moved = shutil.move(folder, tmp_path / "moved")
    assert digests_of(task, source, moved) == before
    edited = made_up(task, "dev", COUNT + 1)
    write_source(source, task, "dev", edited, moved)
    after = digests_of(task, source, moved)
    assert {split for split in SPLITS if after[split] != before[split]} == {"dev"}


def test_files_of_tfds_have_digests_of_their_rows(tmp_path):
    task = TASKS["rte"]
    made = {split: made_up(task, split, COUNT) for split in SPLITS}
    prepare_tfds(task, made, tmp_path / "one")
    before = digests_of(task, "tfds", tmp_path / "one")
    moved = shutil.move(tmp_path / "one", tmp_path / "moved")
    assert digests_of(task, "tfds", moved) == before
    prepare_tfds(task, made | {"dev": made_up(task, "dev", COUNT + 1)}, tmp_path / "o")
    after = digests_of(task, "tfds", tmp_path / "o")
    assert {split for split in SPLITS if after[split] != before[split]} == {"dev"}


def test_digests_of_files_need_a_training_and_a_dev_split(tmp_path):
    task = TASKS["sst2"]
    write_jsonl(task, "train", made_up(task, "train"), tmp_path)
    with pytest.raises(MissingData, match=r"no dev data of SST-2: .*dev.jsonl does"):
        digests_of(task, "jsonl", tmp_path)
    write_jsonl(task, "dev", made_up(task, "dev"), tmp_path)
    assert list(digests_of(task, "jsonl", tmp_path)) == ["train", "dev"]


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
    write_hub(task, "dev", made_up(task, "dev"), tmp_path)
    read = ("jsonl", "official", "hub")
    first = {s: load(task, "dev", s, tmp_path)[0] for s in read}
    assert first["jsonl"].where == f"{tmp_path}/sst2/dev.jsonl:1"
    assert first["official"].where == f"{tmp_path}/SST-2/dev.tsv:2"
    assert first["hub"].where == (
        f"{tmp_path}/nyu-mll/glue/sst2/validation-00000-of-00001.parquet, row 1"
    )
    third = load(task, "dev", "tfds", tmp_path)[2]
    assert third.where == "glue/sst2:validation[2]"


@pytest.mark.parametrize("source", ["jsonl", "official", "tfds", "hub"])
def test_diagnostic_set_of_glue_may_be_missing(tmp_path, source):
    """It goes with MNLI's test split, and is not needed for it."""
    task = TASKS["mnli"]
    made = [m for m in made_up(task, "test") if m.subset != "ax"]
    write_jsonl(task, "test", made, tmp_path)
    write_official(task, "test", made, tmp_path)
    write_hub(task, "test", made, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        if source == "tfds":
            prepare_tfds(task, {"test": made}, tmp_path)
            opened = examples_module.open_dataset

            def without_ax(spec, *arguments, **more):
                if spec.startswith("glue/ax"):
                    raise MissingData(spec)
                return opened(spec, *arguments, **more)

            patch.setattr(examples_module, "open_dataset", without_ax)
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
    with pytest.raises(ValueError, match=r"may hold the same examples; keep one"):
        load(task, "dev", "jsonl", tmp_path)


@pytest.mark.parametrize("content", ["", "\n", '{"sentence1": 0}'])
def test_split_without_examples_is_refused(write, tmp_path, content):
    row = {"premise": "One.", "hypothesis": "Two.", "label": -1}
    write("snli/dev.jsonl", json.dumps(row) if content.startswith("{") else content)
    with pytest.raises(ValueError, match=r"SNLI: the dev split .* holds no examples"):
        load(TASKS["snli"], "dev", "jsonl", tmp_path)


# --- BabyLM's evaluation --------------------------------------------------------

# The columns of each text, and the template of the first: its pipeline's dataset.py.
BABYLM = {
    "boolq": (["question"], ["passage"], None),
    "mnli": (["premise"], ["hypothesis"], None),
    "mrpc": (["sentence1"], ["sentence2"], None),
    "multirc": (["question", "answer"], ["paragraph"], "Question: {} Answer: {}"),
    "qqp": (["question1"], ["question2"], None),
    "rte": (["sentence1"], ["sentence2"], None),
    "wsc": (
        ["span2_text", "span1_text"],
        ["text"],
        'Does "{}" refer to "{}" in this passage?',
    ),
}


def babylm_rows(name):
    """Rows whose texts are their columns' names, and whose labels fall."""
    first, second, _ = BABYLM[name]
    labels = range(len(TASKS[name].target.labels))[::-1]
    return [
        {column: f"{column} {{{n}}}" for column in (*first, *second)}
        | {"label": label, "idx": 7 - n}
        for n, label in enumerate((*labels, *labels))
    ]


@pytest.mark.parametrize("name", BABYLM)
def test_babylm_files_are_read_as_its_pipeline_reads_them(name, tmp_path):
    task, rows = TASKS[name], babylm_rows(name)
    for split in ("train", "dev"):
        write_babylm(task, split, rows, tmp_path)
        examples = load(task, split, "babylm", tmp_path)
        first, second, template = BABYLM[name]
        for row, example in zip(rows, examples, strict=True):
            one = [row[column] for column in first]
            text = template.format(*one) if template else " ".join(one)
            assert task.inputs.format_text(example) == (text, row[second[0]])
        assert [each.label for each in examples] == [row["label"] for row in rows]
        assert [each.id for each in examples] == [str(row["idx"]) for row in rows]
    path = tmp_path / f"{name}.valid.jsonl"
    assert examples[1].where == f"{path}:2"
    assert {each.subset for each in examples} == {"matched" if name == "mnli" else ""}


def test_labels_have_the_numbers_of_babylm():
    """In its files they are numbers: those of the GLUE and SuperGLUE data sets."""
    names = {name: TASKS[name].target.labels for name in BABYLM}
    assert names == {
        **dict.fromkeys(("boolq", "multirc", "wsc"), ("False", "True")),
        "mnli": ("entailment", "neutral", "contradiction"),
        "mrpc": ("not_equivalent", "equivalent"),
        "qqp": ("not_duplicate", "duplicate"),
        "rte": ("entailment", "not_entailment"),
    }


def test_babylm_has_no_test_split_and_names_the_file_that_is_missing(tmp_path):
    with pytest.raises(MissingData, match="BoolQ: source 'babylm' has no test split"):
        load(TASKS["boolq"], "test", "babylm", tmp_path)
    message = r"WSC: .*/wsc\.valid\.jsonl does not exist\. .*glue_filtered"
    with pytest.raises(MissingData, match=message):
        load(TASKS["wsc"], "dev", "babylm", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, r"multirc\.valid\.jsonl:1: column 'answer' holds None"),
        ({"label": 2}, r"multirc\.valid\.jsonl:1: label 2 is neither one of"),
        ({"label": None}, r"multirc\.valid\.jsonl:1: the example has no label"),
    ],
)
def test_babylm_rows_that_cannot_be_right_are_refused(tmp_path, change, message):
    (row, *rows) = babylm_rows("multirc")
    write_babylm(TASKS["multirc"], "dev", [{**row, **change}, *rows], tmp_path)
    with pytest.raises(UserError, match=message):
        load(TASKS["multirc"], "dev", "babylm", tmp_path)


def test_a_babylm_row_without_a_column_is_refused_by_its_name(tmp_path):
    rows = [{"question": "a", "paragraph": "b", "label": 0}]
    write_babylm(TASKS["multirc"], "dev", rows, tmp_path)
    with pytest.raises(UserError, match=r"valid\.jsonl:1: .*no column 'answer'"):
        load(TASKS["multirc"], "dev", "babylm", tmp_path)


def test_the_three_numbers_of_a_multirc_answer_are_its_id(tmp_path):
    task, made = TASKS["multirc"], made_up(TASKS["multirc"], "dev")
    prepare_tfds(task, {"dev": made}, tmp_path)
    ids = {example.id for example in load(task, "dev", "tfds", tmp_path)}
    assert ids == {"0-0-1", "1-0-1", "2-0-1", "3-0-1"}
    numbers = {"paragraph": 3, "question": 0, "answer": 12}
    row = {**columns(task, made[0]), "label": 1, "idx": numbers}
    write_babylm(task, "dev", [row], tmp_path)
    assert load(task, "dev", "babylm", tmp_path)[0].id == "3-0-12"


# --- data that is missing -------------------------------------------------------


@pytest.mark.parametrize("source", ["jsonl", "official"])
def test_missing_data_is_named(tmp_path, source):
    for task, split, folder in itertools.product(
        TASKS.values(), SPLITS, (tmp_path, tmp_path / "nowhere")
    ):
        known = task.published.files or source != "official"
        named = re.escape(str(folder)) if known else "source 'official' has no"
        with pytest.raises(MissingData, match=named) as raised:
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
    with pytest.raises(ValueError, match=r"ALL_val\.csv and .* may hold .* keep one"):
        load(STORY, "dev", "official", tmp_path)


def test_a_later_edition_of_story_cloze_is_read_if_there_is_no_other(tmp_path):
    """The paper's is of spring 2016."""
    made = {split: made_up(STORY, split) for split in ("dev", "test")}
    for split, name in (("dev", "val"), ("test", "test")):
        write_official(STORY, split, made[split][::-1], tmp_path)
        (path,) = tmp_path.glob("*spring2016*.csv")
        later = f"cloze_test_{name}__winter2018-cloze_test_ALL_{name} - 1 - 1.csv"
        path.rename(tmp_path / later)
    found = load(STORY, "test", "official", tmp_path)
    assert plain(STORY, found) == made["test"][::-1]
    assert len(load(STORY, "dev", "official", tmp_path)) == 3
    write_official(STORY, "test", made["test"], tmp_path)
    assert plain(STORY, load(STORY, "test", "official", tmp_path)) == made["test"]


def test_official_test_file_may_lack_the_label(tmp_path):
    """Which is withheld in later editions of Story Cloze."""
    write_official(STORY, "test", made_up(STORY, "test"), tmp_path)
    (path,) = tmp_path.glob("cloze_test_test*.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row[:-1] for row in csv.reader(file)]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    examples = load(STORY, "test", "official", tmp_path)
    assert {example.label for example in examples} == {None}
    path.rename(tmp_path / path.name.replace("test_test", "test_val"))
    with pytest.raises(ValueError, match="no column 'AnswerRightEnding'"):
        load(STORY, "dev", "official", tmp_path)


# --- files of the user's own ----------------------------------------------------


def parquet_bytes(columns):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


OWN_FILES = {
    ".tsv": 'second\tlabel\tfirst\nA "b\tyes\tc\nd\tno\te\n',
    ".csv": 'first,second,label\nc,"A ""b",yes\ne,"d",0\n',
    ".jsonl": '{"first": "c", "second": "A \\"b", "label": "yes"}\n'
    '{"first": "e", "second": "d", "label": 0}\n',
    ".json": '\n[{"first": "c", "second": "A \\"b", "label": "yes"},\n'
    '{"first": "e", "second": "d", "label": 0}]',
    ".parquet": parquet_bytes(
        {"second": ['A "b', "d"], "label": ["yes", "no"], "first": ["c", "e"]}
    ),
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
        ("a.txt", "first", "a.txt ends in '.txt'; .* .json, .csv, .tsv"),
        ("a", "first", "ends in ''"),
        ("a.csv", "first,second,first\n1,2,3\n", "a.csv:1: two .* named 'first'"),
        ("a.json", '[{"first": "a"', "a.json: this is not JSON: .* line 1"),
        ("a.json", "[1]", "a.json, object 1 of the list: this is 1, not a JSON obj"),
        ("a.json", "\n7", "a.json:2: this is 7, not a JSON object"),
        ("a.json", r'[{"first": "\ud800"}]', "object 1 of the list: .* half of a char"),
        ("a.parquet", "PAR1", "a.parquet cannot be read as Parquet"),
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


def columns_of(path, layout=None, **more):
    """The columns of all records of a file, by default in the format of its name."""
    path = epath.Path(path)
    layout = layout or FileLayout("")
    records = read_records(path, layout, **more)
    return [record.columns for record in records]


# --- JSON lines -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence": "Cut', "is not JSON"),
        ('["a", 1]', r"\['a', 1\], not a JSON object"),
        ('{"sentence": "", "label": 1}', "is empty"),
        ('{"text": "Good.", "label": 1}', "no column 'sentence'"),
        ('{"sentence": "Good.", "label": 2}', "label 2 is neither one of"),
        ('{"sentence": "Good."}', "no label"),
        (b'{"sentence": "caf\xe9"}', "byte 0xe9 is not UTF-8"),
        (r'{"sentence": "Good.\ud800", "label": 1}', r"'\\ud800' in .* is half of a"),
        (r'{"sentence": "A.", "idx": "\udfff", "label": 1}', "is half of a char"),
        (r'{"\ud800": 0, "sentence": "A.", "label": 1}', "is half of a character"),
        ('{"a": ' * 30000, "nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        (
            '{"sentence": "A.", "label": ' + "9" * 5000 + "}",
            "not JSON: Exceeds",
        ),
        (
            '{"sentence": "A.", "label": ' + "9" * 400 + "}",
            "label 9+.*9 is neither one of",
        ),
        ('{"sentence": "A.", "label": 1e999}', "label inf is neither one of"),
        ('{"sentence": "A.", "label": NaN}', "the example has no label"),
        (
            '{"label": 1, "sentence": ' + "[" * 500 + "]" * 500 + "}",
            r"holds \[.*\], not text",
        ),
        ('{"sentence": "A.", "idx": [1], "label": 1}', r"the id \[1\] is neither text"),
    ],
)
def test_jsonl_broken_line_is_named(write, tmp_path, line, message):
    good = b'\xef\xbb\xbf{"sentence": "Good.", "label": 1}\r\n\n'
    line = line if isinstance(line, bytes) else line.encode()
    path = write("sst2/train.jsonl", good + line + b"\n")
    with pytest.raises(ValueError, match=message) as raised:
        load(TASKS["sst2"], "train", "jsonl", tmp_path)
    assert str(raised.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize(
    ("source", "name", "content"),
    [
        ("jsonl", "sst2/dev.jsonl", '{"sentence": "Good.", "label": 1}'),
        ("official", "SST-2/dev.tsv", "sentence\tlabel\nGood.\t1\n"),
    ],
)
def test_files_of_tasks_may_be_compressed(write, tmp_path, source, name, content):
    write(f"{name}.gz", gzip.compress(content.encode()))
    (example,) = load(TASKS["sst2"], "dev", source, tmp_path)
    assert (example.text, example.label) == (("Good.",), 1)
    write(name, content)
    with pytest.raises(UserError, match="may hold the same examples; keep one"):
        load(TASKS["sst2"], "dev", source, tmp_path)


def test_jsonl_line_separators_inside_a_text_end_no_line(write, tmp_path):
    text = "one\u2028two\x85three\x0bfour"
    row = json.dumps({"sentence": text, "label": 1}, ensure_ascii=False)
    write("sst2/dev.jsonl", row)
    assert load(TASKS["sst2"], "dev", "jsonl", tmp_path)[0].text == (text,)


def test_jsonl_escaped_pairs_are_characters(write, tmp_path):
    write("sst2/dev.jsonl", r'{"sentence": "\ud83d\ude42\u00e9", "label": 1}')
    assert load(TASKS["sst2"], "dev", "jsonl", tmp_path)[0].text == ("🙂é",)


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
        f"Left out 2 rows with too few columns; the first is {path}:3."
    ]
    write("QQP/dev.tsv", rows)
    with pytest.raises(ValueError, match=r"dev\.tsv:3: the row has 4 columns, .* 6"):
        load(TASKS["qqp"], "dev", "official", tmp_path)


def test_official_extra_columns_are_ignored(write, tmp_path):
    write("SST-2/dev.tsv", "sentence\tlabel\nGood.\t1\tmore\n")
    assert load(TASKS["sst2"], "dev", "official", tmp_path)[0].text == ("Good.",)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("SST-2/train.tsv", "text\tlabel\nGood.\t1\n", "2: .*'sentence'; .* text, lab"),
        ("SST-2/train.tsv", "sentence\tgrade\nGood.\t1\n", "2: .* no column 'label'"),
        ("SST-2/train.tsv", "sentence\tlabel\nGood.\t2\n", "2: label '2' is neither"),
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


def passage(**changes):
    values = {
        "article": "Ann has a hat.",
        "questions": ["Ann has _ ."],
        "options": [["a hat", "a dog", "a cat", "a car"]],
        "answers": ["A"],
        "id": "high1.txt",
    }
    return {key: v for key, v in {**values, **changes}.items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"article": None}, ":1: there is no column 'article'"),
        ({"answers": []}, ":1: the passage has 1 questions, 1 .* and 0 answers"),
        ({"answers": "A"}, ":1: the passage holds 'A', not a list"),
        ({"answers": ["E"]}, ":1, question 1: label 'E' is neither one of"),
        ({"options": [["a hat"]]}, ":1, question 1: .*not a list of 4"),
    ],
)
def test_official_broken_passage_is_named(write, tmp_path, changes, message):
    write("RACE/dev/middle/1.txt", json.dumps(passage()))
    path = write("RACE/dev/high/2.txt", json.dumps(passage(**changes)))
    with pytest.raises(ValueError, match=f"^{re.escape(path)}{message}"):
        load(TASKS["race"], "dev", "official", tmp_path)


def test_questions_of_a_passage_are_rows(write):
    both = passage(
        questions=["One?", "Two?"], options=[["a"], ["b"]], answers=["A", "B"]
    )
    path = epath.Path(write("high/1.txt", json.dumps(both)))
    records = read_records(path.parent, subset="high")
    assert [tuple(record) for record in records] == [
        (
            {
                "article": "Ann has a hat.",
                "example_id": "high1.txt",
                "question": f"{name}?",
                "options": [option],
                "answer": answer,
            },
            f"{path}:1, question {number}",
            "high",
        )
        for number, name, option, answer in ((1, "One", "a", "A"), (2, "Two", "b", "B"))
    ]


# --- tables ---------------------------------------------------------------------


def test_columns_are_renamed_joined_and_listed(write):
    path = write("a.csv", "w,x,y,z\n1,2,3,4\n")
    columns = {"one": "z", "joined": ("w", "x"), "listed": ["x", "y"]}
    made = columns_of(path, FileLayout("", columns))
    assert made == [{"one": "4", "joined": "1 2", "listed": ["2", "3"]}]


def test_columns_without_a_header_have_positions(write):
    path = write("a.tsv", "1\t2\n3\t4\n")
    assert columns_of(path, FileLayout("", {"b": 1})) == [{"b": "2"}, {"b": "4"}]


def test_column_may_be_missing_if_it_is_optional(write):
    path, table = write("a.tsv", "a\n1\n"), FileLayout("", {"x": "a", "y": "b"})
    assert columns_of(path, table, optional="y") == [{"x": "1"}]
    with pytest.raises(
        ValueError, match=r"a.tsv:2: there is no column 'b'; .* are a\."
    ):
        columns_of(path, table)


def test_two_columns_of_one_name_are_refused_in_a_users_file(write):
    path = write("a.csv", "a,b,a\n1,2,3\n")
    with pytest.raises(ValueError, match=r"a.csv:1: two columns are named 'a'"):
        columns_of(path)
    assert columns_of(path, FileLayout("", {"x": "b"})) == [{"x": "2"}]


# --- TensorFlow Datasets --------------------------------------------------------


def test_tfds_rows_may_hold_text_instead_of_bytes(tmp_path):
    assert examples_module._plain(["a", b"b", [b"c"]]) == ["a", "b", ["c"]]
    with tfds.testing.mock_data(num_examples=5):
        examples = load(TASKS["sst2"], "train", "tfds", tmp_path)
    assert len(examples) == 5
    assert all(isinstance(e.text[0], str) for e in examples)


def test_tfds_unknown_dataset_is_refused(tmp_path):
    task = changed(TASKS["rte"], "published", tfds={"dev": {"": "gpt1_nothing:test"}})
    with pytest.raises(
        ValueError, match="not know the dataset 'gpt1_nothing'"
    ) as raised:
        load(task, "dev", "tfds", tmp_path)
    assert len(str(raised.value)) < 300


def test_tfds_unknown_split_is_refused(tmp_path):
    task = TASKS["rte"]
    prepare_tfds(task, {"dev": made_up(task, "dev")}, tmp_path)
    with pytest.raises(ValueError, match=r"(?s)glue/rte:test: .*'validation'"):
        load(task, "test", "tfds", tmp_path)


def test_tfds_tfrecord_is_refused(tmp_path):
    task = TASKS["snli"]
    prepare_tfds(task, {"dev": made_up(task, "dev")}, tmp_path)
    (info,) = tmp_path.rglob("dataset_info.json")
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(ValueError, match=r"(?s)again with file_format='array_record'"):
        load(task, "dev", "tfds", tmp_path)


@pytest.mark.parametrize("there", [[], ["another.csv"]])
def test_tfds_story_cloze_says_how_to_get_its_files(tmp_path, there):
    for name in there:
        (tmp_path / "downloads" / "manual").mkdir(parents=True)
        (tmp_path / "downloads" / "manual" / name).touch()
    with pytest.raises(MissingData, match=r"(?s)rocstories.*source to 'official'"):
        load(TASKS["story_cloze"], "dev", "tfds", tmp_path)


def test_tfds_dataset_that_only_tensorflow_can_prepare_is_missing(tmp_path):
    with pytest.raises(MissingData, match=r"that needs TensorFlow"):
        load(TASKS["copa"], "dev", "tfds", tmp_path)


def test_tfds_dataset_that_cannot_be_downloaded_is_missing(tmp_path, monkeypatch):
    def fail(self, **kwargs):
        raise ConnectionError("no answer")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(MissingData, match="no answer") as raised:
        load(TASKS["rte"], "train", "tfds", tmp_path)
    assert "glue/rte:train" in str(raised.value)
    assert str(tmp_path) in str(raised.value)
    assert "set the source to 'official'" in str(raised.value)


def test_without_tfds_its_extra_and_another_source_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(MissingPackage) as raised:
        load(TASKS["rte"], "train", "tfds", tmp_path)
    assert str(raised.value).startswith("glue/rte:train, of TensorFlow Datasets, ")
    assert "pip install 'gpt1_jax[tfds]', or set the source to" in str(raised.value)


def test_tfds_dataset_that_needs_another_package_says_which(tmp_path, monkeypatch):
    def prepare(self, **kwargs):
        reason = ModuleNotFoundError("No module named 'bs4'", name="bs4")
        raise ModuleNotFoundError("Failed importing bs4") from reason

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", prepare)
    with pytest.raises(MissingData, match=r"pip install bs4.*source to 'jsonl'"):
        load(ZERO_SHOT["wsc273"].task, "test", "tfds", tmp_path)


# --- all splits, encoded --------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    """`own(**data)`: a task of two texts, 40 examples for training and for dev."""
    paths = {}
    for split, b in (("train", "2"), ("dev", "3")):
        path = tmp_path / f"{split}.jsonl"
        rows = [{"a": f"{i}", "b": b, "label": "ny"[i % 2]} for i in range(40)]
        write_lines(path, rows)
        paths[split] = str(path)

    def make(**values):
        data = dataclasses.replace(OWN_CONFIG.data, **{**paths, **values})
        return dataclasses.replace(OWN_CONFIG, data=data)

    return make


def write_long(folder, texts):
    """Files with examples of these texts, whose labels differ; their paths."""
    return [
        str(
            write_lines(
                folder / f"long_{label}.jsonl",
                [{"a": text, "b": "1", "label": label} for text in texts],
            )
        )
        for label in "ny"
    ]


def load_own(config, max_seq_len=512):
    (task,), config = select_tasks(config)
    return load_task(task, config.data, Numbers(), max_seq_len)


def describe_long(splits, max_seq_len):
    (task,), _ = select_tasks(OWN_CONFIG)
    return describe_long_examples(task, splits, max_seq_len)


def test_load_reads_the_splits_that_are_named(own):
    path = own().data.train
    splits = load_own(own())
    assert {name: len(split) for name, split in splits.items()} == {
        "train": 40,
        "dev": 40,
    }
    assert len(load_own(own(test=path))["test"].examples) == 40


@pytest.fixture
def broken(own, tmp_path):
    """`broken(train, dev)`: the task of files that also hold rows of (text, label)."""

    def make(train_rows=(), dev_rows=(), **values):
        paths = {}
        for first, (split, rows) in enumerate(
            (("train", train_rows), ("dev", dev_rows))
        ):
            good = [(f"{first}{number}", "ny"[number % 2]) for number in range(6)]
            made = [{"a": a, "b": a, "label": label} for a, label in [*rows, *good]]
            path = write_lines(tmp_path / f"{split}_rows.jsonl", made)
            paths[split] = str(path)
        return own(**{**paths, **values})

    return make


def test_rows_that_cannot_be_used_are_named_at_once(broken, tmp_path):
    train = [("", "n"), ("7", None), ("", "y"), (" ", "y"), (None, "n")]
    config = broken(train, [("7", "maybe"), ("7", "N"), ("7", "")])
    with pytest.raises(UserError) as raised:
        load_own(config)
    message = str(raised.value).replace(f"{tmp_path}/", "")
    assert message == (
        "Custom: 8 rows cannot be used. 4 without text at train_rows.jsonl:1, "
        "train_rows.jsonl:3, train_rows.jsonl:4, ..: the texts in columns a, b are all "
        "empty. In training, --config.data.skip_empty=True passes over such rows. 2 "
        "without a label at train_rows.jsonl:2, dev_rows.jsonl:3: the example has no "
        "label in column 'label'; training and scores need one. "
        "--config.data.skip_unlabelled=True passes over such rows. 2 with an unknown "
        "label at dev_rows.jsonl:1 ('maybe'), dev_rows.jsonl:2 ('N'): label 'maybe' is "
        "not one of ['n', 'y']; name all with --config.custom.labels=A,B."
    )


def test_one_row_that_cannot_be_used_is_named_alone(broken):
    with pytest.raises(UserError, match=r"^[^ ]*dev_rows.jsonl:1: label 'x' is not on"):
        load_own(broken([], [("7", "x")]))
    with pytest.raises(UserError, match=r"l:1: .* need one\. --config\.data\.skip_unl"):
        load_own(broken([("7", "")]))


def test_rows_without_a_label_are_passed_over(broken, caplog):
    config = broken([("7", ""), ("7", None)], [("7", " ")], skip_unlabelled=True)
    splits = load_own(config)
    assert [len(splits[name]) for name in ("train", "dev")] == [6, 6]
    assert "Left out 2 rows without a label; the first is" in caplog.text
    assert "Left out one row without a label; the first is" in caplog.text
    with pytest.raises(UserError, match=r"1: the texts in columns a, b are all empty"):
        load_own(broken([("", "")], skip_unlabelled=True))


def test_a_dev_split_is_held_out_of_the_training_file(own, broken):
    config = own(dev="", dev_fraction=0.25)
    splits = load_own(config)
    assert [len(splits[name]) for name in ("train", "dev")] == [30, 10]
    few = load_own(own(dev="", dev_fraction=0.25, max_train_examples=8))
    assert len(few["train"]) == 8 and few["dev"].digest == splits["dev"].digest
    (task,), config = select_tasks(config)
    assert set(file_digests(task, config.data)) == {"train"}
    assert count_training_examples(task, config.data) == 30
    config = broken([("7", ""), ("", "n")], dev="", dev_fraction=0.5)
    with pytest.raises(UserError, match="2 rows cannot be used"):
        load_own(config)


def test_a_file_without_dev_rows_says_how_to_hold_some_out(own):
    with pytest.raises(MissingData, match=r"or hold rows out with --config\.data\.dev"):
        load_own(own(dev=""))


@pytest.mark.parametrize("how", ["same file", "reversed table"])
def test_a_dev_split_that_is_the_training_split_is_refused(own, tmp_path, how):
    """However few of them are taken."""
    path = own().data.train
    if how != "same file":
        cells = ["\t".join(row.values()) + "\n" for row in read_lines(path)[::-1]]
        path = str(tmp_path / "dev.tsv")
        (tmp_path / "dev.tsv").write_text("".join(["a\tb\tlabel\n", *cells]))
    with pytest.raises(ValueError, match=r"dev split .* training split.*data\.dev"):
        load_own(own(dev=path, max_dev_examples=3))


def test_load_refuses_files_that_are_missing(own, tmp_path):
    """A test file too, if it is named."""
    nowhere = str(tmp_path / "nowhere.jsonl")
    for values in (dict(dev=""), dict(dev=nowhere), dict(test=nowhere)):
        with pytest.raises(
            MissingData, match=r"nowhere\.jsonl does not exist|data\.dev"
        ):
            load_own(own(**values))


def test_load_takes_the_same_part_each_time(own):
    path = own().data.train
    few = own(max_train_examples=7, max_dev_examples=5)
    texts = [[e.text[0] for e in load_own(few)["train"].examples] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 7
    assert texts[0] == sorted(texts[0], key=int), "in the order of the file"
    assert texts[0] != [str(i) for i in range(7)], "but not its head"
    assert len(load_own(few)["dev"].examples) == 5
    test = load_own(own(test=path, max_test_examples=3))["test"]
    assert len(test.examples) == len(test) == len(test.lengths) == 3
    whole = own(max_train_examples=40, max_dev_examples=41)
    splits = load_own(whole)
    assert len(splits["train"].examples) == len(splits["dev"].examples) == 40


def test_examples_that_were_cut_are_described(own, tmp_path):
    texts = ("1 2 3 4 5 6", "1 2", "1 2 3 4 5 6 7")
    path, other = write_long(tmp_path, texts)
    assert describe_long(load_own(own()), 512) == ""
    cut = describe_long(load_own(own(dev=path), 12), 12)
    assert cut == "2 of 3 dev examples were cut to fit 12 tokens, 4 for each text."
    splits = load_own(own(train=path, test=path), 12)
    cut = describe_long(splits, 12)
    assert cut == (
        "2 of 3 training and 2 of 3 test examples were cut to fit 12 tokens, 4 for "
        "each text."
    )
    splits = load_own(own(train=path, dev=other, test=path), 12)
    assert describe_long(splits, 12) == (
        "2 of 3 training, 2 of 3 dev and 2 of 3 test examples were cut to fit 12 "
        "tokens, 4 for each text."
    )


def test_long_examples_are_left_out_on_request(own, tmp_path):
    """Before a part is taken, and never from a test split."""
    texts = ["1 2 3 4 5 6", "1 2", "1 2 3 4 5 6 7", "3", "4 5"]
    path, other = write_long(tmp_path, texts)
    paths = dict(train=path, dev=other, test=path)
    splits = load_own(own(**paths, drop_long=True, max_train_examples=2), 12)
    assert len(splits["train"].examples) == len(splits["train"]) == 2
    assert [example.text[0] for example in splits["dev"].examples] == [
        "1 2",
        "3",
        "4 5",
    ]
    assert not splits["train"].cut.any() and not splits["dev"].cut.any()
    assert len(splits["test"].examples) == 5 and splits["test"].cut.sum() == 2
    assert describe_long(splits, 12) == (
        "2 training and 2 dev examples were left out: they do not fit 12 tokens, 4 for "
        "each text. "
        "2 of 5 test examples were cut to fit 12 tokens, 4 for each text."
    )
    with pytest.MonkeyPatch.context() as patch:
        encoded = []
        encode = Numbers.encode
        patch.setattr(
            Numbers,
            "encode",
            lambda self, text: encoded.append(text) or encode(self, text),
        )
        # Texts are remembered, but not more than some thousand of them.
        patch.setattr("functools.lru_cache", lambda maxsize: lambda function: function)
        load_own(own(**paths, drop_long=True), 12)
    assert len(encoded) == 3 * 2 * len(texts), "each text of each file once"
    whole = load_own(own(**paths, drop_long=True))
    assert len(whole["dev"].examples) == 5 and describe_long(whole, 512) == ""
    write_long(tmp_path, texts[:1])
    with pytest.raises(ValueError, match=r"All 1 training examples .* longer than 12"):
        load_own(own(**paths, drop_long=True), 12)


# --- new examples, which only have to be labelled -------------------------------

SST2, RTE, COPA, RACE, SNLI = (
    TASKS[name] for name in ("sst2", "rte", "copa", "race", "snli")
)


def new_examples(task, source):
    return check_new_examples(task, read_input(source, "example"))


@pytest.fixture(params=["file", "standard input"])
def read_new(request, tmp_path, monkeypatch):
    """`read_new(task, content, name)`: the examples of a file, or of standard input."""

    def run(task, content, name="a.txt"):
        data = content if isinstance(content, bytes) else content.encode()
        if request.param == "file":
            (tmp_path / name).write_bytes(data)
            return new_examples(task, str(tmp_path / name))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        return new_examples(task, "-")

    return run


@pytest.fixture
def of_file(tmp_path):
    """`of_file(task, name, content)`: the examples of a file."""

    def run(task, name, content):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return new_examples(task, str(tmp_path / name))

    return run


def texts(examples):
    return [example.text for example in examples]


# --- new examples on plain lines ----------------------------------------------


def test_lines_that_are_not_blank_are_examples(read_new):
    examples = read_new(SST2, "\ufeffone\u2028text\r\n\n \nanother {one}")
    assert texts(examples) == [("one\u2028text",), ("another {one}",)]
    assert [e.where.rpartition(":")[2] for e in examples] == ["1", "4"]
    assert {(e.id, e.label, e.choices) for e in examples} == {("", None, ())}


def test_texts_of_a_line_are_separated_by_tabs(read_new):
    assert texts(read_new(RTE, "a b\tc\n")) == [("a b", "c")]
    (example,) = read_new(COPA, "It rained.\teffect\twet\tdry\n")
    assert example.text == ("It rained.", "What happened as a result?")
    assert example.choices == ("wet", "dry")
    (example,) = read_new(RACE, "A story.\tWho?\ta\tb\tc\td\n")
    assert (example.text, example.choices) == (("A story.", "Who?"), (*"abcd",))


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        (SST2, "a\tb", "SST-2 needs 1 texts .*, sentence, but the line holds 2"),
        (RTE, "a", "RTE needs 2 .* sentence1, sentence2, but the line holds 1"),
        (COPA, "a\tcause\tb", "COPA needs 4 .* choice1, choice2, but the line holds 3"),
        (RTE, "a\t ", "the text in column 'sentence2' is empty"),
        (SST2, b"caf\xe9 noir", "byte 0xe9 is not UTF-8 .* iconv"),
    ],
)
def test_line_that_does_not_fit_is_named(read_new, task, line, message):
    good = "\t".join(["good"] * (len(task.inputs.text) + len(task.inputs.choices)))
    line = line if isinstance(line, bytes) else line.encode()
    with pytest.raises(ValueError, match=f"(a.txt|standard input):3: .*{message}"):
        read_new(task, good.encode() + b"\n\n" + line)


def test_lines_in_memory_are_examples_too():
    assert texts(
        check_new_examples(SST2, plain_lines(["a b", " ", "c\n"], "text"))
    ) == [
        ("a b",),
        ("c",),
    ]
    with pytest.raises(ValueError, match=r"text:2: '\\udce9' .* half of a character"):
        check_new_examples(SST2, plain_lines(["fine", "caf\udce9"], "text"))
    assert check_new_examples(SST2, plain_lines([""], "text")) == []


# --- new examples in columns --------------------------------------------------

NEW_ROWS = [
    {"id": "r7", "sentence1": "one", "sentence2": "two", "label": "unheard of"},
    {"id": "r9", "sentence1": "three", "sentence2": "four", "label": ""},
]


def as_table(rows, delimiter):
    lines = [rows[0], *(row.values() for row in rows)]
    return "".join(delimiter.join(line) + "\n" for line in lines)


def as_json(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", as_table(NEW_ROWS, ",")),
        ("a.CSV", as_table(NEW_ROWS, ",")),
        ("a.tsv", as_table(NEW_ROWS, "\t")),
        ("a.jsonl", as_json(NEW_ROWS)),
        ("a.json", as_json(NEW_ROWS)),
    ],
)
def test_columns_have_names_and_labels_are_ignored(of_file, name, content):
    examples = of_file(RTE, name, content)
    assert texts(examples) == [("one", "two"), ("three", "four")]
    assert [example.id for example in examples] == ["r7", "r9"]
    assert {example.label for example in examples} == {None}


@pytest.mark.parametrize("before", ["", "\ufeff", "\n \n"])
def test_standard_input_may_be_json_lines(monkeypatch, before):
    data = (before + as_json(NEW_ROWS)).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    examples = new_examples(RTE, "-")
    assert texts(examples) == [("one", "two"), ("three", "four")]
    where = before.count("\n") + 1
    assert examples[0].where == f"standard input:{where}"


def test_columns_of_choices_may_be_a_list(of_file):
    row = {"article": "A.", "question": "", "options": [*"abcd"], "example_id": "high1"}
    (example,) = of_file(RACE, "a.jsonl", json.dumps(row))
    assert (example.choices, example.subset) == ((*"abcd",), "high")


def test_examples_are_kept_where_training_drops_them(of_file):
    row = {"premise": "A.", "hypothesis": "B.", "label": -1}
    assert len(of_file(SNLI, "a.jsonl", as_json([row]))) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text\nwell\n", r"a\.csv:2: .*'sentence'; the columns are text"),
        ("a.tsv", "sentence\na\tb\n", r"a\.tsv:2: the row has 2 columns"),
        ("a.tsv", b"sentence\ncaf\xe9\n", r"a\.tsv:2: byte 0xe9 is not UTF-8"),
        ("a.jsonl", '{"sentence": "a"}\n{"text": "b"}', r"a\.jsonl:2: .*'sentence'"),
        ("a.jsonl", '{"sentence": ""}', r"a\.jsonl:1: the text in .* is empty"),
        (
            "a.jsonl",
            '{"sentence": [3]}',
            r"a\.jsonl:1: .*'sentence' holds \[3\], not",
        ),
        ("a.jsonl", r'{"sentence": "\udc00"}', r"a\.jsonl:1: .* half of a character"),
        ("a.jsonl", "sentence", r"a\.jsonl:1: this is not JSON"),
        ("a.json", "[1]", r"a\.json, object 1 of the list: this is 1, not a JSON obj"),
        ("a.csv", "sentence\n", r"a\.csv holds no example"),
        ("a.txt", "\n \n", r"a\.txt holds no example"),
    ],
)
def test_file_that_cannot_be_read_is_named(of_file, name, content, message):
    with pytest.raises(ValueError, match=message):
        of_file(SST2, name, content)


@pytest.mark.parametrize("name", ["no.txt", ""])
def test_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=r"cannot be read .* standard input"):
        new_examples(SST2, str(tmp_path / name))


def test_bytes_that_are_no_text_are_named(write, tmp_path):
    content = parquet_bytes({"sentence": [b"ok", b"caf\xe9"], "label": [0, 1]})
    path = write("dev.parquet", content)
    task = changed(TASKS["sst2"], "published", hub={"dev": {"": str(path)}})
    with pytest.raises(UserError, match=r"dev\.parquet, row 2: text that is not UTF-8"):
        load(task, "dev", "hub", tmp_path)
