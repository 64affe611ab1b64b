"""Tasks of the user's own, and the labels of their training files."""

import dataclasses
import json
import os

import pytest
from tiny_tasks import finetune_config

from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.tasks.batches import EncodedExamples
from gpt1_jax.tasks.custom_task import (
    class_weights,
    custom_task,
    describe_class_weights,
    describe_rows,
)
from gpt1_jax.tasks.examples import (
    check_new_examples,
    count_training_examples,
    load_split,
)
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

    def make(labels, column="label"):
        path = tmp_path / "train.jsonl"
        rows = [{"a": f"{i}", "b": "2", column: y} for i, y in enumerate(labels)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return make


@pytest.mark.parametrize("score_loss", ["soft_labels", "regression"])
def test_tasks_of_scores_learn_them_as_configured(score_loss):
    config = finetune_config("stsb+rte", BASE, head__score_loss=score_loss)
    (stsb, rte), _ = select_tasks(config)
    assert stsb.target.score_loss == find_task(config).target.score_loss == score_loss
    assert rte is TASKS["rte"]
    scored = dict(score_range=(1.0, 5.0), labels=())
    config = custom_config(head__score_loss=score_loss, **scored)
    assert custom_task(config).target.score_loss == score_loss


def test_find_task_is_the_task_of_a_run():
    assert find_task(finetune_config("mnli", BASE)) is TASKS["mnli"]
    config = custom_config()
    assert find_task(config) == custom_task(config)
    stranger = dataclasses.replace(finetune_config("mnli", BASE), tasks=("../../x",))
    with pytest.raises(UserError, match=r"names the task '\.\./\.\./x'; there are"):
        find_task(stranger)


# --- of the user's own ----------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "text", "choices", "transform"),
    [
        ("classification", ("a",), (), "single"),
        ("classification", ("a", "b"), (), "pair"),
        ("similarity", ("a", "b"), (), "similarity"),
        ("multiple_choice", ("a",), ("c", "d"), "multiple_choice"),
        ("multiple_choice", ("a", "b"), ("c",), "multiple_choice"),
    ],
)
def test_custom_task_has_the_transform_of_its_head(head, text, choices, transform):
    config = custom_config(head=head, text=text, choices=choices, label="gold")
    (task,), resolved = select_tasks(config)
    assert (task.name, task.inputs.transform) == ("custom", transform)
    assert (task.inputs.text, task.inputs.choices, task.target.column) == (
        text,
        choices,
        "gold",
    )
    assert (task.target.labels, task.target.score_range) == (LABELS, None)
    assert task.metrics == ("accuracy",)
    assert resolved == config


@pytest.mark.parametrize("head", ["classification", "similarity"])
def test_custom_task_with_a_score_range_has_scores(head):
    config = custom_config(head=head, score_range=(1.0, 5.0), labels=())
    (task,), resolved = select_tasks(config)
    assert (task.target.labels, task.target.score_range) == ((), (1.0, 5.0))
    assert task.metrics == ("pearson",)
    assert resolved == config


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (dict(head=""), "--config.custom.head: classification, multilabel, s"),
        (dict(text=()), r"text=\(\) names 0 columns; .*'classification' takes 1 or 2"),
        (
            dict(text=("a", "b", "c")),
            r"names 3 columns; .* 1 or 2\. Of more columns, .*template='\{A\} \{B\}'",
        ),
        (dict(head="similarity", text=("a",)), "'similarity' takes 2"),
        (dict(label="b"), r"label='b' is also a column of the text, .* leave it out"),
        (
            dict(template="{c}"),
            r"template='\{c\}' does not go with .*text=\('a', 'b'\)",
        ),
        (template("{a}", head="similarity"), "makes 1 texts; .*'similarity' takes 2"),
        (template("{label}", labels=()), "label='label' is also a column"),
        (template("{a} so {b"), r"cannot be read \(expected '\}' before end.* double"),
        (template("{a} so b}"), r"cannot be read \(Single '\}' encountered"),
        (template("a ||| {b}"), "each text needs a column in braces"),
        (template("{a} {}"), "each text needs a column in braces"),
        (template("{a.b}"), "each text needs a column in braces, by its name alone"),
        (template("{a:>9}"), "each text needs a column in braces, by its name alone"),
        (template("{a!r}"), "each text needs a column in braces, by its name alone"),
        (dict(choices=("c", "d")), r"choices=\('c', 'd'\) does not go with the head"),
        (dict(head="multiple_choice"), r"choices=\(\) does not go with the head"),
        (
            dict(head="multilabel", score_range=(0.0, 5.0)),
            r"score_range=\(0\.0, 5\.0\) does not go with the head 'multilabel'",
        ),
        (dict(labels=("yes",)), r"labels=\('yes',\): there must be at least two"),
        (
            dict(head="multiple_choice", choices=("c", "d", "e")),
            r"labels=\('no', 'yes'\) must name each of the columns .*'d', 'e'\)",
        ),
        (
            dict(head="multiple_choice", choices=("c", "d"), score_range=(0.0, 5.0)),
            r"score_range=\(0\.0, 5\.0\) does not go with the head",
        ),
        (
            dict(class_weights=("1", "2", "3")),
            r"'1,2,3' has 3 weights; .* of the 2 labels in their order: 'no', 'yes'",
        ),
        (dict(class_weights=("1", "0")), "has '0', which is not a number above 0"),
        (dict(class_weights=("1", "inf")), "has 'inf', which is not a number"),
        (dict(class_weights=("no", "yes")), "has 'no', .* give 'balanced', or a num"),
        (
            dict(class_weights=("balanced",), score_range=(0.0, 5.0)),
            "class_weights='balanced' does not go with scores",
        ),
        (
            dict(class_weights=("1", "2"), head="multiple_choice", choices=("c", "d")),
            "does not go with the head 'multiple_choice'",
        ),
        (dict(calibrate=True, score_range=(0.0, 5.0)), "calibrate=True is for the pro"),
        (dict(metrics=("auc",)), "'auc' is not a metric for a task with 2 labels"),
        (
            dict(metrics=("accuracy", "f1"), labels=("no", "so", "yes")),
            "'f1' is not a metric for a task with 3 labels; those are accuracy, m",
        ),
        (
            dict(metrics=("accuracy",), score_range=(0.0, 5.0)),
            "'accuracy' is not a metric for a task with scores; those are pearson, s",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_custom_task_that_does_not_fit_is_refused(overrides, named):
    with pytest.raises(ValueError, match=named):
        select_tasks(custom_config(**overrides))


def made(*labels):
    return [Example(("a",), (), label, "", "", "") for label in labels]


def weights_of(train, **custom):
    custom = custom_config(labels=("a", "b", "c"), **custom).custom
    found = class_weights(custom, train)
    return found if found is None else found.tolist()


def test_balanced_weights_are_those_of_scikit_learn():
    train = made(0, 0, 0, 1, 2, 2, 2, 2)
    assert weights_of(train) is None
    balanced = weights_of(train, class_weights=("balanced",))
    assert balanced == pytest.approx([8 / 9, 8 / 3, 8 / 12])
    assert weights_of(train, class_weights=("1", "2.5", "3")) == [1.0, 2.5, 3.0]
    # A label may be absent, for example where a few examples are drawn.
    some = weights_of(made(0, 2, 2), class_weights=("balanced",))
    assert (some[0], some[2]) == pytest.approx((3 / 2, 3 / 4)) and some[1] > 0


def test_weights_are_said_and_suggested_for_uneven_labels():
    def said(train, **custom):
        custom = custom_config(labels=("a", "b", "c"), **custom).custom
        return describe_class_weights(custom, train)

    even, uneven = made(0, 1, *[2] * 5), made(0, 0, 1, *[2] * 6)
    assert said(even) == ""
    assert said(uneven).startswith("6 training examples are 'c' and 1 'b'; --config.cu")
    numbers = dict(class_weights=("1", "2.5", "3"))
    assert said(uneven, **numbers) == "Class weights: 'a' 1, 'b' 2.5, 'c' 3."
    assert said(uneven, head="multiple_choice", choices=("x", "y", "z")) == ""


@pytest.mark.parametrize(
    ("metrics", "labels"),
    [
        (("f1", "accuracy"), LABELS),
        (("matthews",), (*LABELS, "so")),
        (("pearson",), ()),
    ],
)
def test_custom_task_takes_metrics_that_fit(metrics, labels):
    score_range = (0.0, 0.0) if labels else (0.0, 5.0)
    config = custom_config(metrics=metrics, labels=labels, score_range=score_range)
    assert custom_task(config).metrics == metrics


def test_a_run_with_metrics_that_no_longer_fit_is_opened_but_not_trained():
    config = custom_config(metrics=("pearson", "accuracy"))
    assert find_task(config).metrics == ("pearson", "accuracy")
    with pytest.raises(UserError, match="'pearson' is not a metric for a task with 2"):
        select_tasks(config)


def test_a_template_makes_texts_of_any_number_of_columns(tmp_path):
    path = tmp_path / "train.csv"
    paths = {"train": str(path)}
    path.write_text("a,b,the author,label\nwhy,because,Poe,yes\n,b,c,no\n")
    both = template("{a}, by {the author} {{sic}} ||| {b}; {a}?")
    (task,), _ = select_tasks(custom_config(path, **both))
    assert (task.inputs.transform, task.inputs.text) == (
        "pair",
        ("a", "the author", "b"),
    )
    read = load_split(task, "train", source="files", directory="", paths=paths)
    assert [task.inputs.format_text(each) for each in read] == [
        ("why, by Poe {sic}", "because; why?"),
        (", by c {sic}", "b; ?"),
    ]
    rows = [
        ("here:1", {"a": "i", "b": "ii", "the author": "iii"}),
        ("here:2", "i\tj\tk"),
    ]
    found = [task.inputs.format_text(each) for each in check_new_examples(task, rows)]
    assert found == [("i, by iii {sic}", "ii; i?"), ("i, by j {sic}", "k; i?")]
    (task,), _ = select_tasks(custom_config(path, **template("{a} {c}")))
    assert task.inputs.transform == "single"
    with pytest.raises(UserError, match=r"csv:2: there is no column 'c'; .* a, b, the"):
        load_split(task, "train", source="files", directory="", paths=paths)


def test_a_template_that_does_not_fit_is_refused_before_the_file_is_read():
    values = template("{a", labels=())
    with pytest.raises(UserError, match=r"template='\{a' cannot be read"):
        select_tasks(custom_config("nowhere.csv", **values))


# --- labels of the training file ------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["yes", "no", "yes"], ("no", "yes"), [1, 0, 1]),
        ([2, 10, 2, 1], ("1", "2", "10"), [1, 2, 1, 0]),
        ([True, False], ("False", "True"), [1, 0]),
        ([2.0, 1.0], ("1.0", "2.0"), [1, 0]),
        (["nan", "inf"], ("inf", "nan"), [1, 0]),
        (["+", "-"], ("+", "-"), [0, 1]),
        ([-1, 1, 0], ("-1", "0", "1"), [0, 2, 1]),
        (["hidden", "shown"], ("hidden", "shown"), [0, 1]),
        ([*range(11)], tuple(map(str, range(11))), [*range(11)]),
    ],
)
def test_labels_are_those_of_the_training_file(training_file, labels, names, numbers):
    """Numbers too are names, as they are in a file of text alone."""
    config = custom_config(training_file(labels), labels=())
    (task,), resolved = select_tasks(config)
    assert task.target.labels == resolved.custom.labels == names
    assert find_task(resolved) == task
    examples = load_split(
        task, "train", source="files", directory="", paths=resolved.data.paths()
    )
    assert [example.label for example in examples] == numbers


@pytest.mark.parametrize("labels", [[1.0, 2.5, 4.0], ["3", "3.80"], [1, 1e-7]])
def test_scores_without_a_range_do_not_become_classes(training_file, labels):
    path = training_file(labels)
    with pytest.raises(ValueError, match=r"score_range=LOWEST,HIGHEST; .* labels") as e:
        select_tasks(custom_config(path, labels=()))
    assert f"{path} holds numbers such as" in str(e.value)
    names = tuple(map(str, labels))
    (task,), _ = select_tasks(custom_config(path, labels=names))
    assert task.target.labels == names


def test_examples_without_a_label_add_no_name(training_file):
    path = training_file(["yes", None, "", "no"])
    (task,), _ = select_tasks(custom_config(path, labels=()))
    assert task.target.labels == ("no", "yes")


def test_a_label_that_the_training_file_lacks_is_refused(training_file):
    (task,), _ = select_tasks(custom_config(training_file(["yes", "no"]), labels=()))
    record = Record({"a": "1", "b": "2", "label": "maybe"}, "dev.jsonl:7")
    with pytest.raises(UserError) as caught:
        task.check_record(record, needs_label=True)
    assert str(caught.value) == (
        "dev.jsonl:7: label 'maybe' is not one of ['no', 'yes']; name all with "
        "--config.custom.labels=A,B."
    )


def test_a_number_is_not_a_position_if_labels_are_numbers(training_file):
    config = custom_config(training_file([-1, 1]), labels=())
    (task,), _ = select_tasks(config)
    record = Record({"a": "1", "b": "2", "label": 0}, "a.jsonl:7")
    with pytest.raises(UserError, match=r"a.jsonl:7: label 0 is not one of .'-1', '1'"):
        task.check_record(record, needs_label=True)


@pytest.mark.parametrize("withheld", ["-", "hidden", -1])
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


def test_label_that_is_a_list_is_refused(training_file):
    with pytest.raises(ValueError, match=r"train\.jsonl:2: label \['a'\] is neither"):
        select_tasks(custom_config(training_file(["b", ["a"]]), labels=()))


def test_labels_are_inferred_from_a_table_too(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("a\tb\tgold\n1\t2\tpos\n3\t4\tneg\n")
    (task,), _ = select_tasks(custom_config(path, labels=(), label="gold"))
    assert task.target.labels == ("neg", "pos")


def test_numbers_are_positions_of_labels_given_by_name(training_file):
    config = custom_config(training_file([1, 0, "yes"]))
    (task,), _ = select_tasks(config)
    examples = load_split(
        task, "train", source="files", directory="", paths=config.data.paths()
    )
    assert [example.label for example in examples] == [1, 0, 1]


def test_columns_of_choices_name_the_labels():
    """No file is read."""
    config = custom_config(
        "nowhere.jsonl", head="multiple_choice", choices=("c", "d"), labels=()
    )
    (task,), resolved = select_tasks(config)
    assert task.target.labels == resolved.custom.labels == ("c", "d")


def test_one_label_alone_is_refused(training_file):
    with pytest.raises(ValueError, match="there must be at least two labels"):
        select_tasks(custom_config(training_file(["yes", "yes"]), labels=()))


def test_training_file_without_the_label_column_is_refused(training_file):
    config = custom_config(training_file(["yes"], column="gold"), labels=())
    with pytest.raises(ValueError, match="there is no column 'label'"):
        select_tasks(config)


def test_training_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(MissingData, match=r"--config\.data\.train=FILE"):
        select_tasks(custom_config(labels=()))
    with pytest.raises(MissingData, match="does not exist"):
        select_tasks(custom_config(tmp_path / "train.jsonl", labels=()))
    with pytest.raises(UserError, match=r"data\.train='.*' is a folder; name a file"):
        select_tasks(custom_config(tmp_path, labels=()))


def test_a_name_of_the_papers_is_not_ones_own():
    with pytest.raises(UserError, match=r"custom\.name='mrpc' is the name of one "):
        select_tasks(custom_config(custom__name="mrpc"))


def test_as_many_scores_as_no_head_can_tell_apart_are_refused():
    scored = dict(score_range=(0.0, 1e6), labels=())
    with pytest.raises(UserError, match=r"set --config\.head\.score_loss=regression"):
        custom_task(custom_config(**scored))
    assert custom_task(custom_config(head__score_loss="regression", **scored))


# --- rows as people have them ---------------------------------------------------


def one_text(train, **overrides):
    """The task of a file with the columns text and label."""
    values = {"text": ("text",), "labels": (), **overrides}
    (task,), _ = select_tasks(custom_config(train, **values))
    return task


def load_own(task, path, split="train", **options):
    paths = {split: str(path)}
    return load_split(task, split, source="files", directory="", paths=paths, **options)


def test_blanks_around_columns_and_labels_mean_nothing(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("label , text\n pos, one\npos ,two\nneg, three\n")
    task = one_text(path)
    assert task.target.labels == ("neg", "pos")
    assert [each.label for each in load_own(task, path)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("labels", "first", "second"),
    [
        ((1, "x", 1.0), "'1.0'", "'1' of .*train.jsonl:1"),
        (("1", "x", 1.0), "'1.0'", "'1' of .*train.jsonl:1"),
        ((-1, 1, -1.0), "'-1.0'", "'-1' of .*train.jsonl:1"),
        (("10.", 1, 10), "'10'", "'10.' of .*train.jsonl:1"),
        ((False, "x", "false"), "'false'", "'False' of .*train.jsonl:1"),
        (("TRUE", "x", "True"), "'True'", "'TRUE' of .*train.jsonl:1"),
        (
            ("caf\u00e9", "x", "cafe\u0301"),
            r"'cafe\\u0301'",
            r"'caf\\xe9' of .*train.jsonl:1",
        ),
    ],
)
def test_labels_written_in_two_ways_are_named(training_file, labels, first, second):
    path = training_file(labels)
    message = rf"train\.jsonl:3: label {first} looks like {second}, written in another"
    with pytest.raises(UserError, match=message):
        select_tasks(custom_config(path, labels=()))
    listed = tuple(map(str, labels))
    (task,), _ = select_tasks(custom_config(path, labels=listed))
    assert [each.label for each in load_own(task, path)] == [0, 1, 2]


def test_all_labels_written_in_two_ways_are_named_at_once(training_file):
    path = training_file([*"abcde", "x", *"ABCDE"])
    first = r"jsonl:7: label 'A' looks like 'a' of .*jsonl:1, .*jsonl:8: label 'B' look"
    with pytest.raises(UserError, match=rf"{first}.*'C'.* and 2 more, written") as all_:
        select_tasks(custom_config(path, labels=()))
    assert "'D'" not in str(all_.value) and "\n" not in str(all_.value)


def test_blanks_around_the_configured_label_mean_nothing(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("label,text\npos,one\nneg,two\n")
    task = one_text(path, label=" label ")
    assert [each.label for each in load_own(task, path)] == [1, 0]


def test_the_number_1_and_the_text_1_are_one_label(training_file):
    (task,), _ = select_tasks(custom_config(training_file((1, "1", 0)), labels=()))
    assert task.target.labels == ("0", "1")


def test_labels_of_bytes_are_refused_not_named_as_python_writes_them(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {"a": ["1", "2"], "b": ["x", "y"], "label": [b"no", b"yes"]}
    parquet.write_table(pyarrow.table(table), tmp_path / "train.parquet")
    config = custom_config(tmp_path / "train.parquet", labels=())
    with pytest.raises(UserError, match=r"row 1: label b'no' is neither text nor"):
        select_tasks(config)


@pytest.mark.parametrize(
    ("label", "near"), [("TRUE", "'True'"), (" true ", "'True'"), (False, "")]
)
def test_a_label_of_dev_written_in_another_way_is_named(training_file, label, near):
    (task,), _ = select_tasks(custom_config(training_file(["True", "no"]), labels=()))
    path = training_file([label])
    with pytest.raises(UserError, match=r"jsonl:1: label .* is not one of") as raised:
        load_own(task, path, "dev")
    assert (f"but looks like {near}; write both alike" in str(raised.value)) == bool(
        near
    )


EMPTY = ("", " ", "null", "NaN")


@pytest.mark.parametrize("empty", EMPTY)
def test_empty_rows_are_refused_by_line_or_passed_over(tmp_path, caplog, empty):
    cell = empty if empty[:1] in ("n", "N") else f'"{empty}"'
    rows = ['"one"', cell, '"two"', cell]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f'{{"text": {c}, "label": "x"}}\n' for c in rows))
    task = one_text(path, labels=("x", "y"))
    with pytest.raises(UserError, match=r"jsonl:2: .*--config\.data\.skip_empty=True"):
        load_own(task, path)
    found = load_own(task, path, skip_empty=True)
    assert [(each.text, each.number) for each in found] == [
        (("one",), 0),
        (("two",), 2),
    ]
    assert "Left out 2 rows without text; the first is" in caplog.text


@pytest.mark.parametrize("how", [template("{a} by {b}"), {"text": ("a", "b")}])
def test_one_empty_column_of_several_is_an_empty_piece(tmp_path, how):
    path = tmp_path / "train.csv"
    path.write_text("a,b,label\n,Poe,no\nRaven,,yes\n,,no\n")
    (task,), _ = select_tasks(custom_config(path, **how))
    with pytest.raises(UserError, match=r"csv:4: the texts in columns a, b are all em"):
        load_own(task, path)
    found = load_own(task, path, skip_empty=True)
    assert [each.text for each in found] == [("", "Poe"), ("Raven", "")]
    if "template" in how:
        texts = [task.inputs.format_text(each) for each in found]
        assert texts == [(" by Poe",), ("Raven by ",)]


def test_a_configuration_may_pass_empty_rows_over(tmp_path):
    """From the key to the examples."""
    path = tmp_path / "train.csv"
    path.write_text("text,label\none,no\n,yes\ntwo,yes\nthree,no\n")
    config = custom_config(path, text=("text",), labels=())
    data = dataclasses.replace(config.data, skip_empty=True, dev_fraction=0.5)
    (task,), config = select_tasks(dataclasses.replace(config, data=data))
    assert count_training_examples(task, config.data) == 2


# --- several labels a row -------------------------------------------------------


def several(train="", **overrides):
    """A task with any number of labels a row."""
    values = {"head": "multilabel", "text": ("a",), "labels": (), **overrides}
    return select_tasks(custom_config(train, **values))


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("x", (1,)),
        ("x|b", (0, 1)),
        (" b | x |", (0, 1)),
        ("x|x", (1,)),
        (["x", "b"], (0, 1)),
        ('["b"]', (0,)),
        ("[]", ()),
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
    assert task.check_record(record, needs_label=False).label == labels


def test_a_blank_cell_of_a_table_has_none_of_several_labels(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("a,label\n1,b\n2,\n3,b|x\n")
    (task,), _ = several(path)
    assert [each.label for each in load_own(task, path)] == [(0,), (), (0, 1)]


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


# --- of two labels, the one that F1 is about ------------------------------------


@pytest.mark.parametrize(
    ("labels", "custom", "positive"),
    [
        (["b", "a", "b"], {}, "a"),
        (["b", "a", "a"], {}, "b"),
        (["b", "a"], {}, "b"),
        (["b", "a", "b"], {"positive": "b"}, "b"),
        (["b", "a", "b"], {"labels": ("b", "a")}, "a"),
        ([0, 0, 1], {"labels": ("b", "a")}, "a"),
        (["a", "b", "a", "?"], {"labels": ("b", "a")}, "b"),
        (["b", "a", "b"], {"head": "similarity"}, "a"),
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
    path = training_file(["a", "b", "c"])
    assert select_tasks(custom_config(path, labels=()))[1].custom.positive == ""
    with pytest.raises(UserError, match=r"positive='a' is for a classification or sim"):
        select_tasks(custom_config(path, labels=(), positive="a"))
    with pytest.raises(UserError, match=r"positive='b' is for a classification or sim"):
        several(labels=("b", "x"), positive="b")


def test_a_positive_class_that_is_no_label_is_refused():
    with pytest.raises(UserError, match="'maybe' is none of the labels 'no' and 'yes'"):
        select_tasks(custom_config(positive="maybe"))


def test_a_run_without_a_positive_class_has_f1_of_its_second_label(tmp_path):
    """As up to version 1.0, or if the training file is gone or is read only once."""
    assert find_task(custom_config()).target.positive == 1
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    for train in (pipe, tmp_path / "gone.csv"):
        (task,), _ = select_tasks(custom_config(train))
        assert task.target.positive == 1


# --- lines on labels and held-out rows ------------------------------------------


def described(train, dev=(0, 0, 1), data=(), **custom):
    """The lines on training and dev examples with these label numbers."""
    config = custom_config("tickets.csv", **custom)
    task = custom_task(config)
    splits = {
        name: EncodedExamples.collect([], [], targets(task, labels), [])
        for name, labels in (("train", train), ("dev", dev))
    }
    return describe_rows(task, dataclasses.replace(config.data, **dict(data)), splits)


def test_labels_are_shown_with_their_counts():
    assert described([0] * 1200 + [1] * 20, positive="no") == [
        "Labels, training + dev: 'no' 1,200 + 2, 'yes' 20 + 1. F1 is of 'no' "
        "(--config.custom.positive)."
    ]
    three = described([0, 1, 2] * 10, labels=("c", "a", "b"))
    assert three == ["Labels, training + dev: 'c' 10 + 2, 'a' 10 + 1, 'b' 10 + 0."]
    several = described([(0, 1), (1,)] * 10 + [()], dev=[()], head="multilabel")
    assert several == [
        "Labels, training + dev: 'no' 10 + 0, 'yes' 20 + 0. Without any: 1 + 1."
    ]
    many = tuple(map(str, range(77)))
    (line,) = described([*range(77)] * 10, labels=many)
    assert line.endswith("'48' 10 + 0, '49' 10 + 0 and 27 more.")
    assert described([1.0], [2.0], labels=(), score_range=(0.0, 5.0)) == []


def test_labels_of_few_examples_are_warned_of():
    _, warning = described([0] * 9 + [1] * 10)
    assert warning.startswith("WARNING: labels with fewer than 10 training examples")
    assert warning.endswith(": 'no' 9.")


@pytest.mark.parametrize("other", ["Out Of order", "out ofORDER", "out of  order"])
def test_labels_that_are_hardly_two_are_warned_of(other):
    names = ("out of order", other, "lost")
    _, warning = described([0, 1, 2] * 10, labels=names)
    assert f"labels 'out of order' and {other!r} differ only in" in warning
    _, warning = described([0, 1, 2] * 10, labels=("1", "2", "1.0"))
    assert "labels '1' and '1.0' differ only in case, blanks or kind" in warning


def test_held_out_rows_are_said():
    held_out = "Held out of tickets.csv as the dev split"
    first, *_ = described([0, 1] * 10, data={"dev_fraction": 0.1})
    assert first.startswith(f"{held_out}: 3 rows, chosen by text and label, the same")
    first, *_ = described([0, 1] * 10, data={"folds": 5, "fold": 2})
    assert first.startswith(f"{held_out} (fold 2 of 5): 3 rows, chosen by text and")
