"""The splits of a task, read and encoded."""

import dataclasses
import json

import pytest
from made_up_tokenizer import Numbers
from tiny_tasks import finetune_config

from gpt1_jax.tasks import loading
from gpt1_jax.tasks.files import MissingData
from gpt1_jax.tasks.selection import select_tasks


@pytest.fixture
def own(tmp_path):
    """`own(**data)`: a task of two texts, 40 examples for training."""
    path = tmp_path / "train.jsonl"
    rows = [{"a": f"{i}", "b": "2", "label": "ny"[i % 2]} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = {"init_from": "runs/pretrain/tiny", "data.train": str(path)}
    custom = dict(custom__head="classification", custom__text=("a", "b"))
    config = finetune_config("custom", base, **custom)

    def make(**values):
        return dataclasses.replace(
            config, data=dataclasses.replace(config.data, **values)
        )

    return make


def load(config, max_seq_len=512):
    (task,), config = select_tasks(config)
    return loading.load(task, config.data, Numbers(), max_seq_len)


def test_load_reads_the_splits_that_are_named(own):
    path = own().data.train
    data = load(own(dev=path))
    assert (len(data.train.examples), len(data.dev.encoded)) == (40, 40)
    assert data.test is None
    assert len(load(own(dev=path, test=path)).test.examples) == 40


def test_load_refuses_files_that_are_missing(own, tmp_path):
    """A test file too, if it is named."""
    path, nowhere = own().data.train, str(tmp_path / "nowhere.jsonl")
    for values in (dict(), dict(dev=nowhere), dict(dev=path, test=nowhere)):
        with pytest.raises(
            MissingData, match=r"nowhere\.jsonl does not exist|data\.dev"
        ):
            load(own(**values))


def test_load_takes_the_same_part_each_time(own):
    path = own().data.train
    few = own(dev=path, max_train_examples=7, max_dev_examples=5)
    texts = [[e.text[0] for e in load(few).train.examples] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 7
    assert texts[0] == sorted(texts[0], key=int), "in the order of the file"
    assert texts[0] != [str(i) for i in range(7)], "but not its head"
    assert len(load(few).dev.examples) == 5
    whole = own(dev=path, max_train_examples=40, max_dev_examples=41)
    assert len(load(whole).train.examples) == len(load(whole).dev.examples) == 40
