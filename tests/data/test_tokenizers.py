"""Saving and loading tokenizers of either kind, sound and damaged."""

import json
import re
from pathlib import Path

import pytest

from gpt1_jax.data import tokenizers
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError


@pytest.fixture
def saved(tmp_path, sentencepiece_tokenizer) -> Path:
    sentencepiece_tokenizer.save(tmp_path / "saved")
    return tmp_path / "saved"


def test_save_leaves_all_or_nothing(tmp_path, sentencepiece_tokenizer, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(tokenizers, "write_json", fail)
        sentencepiece_tokenizer.save(tmp_path / "saved")
    with pytest.raises(FileNotFoundError, match="no tokenizer folder"):
        load_tokenizer(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 479}, "another vocabulary size"),
        ({"content_digest": "0"}, "another content digest"),
        ({"kind": "bert"}, "'bert'.*sentencepiece, gpt1"),
        ({"files": {"b.model": "0"}}, r"lacks b\.model"),
        ({"format": 2}, r"a saved tokenizer .* reads format 1\. Use"),
    ],
)
def test_load_of_another_description_is_refused(saved, values, message):
    description = json.loads((saved / "tokenizer.json").read_text())
    (saved / "tokenizer.json").write_text(json.dumps({**description, **values}))
    with pytest.raises(UserError, match=message):
        load_tokenizer(saved)


def test_load_finds_a_changed_bit_anywhere_in_the_model(saved):
    path = saved / "sentencepiece.model"
    sound = path.read_bytes()
    for at in range(0, len(sound), len(sound) // 20):
        changed = bytearray(sound)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"is damaged: .*model that differs") as e:
            load_tokenizer(saved)
        assert str(saved) in str(e.value)


def test_load_finds_any_change_of_the_description(saved):
    path = saved / "tokenizer.json"
    sound = path.read_bytes()
    whole = json.loads(sound)
    contents = [b"", b"[]", b"{}", b"\xff\x00", b"[" * 10**5, b'{"kind": {"": []}}']
    version = sound.index(whole["gpt1_jax"].encode())  # whose change changes nothing
    for at in {*range(len(sound))} - {*range(version, version + len("1.0.0"))}:
        if not sound[at : at + 1].isspace():
            changed = bytes([sound[at] ^ 1])
            contents.append(sound[:at] + changed + sound[at + 1 :])
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(str(saved))):
            load_tokenizer(saved)
