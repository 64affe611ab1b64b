"""The documentation on this machine, as documents."""

import gc

import pytest

from gpt1_jax.data import builtin
from gpt1_jax.data.builtin import builtin_texts
from gpt1_jax.data.named_texts import NamedText


def text_of(document: NamedText) -> str:
    return "".join(document.blocks())


def test_builtin_documents_are_collected_once_and_again_if_damaged(
    tmp_path, monkeypatch
):
    calls, said = [], []

    def collect(packages):
        assert not gc.isenabled()  # whose callback would lose a signal
        calls.append(packages)
        return {"b.module": "Text of b.", "a.module": "Text of a: naïve."}

    monkeypatch.setattr(builtin, "_collect_docstrings", collect)
    first = builtin_texts(tmp_path, print)
    again = builtin_texts(tmp_path, print)
    assert gc.isenabled()
    assert len(calls) == 1
    assert set(calls[0]) <= set(builtin.PACKAGES)
    assert [(d.name, d.stamp, d.num_bytes) for d in first] == [
        (d.name, d.stamp, d.num_bytes) for d in again
    ]
    texts = [("a.module", "Text of a: naïve.\n"), ("b.module", "Text of b.\n")]
    assert [(d.name, text_of(d)) for d in again] == texts
    (file,) = (tmp_path / "builtin").iterdir()
    for content in ("", "[]", '{"a": 3}', "[" * 10**5):
        file.write_text(content)
        found = builtin_texts(tmp_path, said.append)
        assert [(d.name, text_of(d)) for d in found] == texts
        assert "again" in said.pop(0)
        said.clear()


@pytest.mark.slow
def test_builtin_documents_are_megabytes_of_text(tmp_path, monkeypatch):
    monkeypatch.setattr(builtin, "PACKAGES", ("numpy", "scipy"))  # most of it
    documents = builtin_texts(tmp_path, print)
    assert all(d.read_digest() for d in documents)
    texts = [text_of(d) for d in documents]
    assert sum(map(len, texts)) > 5_000_000
    assert len({d.name for d in documents}) == len(documents) > 500
    "".join(texts).encode()  # no half surrogates


def test_docstrings_are_the_prose_of_a_source_file(tmp_path):
    """In whatever block they stand."""
    prose = "This sentence is long enough to count as documentation " * 2
    file = tmp_path / "module.py"
    file.write_text(
        f'"""{prose}\n\nOver two\nlines."""\n'
        "def short():\n    '''Too short.'''\n"
        f"class Code:\n    '''\n    >>> print({prose!r})\n    '''\n"
        "    path = '\\d'\n"
        f"    if A:\n        async def f(): '{prose}'\n"
    )
    found = [f"{prose.strip()}\nOver two lines.", prose.strip()]
    assert builtin._docstrings(file) == found
    for content in (b"def broken(:", b"'''caf\xe9'''", b"x = '\0'"):
        file.write_bytes(content)
        assert builtin._docstrings(file) == []
