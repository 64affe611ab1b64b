"""The splits of a task, read and encoded."""

import dataclasses

import pytest
from made_up_tokenizer import Numbers
from tiny_tasks import finetune_config, read_lines, write_lines

from gpt1_jax.tasks import loading
from gpt1_jax.tasks.loading import describe_long
from gpt1_jax.tasks.rows import MissingData
from gpt1_jax.tasks.selection import select_tasks


@pytest.fixture
def own(tmp_path):
    """`own(**data)`: a task of two texts, 40 examples for training and for dev."""
    base = {"init_from": "runs/pretrain/tiny"}
    for split, b in (("train", "2"), ("dev", "3")):
        path = tmp_path / f"{split}.jsonl"
        rows = [{"a": f"{i}", "b": b, "label": "ny"[i % 2]} for i in range(40)]
        write_lines(path, rows)
        base[f"data.{split}"] = str(path)
    custom = dict(
        custom__head="classification",
        custom__text=("a", "b"),
        custom__labels=("n", "y"),
    )
    config = finetune_config("custom", base, **custom)

    def make(**values):
        return dataclasses.replace(
            config, data=dataclasses.replace(config.data, **values)
        )

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


def load(config, max_seq_len=512):
    (task,), config = select_tasks(config)
    return loading.load(task, config.data, Numbers(), max_seq_len)


def test_load_reads_the_splits_that_are_named(own):
    path = own().data.train
    data = load(own())
    assert (len(data.train.examples), len(data.dev.encoded)) == (40, 40)
    assert data.test is None
    assert len(load(own(test=path)).test.examples) == 40


@pytest.mark.parametrize("how", ["same file", "reversed table"])
def test_a_dev_split_that_is_the_training_split_is_refused(own, tmp_path, how):
    """However few of them are taken."""
    path = own().data.train
    if how != "same file":
        cells = ["\t".join(row.values()) + "\n" for row in read_lines(path)[::-1]]
        path = str(tmp_path / "dev.tsv")
        (tmp_path / "dev.tsv").write_text("".join(["a\tb\tlabel\n", *cells]))
    with pytest.raises(ValueError, match=r"dev split .* training split.*data\.dev"):
        load(own(dev=path, max_dev_examples=3))


def test_load_refuses_files_that_are_missing(own, tmp_path):
    """A test file too, if it is named."""
    nowhere = str(tmp_path / "nowhere.jsonl")
    for values in (dict(dev=""), dict(dev=nowhere), dict(test=nowhere)):
        with pytest.raises(
            MissingData, match=r"nowhere\.jsonl does not exist|data\.dev"
        ):
            load(own(**values))


def test_load_takes_the_same_part_each_time(own):
    path = own().data.train
    few = own(max_train_examples=7, max_dev_examples=5)
    texts = [[e.text[0] for e in load(few).train.examples] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 7
    assert texts[0] == sorted(texts[0], key=int), "in the order of the file"
    assert texts[0] != [str(i) for i in range(7)], "but not its head"
    assert len(load(few).dev.examples) == 5
    test = load(own(test=path, max_test_examples=3)).test
    assert len(test.examples) == len(test.encoded) == 3
    whole = own(max_train_examples=40, max_dev_examples=41)
    assert len(load(whole).train.examples) == len(load(whole).dev.examples) == 40


def test_examples_that_were_cut_are_described(own, tmp_path):
    texts = ("1 2 3 4 5 6", "1 2", "1 2 3 4 5 6 7")
    path, other = write_long(tmp_path, texts)
    assert describe_long(load(own()), 512) == ""
    cut = describe_long(load(own(dev=path), 12), 12)
    assert cut == "2 of 3 dev examples were cut to fit 12 tokens, 4 for each text."
    data = load(own(train=path, test=path), 12)
    cut = describe_long(data, 12)
    assert cut == (
        "2 of 3 training and 2 of 3 test examples were cut to fit 12 tokens, 4 for "
        "each text."
    )
    data = load(own(train=path, dev=other, test=path), 12)
    assert describe_long(data, 12) == (
        "2 of 3 training, 2 of 3 dev and 2 of 3 test examples were cut to fit 12 "
        "tokens, 4 for each text."
    )


def test_long_examples_are_left_out_on_request(own, tmp_path):
    """Before a part is taken, and never from a test split."""
    texts = ["1 2 3 4 5 6", "1 2", "1 2 3 4 5 6 7", "3", "4 5"]
    path, other = write_long(tmp_path, texts)
    paths = dict(train=path, dev=other, test=path)
    data = load(own(**paths, drop_long=True, max_train_examples=2), 12)
    assert len(data.train.examples) == len(data.train.encoded) == 2
    assert [example.text[0] for example in data.dev.examples] == ["1 2", "3", "4 5"]
    assert data.train.encoded.num_cut == data.dev.encoded.num_cut == 0
    assert len(data.test.examples) == 5 and data.test.encoded.num_cut == 2
    assert describe_long(data, 12) == (
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
        load(own(**paths, drop_long=True), 12)
    assert len(encoded) == 3 * 2 * len(texts), "each text of each file once"
    whole = load(own(**paths, drop_long=True))
    assert len(whole.dev.examples) == 5 and describe_long(whole, 512) == ""
    write_long(tmp_path, texts[:1])
    with pytest.raises(ValueError, match=r"All 1 training examples .* longer than 12"):
        load(own(**paths, drop_long=True), 12)
