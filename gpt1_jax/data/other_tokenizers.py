"""Tokenizers that other programs saved, above all those of the `tokenizers` library."""

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from etils import epath

from gpt1_jax.data.tokenizers import DOCUMENT_ENDS, NEWLINE, Tokenizer, texts_digest
from gpt1_jax.errors import UserError

_RULES_FILE = "tokenizer.json"
_SAVED_FILE = "huggingface.json"  # where `_RULES_FILE` is our own description
# Entries that may spell a newline, and tokens that end a document, in order of choice.
_NEWLINES = (NEWLINE, "Ċ", "<0x0A>", f"{NEWLINE}</w>")
# Scripts and symbols that few vocabularies hold.
_RARE = "\U00013000 \U0001f0a1 \u1330 \ua500"


def find(place: epath.Path) -> tuple[str, epath.Path]:
    """The kind of a tokenizer that we did not save, and where to load it from.

    Args:
      place: a `tokenizer.json` of the `tokenizers` library, by whatever name; a
        SentencePiece `.model` file; a folder with one of them; or OpenAI's folder.

    Raises:
      UserError: if the file is neither, or the folder holds several models, or one that
        we saved but no description of it.
    """
    path = place / _RULES_FILE if place.is_dir() else place
    if not path.exists():
        for ours in (place / "sentencepiece.model", place / _SAVED_FILE):
            if ours.exists():
                raise UserError(
                    f"The tokenizer folder {place} lacks {_RULES_FILE}, which gpt1_jax "
                    f"writes: put it back. If it was never there, name {ours}."
                )
        models = [each for each in place.iterdir() if each.suffix == ".model"]
        if not models:
            return "gpt1", place
        if len(models) > 1:
            raise UserError(
                f"{place} holds {len(models)} .model files; name one of them."
            )
        path = models[0]
    if path.suffix == ".model":
        return "sentencepiece", path
    try:
        rules = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        rules = None
    if isinstance(rules, dict) and isinstance(rules.get("model"), dict):
        return "huggingface", path
    hint = ""
    if isinstance(rules, dict) and "content_digest" in rules:
        hint = f" It describes a tokenizer that gpt1_jax saved: name {path.parent}."
    raise UserError(
        f"{path} is neither a {_RULES_FILE} of the `tokenizers` library nor a .model "
        f"file of SentencePiece.{hint}"
    )


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, by the rules in its file.

    The ids of a line are the library's, and those of transformers, without the special
    tokens that stand around a text. Truncation, padding and BPE dropout that the file
    asks for are switched off. A special token's name in a text is read as that token,
    as transformers does by default.

    A newline is the vocabulary's own if it has one (byte-level: `Ċ`), otherwise the
    token that ends documents. It stands between lines, so entries of several newlines
    are not used. `vocab_size` is one more than the highest id, added tokens included;
    ids without an entry are never produced.
    """

    kind = "huggingface"
    marks_word_ends = False  # most mark where words begin

    def __init__(self, content: bytes):
        self._content = content  # of the file
        self._rules: Any = tokenizers.Tokenizer.from_buffer(content)
        self._rules.no_truncation()
        self._rules.no_padding()
        if getattr(self._rules.model, "dropout", None):
            self._rules.model.dropout = None
        entries = self._rules.get_vocab(with_added_tokens=True)
        self.vocab_size = max(entries.values(), default=-1) + 1
        if self.vocab_size > 2 * len(entries):
            raise UserError(
                f"it has {len(entries):,} entries with ids up to {self.vocab_size:,}; "
                "number them from 0 on."
            )
        self.newline_id = _find_newline(self._rules)
        normalizer = self._rules.normalizer
        self.lowercase = "A" not in (
            normalizer.normalize_str("A") if normalizer else "A"
        )
        self.digest = texts_digest(self.kind, content.decode())
        try:
            self.encode(_RARE)
        except Exception as error:  # the library raises no other
            raise UserError(
                f"it has no token for unknown characters ({error}); add one to its "
                "model, as unk_token."
            ) from error

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for number, line in enumerate(text.split(NEWLINE)):
            ids += [self.newline_id] * (number > 0)
            ids += self._rules.encode(line, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return NEWLINE.join(
            self._rules.decode(line, skip_special_tokens=False)
            for line in self.lines(ids)
        )

    def _contents(self) -> dict[str, bytes]:
        return {_SAVED_FILE: self._content}

    @classmethod
    def load(cls, place: epath.Path) -> "HuggingFaceTokenizer":
        file = place / _SAVED_FILE if place.is_dir() else place
        return cls(file.read_bytes())


def _find_newline(rules: Any) -> int:
    """The id that stands for a newline."""
    for entry in _NEWLINES:
        token = rules.token_to_id(entry)
        if token is not None:
            spelled = rules.decode([token], skip_special_tokens=False)
            if spelled.strip(" ") == NEWLINE:
                return token
    ends = [
        token for token in map(rules.token_to_id, DOCUMENT_ENDS) if token is not None
    ]
    if not ends:
        raise UserError(
            "its vocabulary has no newline and none of the tokens "
            f"{', '.join(DOCUMENT_ENDS)}, one of which would stand for it. Add one "
            r"to the file, with add_special_tokens(['<|endoftext|>']) of tokenizers."
        )
    return ends[0]
