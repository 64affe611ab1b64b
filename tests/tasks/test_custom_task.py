"""Tasks of the user's own, and the labels of their training files."""

import dataclasses
import os
import re

import numpy as np
import pytest
from tiny_tasks import finetune_config, write_lines

from gpt1_jax.errors import UserError
from gpt1_jax.tasks.batches import EncodedExamples
from gpt1_jax.tasks.custom_task import (
    class_weights,
    custom_task,
    describe_rows,
)
from gpt1_jax.tasks.examples import check_new_examples, load_split
from gpt1_jax.tasks.paper_tasks import TASKS, find_task, select_tasks
from gpt1_jax.tasks.task import Example, Record
from gpt1_jax.tasks.transforms import targets

LABELS = ("no", "yes")
BASE = {"init_from": "runs/pretrain/tiny"}


def custom_config(train="", **overrides):
    """A task of the user's own: two texts, two labels."""
    values = {"head": "classification", "text": ("a", "b"), "labels": LABELS}
    values = {**values, **overrides}
    custom = {k if "__" in k else f"custom__{k}": v for k, v in values.items()}
    return finetune_config("custom", BASE, data__train=str(train), **custom)


def template(text, **overrides):
    """Values of a task whose text is made by a template."""
    return dict(template=text, **{"text": (), **overrides})


@pytest.fixture
def training_file(tmp_path):
    """`training_file(labels)`: a file of JSON lines with these labels; its path."""

    def make(labels):
        rows = [{"a": f"{i}", "b": "2", "label": y} for i, y in enumerate(labels)]
        return write_lines(tmp_path / "train.jsonl", rows)

    return make


def only_task(train="", **overrides):
    (task,), _ = select_tasks(custom_config(train, **overrides))
    return task


def load_own(task, path, split="train", **options):
    paths = {split: str(path)}
    return load_split(task, split, source="files", directory="", paths=paths, **options)


def numbers_of(examples):
    """Their labels."""
    return [example.label for example in examples]


@pytest.mark.parametrize("score_loss", ["soft_labels", "regression"])
def test_tasks_of_scores_learn_them_as_configured(score_loss):
    config = finetune_config("stsb+rte", BASE, head__score_loss=score_loss)
    (stsb, rte), _ = select_tasks(config)
    assert stsb.target.score_loss == find_task(config).target.score_loss == score_loss
    assert rte is TASKS["rte"]
    task = only_task(score_range=(1.0, 5.0), labels=(), head__score_loss=score_loss)
    assert task.target.score_loss == score_loss
    assert (task.target.labels, task.target.score_range) == ((), (1.0, 5.0))
    assert task.metrics == ("pearson",)


@pytest.mark.parametrize(
    ("head", "text", "choices", "transform"),
    [
        ("classification", ("a",), (), "single"),
        ("similarity", ("a", "b"), (), "similarity"),
        ("multiple_choice", ("a",), ("c", "d"), "multiple_choice"),
        ("multiple_choice", ("a", "b"), ("c",), "multiple_choice"),
    ],
)
def test_custom_task_has_the_transform_of_its_head(head, text, choices, transform):
    config = custom_config(head=head, text=text, choices=choices, label="gold")
    (task,), resolved = select_tasks(config)
    inputs, target = task.inputs, task.target
    assert (inputs.text, inputs.choices, inputs.transform) == (text, choices, transform)
    assert (target.labels, target.score_range) == (LABELS, None)
    assert (task.name, target.column, task.metrics) == ("custom", "gold", ("accuracy",))
    assert resolved == config


CHOICES = dict(head="multiple_choice", choices=("c", "d"))
SCORES = dict(score_range=(0.0, 5.0), labels=())


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (dict(name="mrpc"), r"custom\.name='mrpc' is the name of one "),
        (dict(head=""), "--config.custom.head: classification, multilabel, s"),
        (dict(text=()), r"text=\(\) names 0 columns; .*'classification' takes 1 or 2"),
        (dict(text=(*"abc",)), r"3 columns; .* 1 or 2\. Of more .*template='\{A\} \{B"),
        (dict(label="b"), r"label='b' is also a column of the text, .* leave it out"),
        (dict(template="{c}"), r"template='\{c\}' does not go with .*text=\('a', 'b'"),
        (template("{a}", head="similarity"), "makes 1 texts; .*'similarity' takes 2"),
        (template("{label}", labels=()), "label='label' is also a column"),
        (template("{a} so {b"), r"cannot be read \(expected '\}' before end.* double"),
        (template("a ||| {b}"), "each text needs a column in braces"),
        (template("{a.b}"), "each text needs a column in braces, by its name alone"),
        (template("{a!r}"), "each text needs a column in braces, by its name alone"),
        (dict(choices=("c", "d")), r"choices=\('c', 'd'\) does not go with the head"),
        (dict(labels=("yes",)), r"labels=\('yes',\): there must be at least two"),
        (CHOICES | {"choices": (*"cde",)}, "labels=.* must name each of .*'c', 'd'"),
        (CHOICES | SCORES, "score_range=.* does not go with the head 'multiple_cho"),
        (SCORES | {"score_range": (0.0, 1e6)}, r"config\.head\.score_loss=regression"),
        (SCORES | {"calibrate": True}, "calibrate=True is for the pro"),
        (dict(positive="maybe"), "'maybe' is none of the labels 'no' and 'yes'"),
        (dict(positive="a", labels=(*"abc",)), "positive='a' is for a classification"),
        (dict(class_weights=(*"123",)), "'1,2,3' has 3 .* of the 2 labels .*'no',"),
        (dict(class_weights=("1", "0")), "has '0', which is not a number above 0"),
        (SCORES | {"class_weights": ("balanced",)}, "'balanced' does not go with sc"),
        (CHOICES | {"class_weights": ("1", "2")}, "with the head 'multiple_choice'"),
        (SCORES | {"metrics": ("accuracy",)}, "'accuracy' is .* scores; .* pearson"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_custom_task_that_does_not_fit_is_refused(overrides, named):
    """Before a file is read."""
    with pytest.raises(UserError, match=named):
        select_tasks(custom_config("nowhere.csv", **overrides))


@pytest.mark.parametrize(
    ("given", "weights"),
    [(("balanced",), [8 / 9, 8 / 3, 8 / 12]), (("1", "2.5", "3"), [1, 2.5, 3])],
)
def test_balanced_weights_are_those_of_scikit_learn(given, weights):
    config = custom_config(labels=("a", "b", "c"), class_weights=given).custom
    train = [
        Example(("a",), (), label, "", "", "") for label in (0, 0, 0, 1, 2, 2, 2, 2)
    ]
    assert class_weights(config, train).tolist() == pytest.approx(weights)
    assert class_weights(custom_config().custom, train) is None
    few = class_weights(config, train[:3])  # of labels that are absent too
    assert np.isfinite(few).all() and (few > 0).all()


def test_a_run_with_metrics_that_no_longer_fit_is_opened_but_not_trained():
    config = custom_config(metrics=("pearson", "accuracy"))
    assert find_task(config).metrics == ("pearson", "accuracy")
    with pytest.raises(UserError, match="'pearson' is not a metric for a task with 2"):
        select_tasks(config)
    stranger = dataclasses.replace(finetune_config("mnli", BASE), tasks=("../../x",))
    with pytest.raises(UserError, match=r"names the task '\.\./\.\./x'; there are"):
        find_task(stranger)


def test_a_template_makes_texts_of_any_number_of_columns(write):
    path = write("train.csv", "a,b,the author,label\nwhy,because,Poe,yes\n,b,c,no\n")
    both = template("{a}, by {the author} {{sic}} ||| {b}; {a}?")
    task = only_task(path, **both)
    columns = ("a", "the author", "b")
    assert (task.inputs.transform, task.inputs.text) == ("pair", columns)
    rows = [
        ("here:1", {"a": "i", "b": "ii", "the author": "iii"}),
        ("here:2", "i\tj\tk"),
    ]
    examples = [*load_own(task, path), *check_new_examples(task, rows)]
    assert [task.inputs.format_text(each) for each in examples] == [
        ("why, by Poe {sic}", "because; why?"),
        (", by c {sic}", "b; ?"),
        ("i, by iii {sic}", "ii; i?"),
        ("i, by j {sic}", "k; i?"),
    ]
    task = only_task(path, **template("{a} {c}"))
    assert task.inputs.transform == "single"
    with pytest.raises(UserError, match=r"csv:2: there is no column 'c'; .* a, b, the"):
        load_own(task, path)


# --- labels of the training file ------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["yes", None, "", "no"], ("no", "yes"), [1, 0]),
        ([2, 10, 2, 1], ("1", "2", "10"), [1, 2, 1, 0]),
        ([1, "1", 0], ("0", "1"), [1, 1, 0]),
        ([True, False], ("False", "True"), [1, 0]),
        ([-1, 1, 0], ("-1", "0", "1"), [0, 2, 1]),
    ],
)
def test_labels_are_those_of_the_training_file(training_file, labels, names, numbers):
    """Numbers too are names, as they are in a file of text alone."""
    path = training_file(labels)
    (task,), resolved = select_tasks(custom_config(path, labels=()))
    assert task.target.labels == resolved.custom.labels == names
    assert find_task(resolved) == task
    assert numbers_of(load_own(task, path, skip_unlabelled=True)) == numbers


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((1, "x", 1.0), ":3: label '1.0' looks like '1' of .*train.jsonl:1, written"),
        ((False, "x", "false"), ":3: label 'false' looks like 'False' of"),
        (
            ("caf\u00e9", "x", "cafe\u0301"),
            r":3: label 'cafe\\u0301' looks like 'caf\\xe9' of",
        ),
        ((1.0, 2.5, 4.0), r" holds numbers such as 2\.5.*score_range=LOWEST,HIGHEST;"),
    ],
)
def test_labels_in_doubt_are_refused_unless_they_are_listed(
    training_file, labels, message
):
    """Those written in two ways, and those that may be scores."""
    path = training_file(labels)
    with pytest.raises(UserError, match=rf"train\.jsonl{message}"):
        select_tasks(custom_config(path, labels=()))
    task = only_task(path, labels=tuple(map(str, labels)))
    assert numbers_of(load_own(task, path)) == [*range(len(labels))]


@pytest.mark.parametrize(
    ("labels", "column", "message"),
    [
        (["yes", "yes"], "label", "there must be at least two labels"),
        (["yes"], "gold", r"jsonl:1: there is no column 'gold'"),
        ([], "label", r"train\.jsonl has no rows"),
        (["b", ["a"]], "label", r"train\.jsonl:2: label \['a'\] is neither"),
    ],
)
def test_labels_that_cannot_be_learnt_are_refused(
    training_file, labels, column, message
):
    path = training_file(labels)
    with pytest.raises(UserError, match=message):
        select_tasks(custom_config(path, labels=(), label=column))


@pytest.mark.parametrize(
    ("names", "label", "message"),
    [
        (["yes", "no"], "maybe", r"\['no', 'yes'\]; name all with .*labels=A,B\.$"),
        ([-1, 1], 0, r"\['-1', '1'\]"),  # a number is not a position
        (["True", "no"], "TRUE", ".*but looks like 'True'; write both alike"),
        (["True", "no"], False, r"\['True', 'no'\]; name"),
    ],
)
def test_a_label_that_the_training_file_lacks_is_refused(
    training_file, names, label, message
):
    task = only_task(training_file(names), labels=())
    where = rf"jsonl:1: label {label!r} is not one of {message}"
    with pytest.raises(UserError, match=where):
        load_own(task, training_file([label]), "dev")


@pytest.mark.parametrize("withheld", ["hidden", -1])
def test_a_withheld_label_is_marked_by_a_value_that_is_no_label(withheld):
    def label(**custom):
        task = custom_task(custom_config(**custom))
        record = Record({"a": "1", "b": "2", "label": withheld}, "test.jsonl:1")
        return task.check_record(record, needs_label=False).label

    assert label() is None
    assert label(labels=("no", str(withheld))) == 1
    assert label(labels=(), score_range=(0.0, 5.0)) is None
    score = -1.0 if withheld == -1 else None
    assert label(labels=(), score_range=(-5.0, 5.0)) == score


def test_numbers_are_positions_of_labels_given_by_name(training_file):
    path = training_file([1, 0, "yes"])
    assert numbers_of(load_own(only_task(path), path)) == [1, 0, 1]


def test_columns_of_choices_name_the_labels():
    """No file is read."""
    config = custom_config("nowhere.jsonl", **CHOICES, labels=())
    (task,), resolved = select_tasks(config)
    assert task.target.labels == resolved.custom.labels == ("c", "d")


# --- rows as people have them ---------------------------------------------------


def test_blanks_around_columns_and_labels_mean_nothing(write):
    path = write("train.csv", "gold , text\n pos, one\npos ,two\nneg, three\n")
    task = only_task(path, text=("text",), label=" gold ", labels=())
    assert task.target.labels == ("neg", "pos")
    assert numbers_of(load_own(task, path)) == [1, 1, 0]


@pytest.mark.parametrize("cell", ['" "', "null", "NaN"])
def test_empty_rows_are_refused_by_line_or_passed_over(tmp_path, caplog, cell):
    rows = ['"one"', cell, '"two"', cell]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f'{{"text": {c}, "label": "x"}}\n' for c in rows))
    task = only_task(path, text=("text",), labels=("x", "y"))
    with pytest.raises(UserError, match=r"jsonl:2: .*--config\.data\.skip_empty=True"):
        load_own(task, path)
    found = load_own(task, path, skip_empty=True)
    assert [(each.text, each.number) for each in found] == [
        (("one",), 0),
        (("two",), 2),
    ]
    assert "Left out 2 rows without text; the first is" in caplog.text


@pytest.mark.parametrize("how", [template("{a} by {b}"), {"text": ("a", "b")}])
def test_one_empty_column_of_several_is_an_empty_piece(write, how):
    path = write("train.csv", "a,b,label\n,Poe,no\nRaven,,yes\n,,no\n")
    task = only_task(path, **how)
    with pytest.raises(UserError, match=r"csv:4: the texts in columns a, b are all em"):
        load_own(task, path)
    found = load_own(task, path, skip_empty=True)
    assert [each.text for each in found] == [("", "Poe"), ("Raven", "")]


# --- several labels a row -------------------------------------------------------


def several(train="", **overrides):
    """A task with any number of labels a row."""
    values = {"head": "multilabel", "text": ("a",), "labels": (), **overrides}
    return select_tasks(custom_config(train, **values))


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("x|b", (0, 1)),
        (" b | x |", (0, 1)),
        ('["b"]', (0,)),
        ([], ()),
        ("", ()),
        (None, None),
        ("-", None),
    ],
)
def test_a_row_may_have_several_labels_or_none(training_file, cell, labels):
    path = training_file(["x", "b|x", ["b"]])
    (task,), resolved = several(path)
    assert task.target.labels == resolved.custom.labels == ("b", "x")
    assert find_task(resolved) == task
    assert task.target.multilabel and task.inputs.transform == "single"
    record = Record({"a": "1", "label": cell}, "test.jsonl:1")
    known = labels is not None  # no label at all is known too
    assert task.check_record(record, needs_label=known).label == labels


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("b|c", r"jsonl:1: label 'c' is not one of \['b', 'x'\]; name all with"),
        (["b", None], r"jsonl:1: one of the labels \['b', None\] is empty"),
        ([["b"]], r"jsonl:1: label \['b'\] is neither text nor a number"),
    ],
)
def test_several_labels_that_cannot_be_read_are_refused(training_file, cell, message):
    (task,), _ = several(labels=("b", "x"))
    with pytest.raises(UserError, match=message):
        load_own(task, training_file([cell]))


@pytest.mark.parametrize(
    ("labels", "custom", "positive"),
    [
        (["b", "a", "b"], {}, "a"),
        (["b", "a", "a"], {}, "b"),
        (["b", "a", "b"], {"positive": "b"}, "b"),
        ([0, 0, 1], {"labels": ("b", "a")}, "a"),
        (["a", "b", "a", "?"], {"labels": ("b", "a")}, "b"),
    ],
)
def test_the_positive_class_is_the_rarer_unless_it_is_named(
    training_file, labels, custom, positive
):
    values = {"labels": (), **custom}
    (task,), resolved = select_tasks(custom_config(training_file(labels), **values))
    assert resolved.custom.positive == positive
    assert task.target.labels[task.target.positive] == positive
    assert find_task(resolved) == task


def test_more_than_two_labels_have_no_positive_class(training_file):
    config = custom_config(training_file(["a", "b", "c"]), labels=())
    assert select_tasks(config)[1].custom.positive == ""


def test_a_run_without_a_positive_class_has_f1_of_its_second_label(tmp_path):
    """As up to version 1.0, or if the training file is gone or is read only once."""
    assert find_task(custom_config()).target.positive == 1
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    for train in (pipe, tmp_path / "gone.csv"):
        assert only_task(train).target.positive == 1


# --- lines on labels and held-out rows ------------------------------------------


def described(train, dev=(0, 0, 1), **custom):
    """The lines on training and dev examples with these label numbers."""
    config = custom_config("tickets.csv", **custom)
    task = custom_task(config)
    splits = {
        name: EncodedExamples.collect([], [], targets(task, labels), [])
        for name, labels in (("train", train), ("dev", dev))
    }
    return describe_rows(task, config.data, splits)


@pytest.mark.parametrize(
    ("labels", "counts", "warning"),
    [
        (LABELS, [9, 10], "labels with fewer than 10 training examples, .*: 'no' 9."),
        (("a b", "A  B", "c"), [10] * 3, "labels 'a b' and 'A  B' differ only in case"),
    ],
)
def test_labels_that_are_few_or_hardly_two_are_warned_of(labels, counts, warning):
    _, said = described(np.repeat(range(len(labels)), counts), labels=labels)
    assert re.match(f"WARNING: .*{warning}", said)
