"""TFDS without TensorFlow: what is opened, and what is said of the rest."""

import functools
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpt1_jax.data.named_texts import NamedText
from gpt1_jax.data.tfds import find_text, open_dataset, tfds_texts
from gpt1_jax.errors import UserError

KEY = "config.data.train"


def text_of(document: NamedText) -> str:
    return "".join(document.blocks())


ROWS = ["One row.", "Two\nlines", "naïve café", "", "The last."]


@functools.cache  # TFDS registers a name once
def rows_builder() -> type:
    """The TFDS builder of a dataset `gpt1_rows`, which holds `self.rows`."""
    import tensorflow_datasets as tfds

    text, label = tfds.features.Text(), tfds.features.ClassLabel(num_classes=5)
    features = {"text": text, "latin": tfds.features.Text(), "label": label}

    class Gpt1Rows(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            shape = tfds.features.FeaturesDict(features)
            how = {"features": shape, "disable_shuffling": True}
            return tfds.core.DatasetInfo(builder=self, **how)

        def _split_generators(self, dl_manager):
            return {
                "train": self._generate_examples(self.rows),
                "test": self._generate_examples(self.rows[:2]),
            }

        def _generate_examples(self, rows):
            for index, text in enumerate(rows):
                latin = text.encode("latin1")
                yield index, {"text": text, "latin": latin, "label": index}

    return Gpt1Rows


def prepare_tfds(directory: Path, rows: list[str]) -> None:
    """Has TFDS prepare the rows as ArrayRecord."""
    builder = rows_builder()(data_dir=directory, file_format="array_record")
    builder.rows = rows
    builder.download_and_prepare()


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("tfds")
    prepare_tfds(directory, ROWS)
    return directory


@pytest.fixture
def rows_of(tfds_dir):
    """`rows_of(split)`: the documents of a split of the prepared dataset."""

    def find(split="train", feature="text", directory=tfds_dir):
        return tfds_texts(f"gpt1_rows:{split}", feature, str(directory), KEY)

    return find


def test_tfds_documents_are_the_rows(rows_of):
    documents = rows_of()
    assert [text_of(d) for d in documents] == [row + "\n" for row in ROWS]
    assert len({d.name for d in documents}) == len(ROWS)
    assert sum(d.num_bytes for d in documents) > 0
    assert [bool(d.read_digest()) for d in documents] == [bool(row) for row in ROWS]
    part = rows_of("train[1:3]")
    assert [text_of(d) for d in part] == [row + "\n" for row in ROWS[1:3]]
    assert len({d[0].stamp for d in (rows_of("test"), part, documents)}) == 3


def test_tfds_rows_of_other_bytes_than_utf_8_are_refused_by_number(rows_of):
    with pytest.raises(UserError, match="gpt1_rows:train, row 2"):
        rows_of(feature="latin")[2].read_digest()  # which is not UTF-8


def test_the_same_rows_have_the_same_names_and_digests_and_others_another_stamp(
    rows_of, tfds_dir, tmp_path
):
    """So a run goes on with another download."""
    shutil.copytree(tfds_dir, tmp_path / "copy", copy_function=shutil.copy)
    prepare_tfds(tmp_path / "others", [*ROWS[:4], "Another end."])
    one, copied = (
        [(each.name, each.read_digest()) for each in rows_of(directory=directory)]
        for directory in (tfds_dir, tmp_path / "copy")
    )
    assert one == copied
    others = rows_of(directory=tmp_path / "others")
    assert others[0].name == one[0][0]
    assert others[0].stamp != rows_of()[0].stamp


def test_tfds_documents_are_ranges_of_rows_when_there_are_many(rows_of, monkeypatch):
    monkeypatch.setattr("gpt1_jax.data.tfds._MAX_TEXTS", 2)
    assert [text_of(d) for d in rows_of()] == [
        "".join(row + "\n" for row in rows) for rows in (ROWS[:3], ROWS[3:])
    ]


def test_tfds_documents_can_be_read_where_the_builder_is_not_defined(rows_of, tfds_dir):
    """A fresh process knows the dataset only by its files."""
    program = f"""
        import json, sys
        from gpt1_jax.data.tfds import tfds_texts
        documents = tfds_texts("gpt1_rows:train", "text", {str(tfds_dir)!r}, "key")
        texts = ["".join(d.blocks()) for d in documents]
        print(json.dumps([texts, documents[0].stamp, "tensorflow" in sys.modules]))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == [[row + "\n" for row in ROWS], rows_of()[0].stamp, False]


@pytest.mark.parametrize(
    ("spec", "feature", "message"),
    [
        ("gpt1_rows", "text", "must be NAME:SPLIT"),
        ("gpt1_rows:validation", "text", r"'validation'.*'train', 'test'"),
        ("gpt1_rows:train[:0]", "text", r"train\[:0\]"),
        ("../../x:train", "text", r"\.\./\.\./x"),
        ("gpt1_nothing:train", "text", "not know the dataset 'gpt1_nothing'"),
        ("gpt1_rows:train", "texts", r"tfds_feature='texts'.*label, latin, text"),
        ("gpt1_rows:train", "label", r"tfds_feature='label' is not a text feature"),
    ],
)
def test_tfds_documents_wrong_name_split_or_feature_is_named(
    tfds_dir, spec, feature, message
):
    with pytest.raises(UserError, match=message) as raised:
        tfds_texts(spec, feature, str(tfds_dir), KEY)
    message = str(raised.value)
    assert "config.data.t" in message and "\n" not in message and len(message) < 300


def test_tfds_documents_prepared_as_tfrecord_are_refused(rows_of, tfds_dir, tmp_path):
    shutil.copytree(tfds_dir / "gpt1_rows", tmp_path / "gpt1_rows")
    info = tmp_path / "gpt1_rows" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(UserError, match="prepare the dataset again with file_format"):
        rows_of(directory=tmp_path)


def test_open_dataset_says_that_it_prepares_what_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_builder(), "rows", ROWS, raising=False)
    said = []
    how = {"where": "data", "say": said.append}
    for _ in range(2):
        opened = open_dataset("gpt1_rows:train[1:2]", str(tmp_path), **how)
        assert [row["text"].decode() for row in opened.rows] == ROWS[1:2]
    (line,) = said
    assert "gpt1_rows is not prepared" in line and str(tmp_path) in line


def test_rows_that_are_named_for_both_splits_are_refused(
    data_config, tfds_dir, tmp_path
):
    def find(valid):
        names = {"train": "gpt1_rows:train", "valid": f"gpt1_rows:{valid}"}
        config = data_config(source="tfds", tfds_data_dir=str(tfds_dir), **names)
        return [len(texts) for texts in find_text(config, tmp_path, print)]

    assert find("test") == [5, 2]
    with pytest.raises(UserError, match=r"train\[40%:\].* 3 rows in common"):
        find("train[40%:]")


def test_a_class_that_is_not_of_tfds_is_not_imported(tfds_dir, tmp_path, monkeypatch):
    """Whoever made a dataset's files does not decide which code runs."""
    folder = shutil.copytree(tfds_dir, tmp_path / "tfds")
    (path,) = folder.rglob("features.json")
    features = json.loads(path.read_text())
    features["featuresDict"]["features"]["text"]["pythonClassName"] = "planted.Feature"
    path.write_text(json.dumps(features))
    (tmp_path / "planted.py").write_text(
        f"open({str(tmp_path / 'proof')!r}, 'w').close()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"names the class 'planted\.Feature'.*Prepare"):
        open_dataset("gpt1_rows:train", str(folder), where=KEY)
    assert not (tmp_path / "proof").exists()
