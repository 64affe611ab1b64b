"""TensorFlow Datasets without TensorFlow: what is read, and what is said if not."""

import dataclasses

import pytest
import tensorflow_datasets as tfds
from made_up_tasks import made_up, prepare_tfds

from gpt1_jax.data import tfds as opener
from gpt1_jax.tasks import datasets
from gpt1_jax.tasks.splits import MissingData, load_split
from gpt1_jax.tasks.table import TASKS
from gpt1_jax.tasks.winograd import WINOGRAD


def load(task, split, directory):
    return load_split(task, split, source="tfds", directory=str(directory))


def test_tfds_rows_of_text_that_is_not_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(opener, "_unreachable", lambda urls: "")
    assert datasets._plain(["a", b"b", [b"c"]]) == ["a", "b", ["c"]]
    with tfds.testing.mock_data(num_examples=5):
        examples = load(TASKS["sst2"], "train", tmp_path)
    assert len(examples) == 5
    assert all(isinstance(e.text[0], str) for e in examples)


def test_tfds_unknown_dataset_is_refused(tmp_path):
    task = dataclasses.replace(TASKS["rte"], tfds={"dev": {"": "gpt1_nothing:test"}})
    with pytest.raises(
        ValueError, match="not know the dataset 'gpt1_nothing'"
    ) as raised:
        load(task, "dev", tmp_path)
    assert len(str(raised.value)) < 300


def test_tfds_unknown_split_is_refused(tmp_path):
    task = TASKS["rte"]
    prepare_tfds(task, {"dev": made_up(task, "dev")}, tmp_path)
    with pytest.raises(ValueError, match=r"(?s)glue/rte:test: .*'validation'"):
        load(task, "test", tmp_path)


def test_tfds_tfrecord_is_refused(tmp_path):
    task = TASKS["snli"]
    prepare_tfds(task, {"dev": made_up(task, "dev")}, tmp_path)
    (info,) = tmp_path.rglob("dataset_info.json")
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(ValueError, match=r"(?s)again with file_format='array_record'"):
        load(task, "dev", tmp_path)


@pytest.mark.parametrize("there", [[], ["another.csv"]])
def test_tfds_story_cloze_says_how_to_get_its_files(tmp_path, there):
    for name in there:
        (tmp_path / "downloads" / "manual").mkdir(parents=True)
        (tmp_path / "downloads" / "manual" / name).touch()
    with pytest.raises(MissingData, match=r"(?s)rocstories.*source to 'official'"):
        load(TASKS["story_cloze"], "dev", tmp_path)


def test_tfds_dataset_that_only_tensorflow_can_prepare_is_missing(tmp_path):
    with pytest.raises(MissingData, match=r"that needs TensorFlow"):
        load(TASKS["copa"], "dev", tmp_path)


def test_tfds_dataset_whose_hosts_do_not_answer_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(opener, "_unreachable", lambda urls: f"{len(urls) > 0} no.")
    with pytest.raises(MissingData, match="True no") as raised:
        load(TASKS["rte"], "train", tmp_path)
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
        load(WINOGRAD["wsc273"], "test", tmp_path)
