"""GPT-1's own tokenizer, from the files that OpenAI released."""

import functools
import json
import re
from collections.abc import Sequence

import ftfy
import tokenizers
from etils import epath

from gpt1_jax.data.tokenizers import NEWLINE, Tokenizer, texts_digest
from gpt1_jax.errors import UserError, from_extra


class GPT1Tokenizer(Tokenizer):
    """The tokenizer of the released model (text_utils.py), id for id.

    Text is repaired by ftfy, standardised, split into words by spaCy's English
    rules, lower-cased word by word, and each word is merged from its characters by
    the byte-pair encoding in OpenAI's files. Needs the extra `openai` (spaCy).
    """

    kind = "gpt1"
    _ENCODER, _MERGES = "encoder_bpe_40000.json", "vocab_40000.bpe"

    def __init__(self, encoder_text: str, merges_text: str):
        with from_extra("openai", "GPT-1's own tokenizer, which uses spaCy,"):
            import spacy
        self._files = {self._ENCODER: encoder_text, self._MERGES: merges_text}
        vocabulary: dict[str, int] = json.loads(encoder_text)
        merges = [
            (left, right)
            for left, right in (line.split() for line in merges_text.split("\n")[1:-1])
        ]
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise UserError(f"{self._ENCODER}: ids are not 0..{len(vocabulary) - 1}.")
        self._symbols = {index: symbol for symbol, index in vocabulary.items()}
        self.vocab_size = len(vocabulary)
        self.newline_id = vocabulary[NEWLINE + "</w>"]
        self.digest = texts_digest(self.kind, encoder_text, merges_text)
        self._split_words = spacy.blank("en").tokenizer
        self.bpe = tokenizers.models.BPE(
            vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>"
        )

        @functools.lru_cache(maxsize=1_000_000)
        def encode_word(word: str) -> tuple[int, ...]:
            if word.startswith(NEWLINE):  # spaCy's token "\n " is the newline entry
                return (self.newline_id,)
            return tuple(token.id for token in self.bpe.tokenize(word))

        self._encode_word = encode_word

    def encode(self, text: str) -> list[int]:
        text = standardize_text(ftfy.fix_text(text))
        ids: list[int] = []
        for word in self._split_words(text):
            ids.extend(self._encode_word(word.text.lower()))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text = "".join(self._symbols[int(token)] for token in ids)
        return re.sub(" ?\n ?", NEWLINE, text.replace("</w>", " ")).strip(" ")

    def _contents(self) -> dict[str, bytes]:
        return {name: text.encode() for name, text in self._files.items()}

    @classmethod
    def load(cls, directory: epath.Path) -> "GPT1Tokenizer":
        missing = [
            n for n in (cls._ENCODER, cls._MERGES) if not (directory / n).exists()
        ]
        if missing:
            raise FileNotFoundError(
                f"{directory} lacks {' and '.join(missing)}; config.tokenizer.path "
                "must name the `model/` folder of openai/finetune-transformer-lm."
            )
        return cls(
            *((directory / n).read_text("utf-8") for n in (cls._ENCODER, cls._MERGES))
        )


def standardize_text(text: str) -> str:
    r"""Spacing and punctuation as the released `text_standardize` leaves them.

    Dashes, ellipsis and acute accent become ASCII; runs of the listed punctuation
    get a space on both sides; white space around a newline becomes `" \n "`. The
    backslash is not spaced: in the released code its pattern escapes the plus sign.
    """
    for old, new in _ASCII.items():
        text = text.replace(old, new)
    text = _PUNCTUATION.sub(r" \1 ", text)
    # Only from the start of white space: otherwise long runs take quadratic time.
    text = re.sub(r"(?<!\s)\s*\n\s*", " \n ", text)
    return re.sub(r"[^\S\n]+", " ", text).strip()


_ASCII = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
_PUNCTUATION = re.compile(
    "(" + "|".join(re.escape(symbol) + "+" for symbol in '-~!";?+,)(/*[]}{|_') + ")"
)
