"""Examples from every source: the same from all, and errors that name the place."""

import dataclasses
import gzip
import json
import re
import shutil
import sys

import numpy as np
import pyarrow.parquet
import pytest
from made_up_tasks import (
    MadeUp,
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
from gpt1_jax.tasks import examples as examples_module
from gpt1_jax.tasks.examples import (
    SPLITS,
    check_new_examples,
    count_training_examples,
    describe_long_examples,
    file_digests,
    load_task,
)
from gpt1_jax.tasks.paper_tasks import TASKS, select_tasks
from gpt1_jax.tasks.task import Inputs, Target, Task

OWN = Task(
    name="own",
    title="Own",
    inputs=Inputs(transform="pair", text=("first", "second")),
    target=Target(labels=("no", "yes")),
)
OWN_CONFIG = finetune_config(
    "custom",
    {"init_from": "runs/pretrain/tiny"},
    custom__head="classification",
    custom__text=("a", "b"),
    custom__labels=("n", "y"),
)
STORY = changed(TASKS["story_cloze"], "published", dev_split=(3, 3535999445))


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


WRITERS = {"jsonl": write_jsonl, "official": write_official, "hub": write_hub}


def write_source(source, task, made, folder):
    """Examples by split, as a source has them."""
    if source == "tfds":
        prepare_tfds(task, made, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in made.items():
        WRITERS[source](task, split, examples, folder)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_examples_are_the_same_from_every_source(task, tmp_path):
    task = changed(task, "published", dev_split=None)
    made = {split: made_up(task, split) for split in splits_of(task)}
    for source in sources_of(task):
        folder = tmp_path / "a [1]*" / source  # a name, not a pattern
        write_source(source, task, made, folder)
        for split, examples in made.items():
            loaded = plain(task, load(task, split, source, folder))
            if source == "tfds":  # which shuffles
                assert sorted(loaded, key=str) == sorted(examples, key=str)
                subsets = [example.subset for example in loaded]
                assert subsets == [example.subset for example in examples]
            else:
                assert loaded == examples


def digests_of(task, source, folder):
    of_hub = source == "hub"
    data = {"data__source": source, "data__dir": "" if of_hub else str(folder)}
    config = finetune_config(task.name, {"init_from": "run"}, **data).data
    return file_digests(on_disk(task, folder) if of_hub else task, config)


@pytest.mark.parametrize(
    ("name", "source"),
    [("mnli", "jsonl"), ("mnli", "hub"), ("race", "official"), ("rte", "tfds")],
)
def test_digests_are_of_what_files_hold_wherever_they_lie(name, source, tmp_path):
    task, folder = TASKS[name], tmp_path / "data"
    made = {split: made_up(task, split) for split in SPLITS}
    write_source(source, task, made, folder)
    before = digests_of(task, source, folder)
    assert list(before) == [*SPLITS] and len({*before.values()}) == len(SPLITS)
    moved = shutil.move(folder, tmp_path / "moved")
    assert digests_of(task, source, moved) == before
    edited = made | {"dev": made_up(task, "dev", 5)}
    write_source(source, task, edited, tmp_path / "edited")
    after = digests_of(task, source, tmp_path / "edited")
    assert {split for split in SPLITS if after[split] != before[split]} == {"dev"}


def test_examples_for_submission_keep_their_numbers(tmp_path):
    for name in ("mnli", "qqp", "cola", "mrpc"):
        task = TASKS[name]
        write_official(task, "test", made_up(task, "test"), tmp_path)
        examples = load(task, "test", "official", tmp_path)
        assert [e.id for e in examples[:4]] == [*"0123"]


@pytest.mark.parametrize("source", ["jsonl", "official", "tfds", "hub"])
def test_diagnostic_set_of_glue_may_be_missing(tmp_path, monkeypatch, source):
    """It goes with MNLI's test split, and is not needed for it."""
    task = TASKS["mnli"]
    made = [m for m in made_up(task, "test") if m.subset != "ax"]
    write_source(source, task, {"test": made}, tmp_path)
    opened = examples_module.open_dataset

    def without_ax(spec, *arguments, **more):
        if spec.startswith("glue/ax"):
            raise MissingData(spec)
        return opened(spec, *arguments, **more)

    monkeypatch.setattr(examples_module, "open_dataset", without_ax)
    examples = load(task, "test", source, tmp_path)
    assert len(examples) == len(made)
    assert {e.subset for e in examples} == {"matched", "mismatched"}


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


def test_jsonl_subsets_but_the_first_may_be_missing(tmp_path):
    task = TASKS["mnli"]
    made = made_up(task, "dev")
    write_jsonl(task, "dev", made, tmp_path)
    folder = tmp_path / "mnli"
    assert plain(task, load(task, "dev", "jsonl", tmp_path)) == made
    (folder / "dev_mismatched.jsonl").rename(folder / "kept")
    for name in ("dev", "dev_matched"):
        (folder / "dev.jsonl").rename(folder / f"{name}.jsonl")
        assert plain(task, load(task, "dev", "jsonl", tmp_path)) == made[:4]


@pytest.mark.parametrize(
    "content", ["\n", '{"premise": "A.", "hypothesis": "B.", "label": -1}']
)
def test_split_without_examples_is_refused(write, tmp_path, content):
    write("snli/dev.jsonl", content)
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


@pytest.mark.parametrize(
    ("task", "source", "message"),
    [
        (TASKS["rte"], "jsonl", "of RTE: {}/rte/dev.jsonl does not exist"),
        (TASKS["race"], "official", "of RACE: {}/RACE/dev/middle does not exist"),
        (TASKS["wsc"], "babylm", "WSC: {}/wsc.valid.jsonl does not exist"),
        (OWN, "official", "Own: source 'official' has no dev split"),
        (OWN, "tfds", "Own: source 'tfds' has no dev split"),
    ],
    ids=["jsonl", "official", "babylm", "no files", "no dataset"],
)
def test_missing_data_is_named(tmp_path, task, source, message):
    folder = tmp_path / "nowhere"
    with pytest.raises(MissingData, match=message.format(re.escape(str(folder)))):
        load(task, "dev", source, folder)


# --- the files as distributed ---------------------------------------------------


def test_a_later_edition_of_story_cloze_is_read_if_there_is_no_other(tmp_path):
    """The paper's is of spring 2016."""
    made = {split: made_up(STORY, split) for split in ("dev", "test")}
    for split, name in (("dev", "val"), ("test", "test")):
        write_official(STORY, split, made[split][::-1], tmp_path)
        (path,) = tmp_path.glob("*spring2016*.csv")
        later = f"cloze_test_{name}__winter2018-cloze_test_ALL_{name} - 1 - 1.csv"
        path.rename(tmp_path / later)
    assert len(load(STORY, "dev", "official", tmp_path)) == 3
    write_official(STORY, "test", made["test"], tmp_path)
    assert plain(STORY, load(STORY, "test", "official", tmp_path)) == made["test"]


def passage(**changes):
    """RACE's, with two questions."""
    options = [["a hat", "a dog", "a cat", "a car"]] * 2
    values = {"article": "A.", "questions": ["One?", "Two?"], "options": options}
    values |= {"answers": ["A", "B"], "id": "high1.txt", **changes}
    return json.dumps({key: v for key, v in values.items() if v is not None})


PASSAGE = "RACE/train/middle/2.txt"


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("sst2", "SST-2/train.tsv", "text\tlabel\nA.\t1", ":2: .*'sentence'; .* text"),
        ("cola", "CoLA/train.tsv", "gj04\t1\n", ":1: there is no column 3; .* 0, 1"),
        ("race", PASSAGE, passage(article=None), ":1: there is no column 'article'"),
        ("race", PASSAGE, passage(answers=["A"]), ":1: .* 2 questions, 2 .* 1 answers"),
        ("race", PASSAGE, passage(answers=["A", "E"]), ":1, question 2: label 'E' is"),
    ],
)
def test_broken_file_is_named(write, tmp_path, name, file, content, message):
    """How files are read, and what a row must hold, is tested elsewhere."""
    path = write(file, content)
    with pytest.raises(UserError, match=f"^{re.escape(path)}{message}"):
        load(TASKS[name], "train", "official", tmp_path)


@pytest.mark.parametrize(
    ("split", "content", "message"),
    [
        ("dev", "first,second\na,b\n", r"a\.csv:2: .* no label"),
        ("test", 'first,second\n"1\n2",b\nc,\n', r"a\.csv:4: .*'second' is em"),
    ],
)
def test_own_broken_file_is_named(write, split, content, message):
    with pytest.raises(UserError, match=message):
        load(OWN, split, "files", "", **{split: write("a.csv", content)})


def test_own_test_file_needs_no_label(write):
    path = write("mine.csv", 'second,first\nb,"one\ntwo"\n')
    (example,) = load(OWN, "test", "files", "", test=path)
    assert (example.text, example.label) == (("one\ntwo", "b"), None)


def test_files_of_tasks_may_be_compressed(write, tmp_path):
    content = "sentence\tlabel\nGood.\t1\n"
    write("SST-2/dev.tsv.gz", gzip.compress(content.encode()))
    (example,) = load(TASKS["sst2"], "dev", "official", tmp_path)
    assert (example.text, example.label) == (("Good.",), 1)
    write("SST-2/dev.tsv", content)
    with pytest.raises(UserError, match="may hold the same examples; keep one"):
        load(TASKS["sst2"], "dev", "official", tmp_path)


def test_official_short_rows_of_qqp_are_left_out_for_training(write, tmp_path, caplog):
    rows = (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "1\t2\t3\tWhy?\tHow?\t0\tand more\n"
        "4\t5\t6\tWhy this\nline?\tHow?\t1\n"
        "7\t8\t9\t\tWho?\t1\n"
    )
    path = write("QQP/train.tsv", rows)
    examples = load(TASKS["qqp"], "train", "official", tmp_path)
    assert [each.text for each in examples] == [("Why?", "How?"), ("", "Who?")]
    assert caplog.messages == [
        f"Left out 2 rows with too few columns; the first is {path}:3."
    ]
    write("QQP/dev.tsv", rows)
    with pytest.raises(ValueError, match=r"dev\.tsv:3: the row has 4 columns, .* 6"):
        load(TASKS["qqp"], "dev", "official", tmp_path)


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "dev.parquet"
    table = pyarrow.table({"sentence": [b"ok", b"caf\xe9"], "label": [0, 1]})
    pyarrow.parquet.write_table(table, path)
    task = changed(TASKS["sst2"], "published", hub={"dev": {"": str(path)}})
    with pytest.raises(UserError, match=r"dev\.parquet, row 2: text that is not UTF-8"):
        load(task, "dev", "hub", tmp_path)


# --- TensorFlow Datasets: what it lacks, and another way to the data --------------


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (STORY, "(?s)rocstories.*source to 'official'"),
        (TASKS["copa"], "that needs TensorFlow"),
    ],
    ids=["story_cloze", "copa"],
)
def test_tfds_dataset_that_cannot_be_prepared_says_why(tmp_path, task, message):
    with pytest.raises(MissingData, match=message):
        load(task, "test", "tfds", tmp_path)


def test_without_tfds_its_extra_and_another_source_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    message = (
        "^glue/rte:train, of TensorFlow Datasets, .*"
        r"pip install 'gpt1_jax\[tfds\]', or set the source to"
    )
    with pytest.raises(MissingPackage, match=message):
        load(TASKS["rte"], "train", "tfds", tmp_path)


# --- all splits, encoded --------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    """`own(**data)`: a task of two texts, 40 examples for training and for dev."""
    paths = {}
    for split, b in (("train", "2"), ("dev", "3")):
        rows = [{"a": f"{i}", "b": b, "label": "ny"[i % 2]} for i in range(40)]
        paths[split] = str(write_lines(tmp_path / f"{split}.jsonl", rows))

    def make(**values):
        data = dataclasses.replace(OWN_CONFIG.data, **{**paths, **values})
        return dataclasses.replace(OWN_CONFIG, data=data)

    return make


@pytest.fixture
def broken(own, tmp_path):
    """`broken(train, dev)`: the task of files that also hold rows of (text, label)."""

    def make(train_rows=(), dev_rows=(), **values):
        paths = {}
        for split, rows, digit in (("train", train_rows, 1), ("dev", dev_rows, 2)):
            good = [(f"{digit}{number}", "ny"[number % 2]) for number in range(6)]
            made = [{"a": a, "b": a, "label": label} for a, label in [*rows, *good]]
            paths[split] = str(write_lines(tmp_path / f"{split}_rows.jsonl", made))
        return own(**{**paths, **values})

    return make


def load_own(config, max_seq_len=512):
    (task,), config = select_tasks(config)
    return load_task(task, config.data, Numbers(), max_seq_len)


def lengths(splits):
    return {name: len(split) for name, split in splits.items()}


def describe_long(splits, max_seq_len):
    (task,), _ = select_tasks(OWN_CONFIG)
    return describe_long_examples(task, splits, max_seq_len)


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


def test_rows_without_a_label_or_text_are_passed_over(broken, caplog):
    train, dev = [("7", ""), ("7", None), ("", "n")], [("7", " ")]
    with pytest.raises(UserError, match=r"3: the texts in columns a, b are all empty"):
        load_own(broken(train, skip_unlabelled=True))
    config = broken(train, dev, skip_unlabelled=True, skip_empty=True)
    assert lengths(load_own(config)) == {"train": 6, "dev": 6}
    assert "Left out 2 rows without a label; the first is" in caplog.text
    assert "Left out one row without a label; the first is" in caplog.text


def test_a_dev_split_is_held_out_of_the_training_file(own, broken):
    config = own(dev="", dev_fraction=0.25)
    splits = load_own(config)
    assert lengths(splits) == {"train": 30, "dev": 10}
    few = load_own(own(dev="", dev_fraction=0.25, max_train_examples=8))
    assert len(few["train"]) == 8 and few["dev"].digest == splits["dev"].digest
    (task,), config = select_tasks(config)
    assert set(file_digests(task, config.data)) == {"train"}
    assert count_training_examples(task, config.data) == 30
    config = broken([("7", ""), ("", "n")], dev="", dev_fraction=0.5)
    with pytest.raises(UserError, match="2 rows cannot be used"):
        load_own(config)


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


@pytest.mark.parametrize(
    ("split", "named", "message"),
    [
        ("dev", "", r"data\.dev=FILE, or hold rows out with --config\.data\.dev_frac"),
        ("test", "no.jsonl", r"The test file .*no\.jsonl does not exist"),
    ],
)
def test_load_refuses_files_that_are_missing(own, tmp_path, split, named, message):
    """A test file too, if it is named."""
    path = named and str(tmp_path / named)
    with pytest.raises(MissingData, match=message):
        load_own(own(**{split: path}))


def test_load_takes_a_part_of_each_split(own):
    path = own().data.train
    few = own(max_train_examples=7, max_dev_examples=5, test=path, max_test_examples=3)
    splits = load_own(few)
    assert lengths(splits) == {"train": 7, "dev": 5, "test": 3}
    assert len(splits["test"].examples) == len(splits["test"].lengths) == 3
    assert splits["train"].digest == load_own(few)["train"].digest
    whole = own(max_train_examples=40, max_dev_examples=41, test=path)
    assert lengths(load_own(whole)) == {"train": 40, "dev": 40, "test": 40}


def test_long_examples_are_left_out_on_request(own, tmp_path):
    """Before a part is taken, and never from a test split."""

    def write(*texts):
        for label, split in (("n", "train"), ("y", "dev")):
            rows = [{"a": text, "b": "1", "label": label} for text in texts]
            write_lines(tmp_path / f"{split}.jsonl", rows)

    long = ["1 2 3 4 5 6", "1 2", "1 2 3 4 5 6 7", "3", "4 5"]
    config = own(test=str(tmp_path / "train.jsonl"), drop_long=True)
    write(*long)
    parts = dataclasses.replace(config.data, max_train_examples=2)
    splits = load_own(dataclasses.replace(config, data=parts), 12)
    assert lengths(splits) == {"train": 2, "dev": 3, "test": 5}
    assert [e.text[0] for e in splits["dev"].examples] == ["1 2", "3", "4 5"]
    assert [split.cut.sum() for split in splits.values()] == [0, 0, 2]
    assert describe_long(splits, 12) == (
        "2 training and 2 dev examples were left out: they do not fit 12 tokens, 4 for "
        "each text. "
        "2 of 5 test examples were cut to fit 12 tokens, 4 for each text."
    )
    whole = load_own(config)
    assert lengths(whole)["dev"] == 5 and describe_long(whole, 512) == ""
    write(long[0])
    with pytest.raises(ValueError, match=r"All 1 training examples .* longer than 12"):
        load_own(config, 12)


# --- new examples, which only have to be labelled -------------------------------

SST2, RTE, COPA, RACE, SNLI = (
    TASKS[name] for name in ("sst2", "rte", "copa", "race", "snli")
)


def new_examples(task, source):
    return check_new_examples(task, read_input(source, "example"))


def test_lines_that_are_not_blank_are_examples(write):
    content = "\ufeffone\u2028text\r\n\n \nanother {one}"
    examples = new_examples(SST2, write("a.txt", content))
    assert [each.text for each in examples] == [("one\u2028text",), ("another {one}",)]
    assert [e.where.rpartition(":")[2] for e in examples] == ["1", "4"]
    assert {(e.id, e.label, e.choices) for e in examples} == {("", None, ())}


def test_texts_of_a_line_are_separated_by_tabs():
    lines = plain_lines(["It rained.\teffect\twet\tdry"], "text")
    (example,) = check_new_examples(COPA, lines)
    assert example.text == ("It rained.", "What happened as a result?")
    assert example.choices == ("wet", "dry")


def test_columns_have_names_and_labels_are_ignored(write):
    lines = "id,sentence1,sentence2,label\nr7,one,two,unheard of\nr9,three,four,\n"
    examples = new_examples(RTE, write("a.CSV", lines))
    assert [each.text for each in examples] == [("one", "two"), ("three", "four")]
    assert [each.id for each in examples] == ["r7", "r9"]
    assert {each.label for each in examples} == {None}
    assert examples[0].where.endswith(":2")


def test_columns_of_choices_may_be_a_list():
    row = {"article": "A.", "question": "", "options": [*"abcd"], "example_id": "high1"}
    (example,) = check_new_examples(RACE, [("a:1", row)])
    assert (example.choices, example.subset) == ((*"abcd",), "high")


def test_examples_are_kept_where_training_drops_them():
    row = {"premise": "A.", "hypothesis": "B.", "label": -1}
    assert len(check_new_examples(SNLI, [("a:1", row)])) == 1


def test_a_line_with_too_few_texts_is_named():
    lines = plain_lines(["a\tcause\tb"], "text")
    with pytest.raises(UserError, match=r"t:1: .*COPA needs 4 .* choice2, but .* 3"):
        check_new_examples(COPA, lines)
