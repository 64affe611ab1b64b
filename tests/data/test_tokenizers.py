"""Saving and loading tokenizers of either kind, sound and damaged."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from gpt1_jax.data import tokenizers
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError

# --- checksums ----------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, sentencepiece_tokenizer) -> Path:
    sentencepiece_tokenizer.save(tmp_path / "saved")
    return tmp_path / "saved"


def test_save_records_the_checksum_of_each_file(saved):
    description = json.loads((saved / "tokenizer.json").read_text())
    data = (saved / "sentencepiece.model").read_bytes()
    checksum = hashlib.sha256(data).hexdigest()
    assert description["files"] == {"sentencepiece.model": checksum}
    assert len(list(saved.iterdir())) == 2


def test_save_leaves_nothing_half_made(tmp_path, sentencepiece_tokenizer, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(tokenizers, "write_json", fail)
    with pytest.raises(OSError, match="no space"):
        sentencepiece_tokenizer.save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_load_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no tokenizer folder"):
        load_tokenizer(tmp_path / "nowhere")


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
    version = sound.index(whole["gpt1_jax"].encode())  # whose change changes nothing
    for at in {*range(len(sound))} - {*range(version, version + len("1.0.0"))}:
        changed = bytearray(sound)
        changed[at] ^= 1
        path.write_bytes(changed)
        try:
            same = json.loads(changed) == whole  # white space
        except ValueError:
            same = False
        if not same:
            with pytest.raises(ValueError, match=re.escape(str(saved))):
                load_tokenizer(saved)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\xff\x00", b"[" * 10**5, b'{"kind": {"": []}}']
)
def test_load_of_another_description_is_one_error(saved, content):
    (saved / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(saved))):
        load_tokenizer(saved)


def test_special_tokens_come_after_the_vocabulary():
    assert tokenizers.special_tokens(40478) == (40478, 40479, 40480)
    assert len(tokenizers.SpecialTokens._fields) == tokenizers.NUM_SPECIAL_TOKENS
