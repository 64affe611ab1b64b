"""The dev split that is held out of a training file."""

import functools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tasks import finetune_config

from gpt1_jax.errors import UserError
from gpt1_jax.tasks.custom_task import custom_task
from gpt1_jax.tasks.held_out import hold_out
from gpt1_jax.tasks.task import Example

few = settings(max_examples=25)
LABELS = ("bug", "crash", "wish")
TEXTS = st.integers(0, 12).map(lambda number: f"text {number}")
ROWS = st.lists(st.tuples(TEXTS, st.integers(0, 2)), min_size=2, max_size=60)


configured = functools.cache(
    lambda **values: finetune_config("custom", {"init_from": "run"}, **values)
)


@functools.cache
def own_task(**overrides):
    values = {"head": "classification", "text": ("text",), "labels": LABELS}
    custom = {f"custom__{k}": v for k, v in {**values, **overrides}.items()}
    return custom_task(configured(**custom))


def examples(rows):
    """Examples of (text or texts, label); their place is their number."""
    made = []
    for number, (text, label) in enumerate(rows):
        texts = text if isinstance(text, tuple) else (text,)
        made.append(Example(texts, (), label, "", "", f"train.csv:{number}"))
    return made


def divide(rows, task=None, **data):
    data = {f"data__{name}": value for name, value in data.items()}
    return hold_out(task or own_task(), examples(rows), configured(**data).data)


def by_label(split):
    return Counter(example.label for example in split)


def tickets():
    """1,200 rows: 80, 15 and 5 % of three labels."""
    labels = [0] * 960 + [1] * 180 + [2] * 60
    return [(f"ticket {number}", label) for number, label in enumerate(labels)]


def test_a_share_of_each_label_is_held_out():
    _, dev = divide(tickets(), dev_fraction=0.1)
    assert by_label(dev) == {0: 96, 1: 18, 2: 6}


@few
@given(ROWS, st.sampled_from([0.01, 0.1, 0.3, 0.9]), st.randoms())
def test_what_is_held_out_depends_on_content_alone(rows, share, rng):
    """Whatever the order; equal texts are on one side, and every label in dev."""
    texts = {}
    for text, label in rows:
        texts.setdefault(label, set()).add(text)
    if all(len(each) == 1 for each in texts.values()):
        return
    train, dev = divide(rows, dev_fraction=share)
    assert sorted(e.where for e in train + dev) == sorted(
        each.where for each in examples(rows)
    )
    assert not {each.text for each in train} & {each.text for each in dev}
    assert {label for label in texts if len(texts[label]) > 1} <= set(by_label(dev))
    shuffled = rng.sample(rows, len(rows))
    assert {each.text for each in divide(shuffled, dev_fraction=share)[1]} == {
        each.text for each in dev
    }


def test_most_rows_stay_on_their_side_when_the_file_grows():
    rows = tickets()
    before = {each.text for each in divide(rows, dev_fraction=0.1)[1]}
    rows += [(f"new ticket {number}", number % 3) for number in range(30)]
    after = {each.text for each in divide(rows, dev_fraction=0.1)[1]}
    assert len(before - after) < 10


def test_a_label_of_one_text_is_trained_on():
    rows = [*tickets()[:20], ("alone", 1), ("alone", 1)]
    train, dev = divide(rows, dev_fraction=0.5)
    assert by_label(train)[1] == 2 and by_label(dev) == {0: 10}


def test_many_rows_of_one_text_leave_the_share_as_it_is():
    rows = [*tickets()[:700], *[("thanks", 0)] * 300]
    assert len(divide(rows, dev_fraction=0.1)[1]) == 100


def test_texts_that_the_model_reads_alike_are_equal():
    rows = [("a  b", 0), (" a b", 0), ("c", 0), *tickets()[:10]]
    for share in (0.2, 0.4, 0.6, 0.8):
        train, _ = divide(rows, dev_fraction=share)
        assert len({"a  b", " a b"} & {each.text[0] for each in train}) != 1
    task = own_task(head="similarity", text=("a", "b"))
    rows = [((f"{n}", f"{n + 1}"), 0) for n in range(10)]
    rows += [(text[::-1], label) for text, label in rows]
    train, dev = divide(rows, task, dev_fraction=0.5)
    assert not {frozenset(e.text) for e in train} & {frozenset(e.text) for e in dev}


@few
@given(ROWS, st.integers(2, 4))
def test_each_row_is_held_out_by_one_fold(rows, folds):
    rows = [*rows, *[(f"own {n}", n % 3) for n in range(3 * folds)]]
    held = []
    for fold in range(1, folds + 1):
        train, dev = divide(rows, folds=folds, fold=fold)
        assert not {each.text for each in train} & {each.text for each in dev}
        held += [each.where for each in dev]
    assert sorted(held) == sorted(each.where for each in examples(rows))


def test_folds_have_the_labels_in_equal_parts():
    dev = [divide(tickets(), folds=5, fold=fold)[1] for fold in range(1, 6)]
    assert [by_label(each) for each in dev] == [{0: 192, 1: 36, 2: 12}] * 5


def test_a_label_of_several_is_in_dev_and_in_training():
    task, rng = own_task(head="multilabel"), random.Random(0)
    rows = [
        (f"row {n}", tuple(sorted(rng.sample(range(3), n % 3)))) for n in range(300)
    ]
    _, dev = divide(rows, task, dev_fraction=0.1)
    for number in range(3):
        of_all = sum(number in label for _, label in rows)
        assert 0.05 < sum(number in each.label for each in dev) / of_all < 0.15


def test_scores_are_held_out_too():
    task = own_task(labels=(), score_range=(0.0, 5.0))
    rows = [(f"row {number}", number / 20) for number in range(100)]
    assert len(divide(rows, task, dev_fraction=0.2)[1]) == 20


def test_more_folds_than_texts_of_a_label_are_refused():
    rows = [*tickets()[:1143], ("alone", 2), ("alone", 2), *tickets()[1196:]]
    with pytest.raises(UserError, match="label 'wish' has 8 rows with different t"):
        divide(rows, folds=9, fold=1)
    assert by_label(divide(rows, folds=8, fold=1)[1])[2]


def test_rows_of_one_text_cannot_be_held_out():
    with pytest.raises(UserError, match="each label has only one text; name a de"):
        divide([("a", 0), ("a", 0), ("b", 1)], dev_fraction=0.5)
