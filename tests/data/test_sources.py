"""`find_documents`: both splits of each source."""

import os

import pytest

from gpt1_jax.data import builtin, sources
from gpt1_jax.data.documents import Document
from gpt1_jax.data.sources import find_documents


@pytest.fixture
def books(tmp_path):
    (tmp_path / "books").mkdir()
    for name in "abc":
        (tmp_path / "books" / f"{name}.txt").write_text(f"book {name}\n")
    return tmp_path / "books"


def names(documents):
    return [os.path.basename(document.name) for document in documents]


def test_find_documents_of_both_splits(books, tmp_path, data_config):
    config = data_config(train=f"{books}/[ab].txt", valid=f"{books}/c.txt")
    train, valid = find_documents(config, tmp_path, print)
    assert (names(train), names(valid)) == (["a.txt", "b.txt"], ["c.txt"])


def test_find_documents_builtin_has_no_validation(tmp_path, data_config, monkeypatch):
    monkeypatch.setattr(builtin, "_collect_docstrings", lambda _: {"a": "Text."})
    train, valid = find_documents(
        data_config(source="builtin", train=""), tmp_path, print
    )
    assert (names(train), valid) == (["a"], [])


@pytest.mark.parametrize("how", ["same path", "link", "relative path"])
def test_find_documents_refuses_a_file_named_for_both_splits(
    books, tmp_path, data_config, monkeypatch, how
):
    monkeypatch.chdir(books)
    valid = {"same path": books / "b.txt", "link": tmp_path / "link.txt"}
    (tmp_path / "link.txt").symlink_to(books / "b.txt")
    config = data_config(train=str(books), valid=str(valid.get(how, "b.txt")))
    with pytest.raises(ValueError, match=r"b\.txt|link\.txt") as raised:
        find_documents(config, tmp_path, print)
    assert "config.data.train" in str(raised.value)
    assert "config.data.valid" in str(raised.value)


@pytest.mark.parametrize(("shared", "refused"), [(3, True), (0, False)])
def test_find_documents_refuses_rows_in_both_splits(
    tmp_path, data_config, monkeypatch, shared, refused
):
    document = Document("a[0]", "", 1, lambda: iter(()))
    monkeypatch.setattr(sources, "tfds_documents", lambda *_: [document])
    monkeypatch.setattr(sources, "shared_rows", lambda *_: shared)
    config = data_config(source="tfds", train="a:train", valid="a:train[9%:]")
    if not refused:
        assert find_documents(config, tmp_path, print) == ([document], [document])
        return
    with pytest.raises(ValueError, match="3 rows in common") as raised:
        find_documents(config, tmp_path, print)
    assert "a:train[9%:]" in str(raised.value)
