"""The same examples from every source, and what is said of those that are broken."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds
from made_up_tasks import (
    MadeUp,
    load,
    made_up,
    prepare_tfds,
    write_jsonl,
    write_official,
)
from made_up_tokenizer import Numbers
from tiny_tasks import finetune_config, read_lines, write_lines

from gpt1_jax.data import tfds as opener
from gpt1_jax.data.tfds import NotPrepared
from gpt1_jax.tasks import examples as examples_module
from gpt1_jax.tasks.custom_task import select_tasks
from gpt1_jax.tasks.examples import (
    MissingData,
    describe_long_examples,
    load_task,
)
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Task
from gpt1_jax.tasks.zero_shot import ZERO_SHOT

OWN = Task(
    name="own",
    title="Own",
    transform="pair",
    text=("first", "second"),
    labels=("no", "yes"),
    metrics=("accuracy",),
)
OWN_CONFIG = finetune_config(
    "custom",
    {"init_from": "runs/pretrain/tiny"},
    custom__head="classification",
    custom__text=("a", "b"),
    custom__labels=("n", "y"),
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
            opened = examples_module.open_dataset

            def without_ax(spec, *arguments, **more):
                if spec.startswith("glue/ax"):
                    raise NotPrepared(spec)
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


# --- TensorFlow Datasets --------------------------------------------------------


def test_tfds_rows_of_text_that_is_not_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(opener, "_unreachable", lambda urls: "")
    assert examples_module._plain(["a", b"b", [b"c"]]) == ["a", "b", ["c"]]
    with tfds.testing.mock_data(num_examples=5):
        examples = load(TASKS["sst2"], "train", "tfds", tmp_path)
    assert len(examples) == 5
    assert all(isinstance(e.text[0], str) for e in examples)


def test_tfds_unknown_dataset_is_refused(tmp_path):
    task = dataclasses.replace(TASKS["rte"], tfds={"dev": {"": "gpt1_nothing:test"}})
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


def test_tfds_dataset_whose_hosts_do_not_answer_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(opener, "_unreachable", lambda urls: f"{len(urls) > 0} no.")
    with pytest.raises(MissingData, match="True no") as raised:
        load(TASKS["rte"], "train", "tfds", tmp_path)
    assert "glue/rte:train" in str(raised.value)
    assert str(tmp_path) in str(raised.value)
    assert "set the source to 'official'" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_tfds_dataset_that_needs_another_package_says_which(tmp_path, monkeypatch):
    def prepare(self, **kwargs):
        reason = ModuleNotFoundError("No module named 'bs4'", name="bs4")
        raise ModuleNotFoundError("Failed importing bs4") from reason

    monkeypatch.setattr(opener, "_unreachable", lambda urls: "")
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
