"""GPT-1's own tokenizer, from the files that OpenAI released."""

import functools
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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

    `encode_plainly` takes these steps one after the other. `encode` gives the same ids
    many times as fast: it remembers the ids of chunks, the pieces of text between white
    space, and skips ftfy where there is nothing to repair.
    """

    kind = "gpt1"
    seconds_to_load = 5.0  # with spaCy, which loads PyTorch if it is there
    _ENCODER, _MERGES = "encoder_bpe_40000.json", "vocab_40000.bpe"

    def __init__(self, encoder_text: str, merges_text: str):
        with from_extra("openai", "GPT-1's own tokenizer, which uses spaCy,"):
            import spacy  # noqa: F401
        self._files = {self._ENCODER: encoder_text, self._MERGES: merges_text}
        vocabulary: dict[str, int] = json.loads(encoder_text)
        lines = merges_text.split("\n")[1:-1]
        merges = [(left, right) for left, right in map(str.split, lines)]
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise UserError(f"{self._ENCODER}: ids are not 0..{len(vocabulary) - 1}.")
        self._symbols = {index: symbol for symbol, index in vocabulary.items()}
        self.vocab_size = len(vocabulary)
        self.newline_id = vocabulary[NEWLINE + "</w>"]
        self.digest = texts_digest(self.kind, encoder_text, merges_text)
        self.bpe = tokenizers.models.BPE(
            vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>"
        )
        self._split_words, self._split_chunks, self._replaced = _spacy_tokenizers()
        self._ids: dict[str, tuple[int, ...]] = {}  # of chunks
        self._in_context: set[str] = set()  # chunks that spaCy must see in their line
        self._num_chars = 0  # in what is remembered

        @functools.cache
        def encode_word(word: str) -> tuple[int, ...]:
            if word.startswith(NEWLINE):  # spaCy's token "\n " is the newline entry
                return (self.newline_id,)
            return tuple(token.id for token in self.bpe.tokenize(word.lower()))

        self._encode_word = encode_word

    def encode(self, text: str) -> list[int]:
        lines = [line.split() for line in _repaired_lines(text)]
        self._learn(set().union(*lines))
        ids: list[int] = []
        for chunks in filter(None, lines):
            ids.append(self.newline_id)
            if self._in_context.isdisjoint(chunks):
                ids.extend(self._known_ids(chunks))
            else:
                ids.extend(self._encode_standard(standardize_text(" ".join(chunks))))
        return ids[1:]

    def encode_plainly(self, text: str) -> list[int]:
        """Encodes as `encode` does, step by step and slowly."""
        return self._encode_standard(standardize_text(ftfy.fix_text(text)))

    def _encode_standard(self, text: str) -> list[int]:
        words = (word.text for word in self._split_words(text))
        return list(itertools.chain.from_iterable(map(self._encode_word, words)))

    # --- chunks whose ids are remembered ---

    def _known_ids(self, chunks: Iterable[str]) -> Iterator[int]:
        return itertools.chain.from_iterable(map(self._ids.__getitem__, chunks))

    def _learn(self, chunks: set[str]) -> None:
        """Finds the ids of those chunks that are not known."""
        if self._num_chars > _MOST_CHARS:
            self._ids.clear()
            self._in_context.clear()
            self._encode_word.cache_clear()
            self._num_chars = 0
        parts = {c: _split_punctuation(c) for c in chunks.difference(self._ids)}
        new = set().union(*parts.values()).difference(self._ids)
        for part, words in self._words_of(new):
            ids = map(self._encode_word, words)
            self._ids[part] = tuple(itertools.chain.from_iterable(ids))
            if not self._replaced.isdisjoint((*zip(words), *itertools.pairwise(words))):
                self._in_context.add(part)
        for chunk, of_chunk in parts.items():
            self._ids[chunk] = tuple(self._known_ids(of_chunk))
            if not self._in_context.isdisjoint(of_chunk):
                self._in_context.add(chunk)
        self._num_chars += sum(map(len, parts))

    def _words_of(self, chunks: set[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields each chunk and its words, by one call of spaCy for all of them."""
        # No affix that spaCy knows is made of letters alone.
        letters = {chunk for chunk in chunks if chunk.isascii() and chunk.isalpha()}
        whole = letters.difference(self._split_words.rules)
        yield from ((chunk, (chunk,)) for chunk in whole)
        others = chunks - whole
        words = (word.text for word in self._split_chunks(NEWLINE.join(others)))
        groups = itertools.groupby(words, NEWLINE.__eq__)
        of_each = (tuple(group) for is_between, group in groups if not is_between)
        yield from zip(others, of_each, strict=True)

    def decode(self, ids: Sequence[int]) -> str:
        text = "".join(self._symbols[int(token)] for token in ids)
        return re.sub(" ?\n ?", NEWLINE, text.replace("</w>", " ")).strip(" ")

    def _contents(self) -> dict[str, bytes]:
        return {name: text.encode() for name, text in self._files.items()}

    @classmethod
    def load(cls, directory: epath.Path) -> "GPT1Tokenizer":
        files = [directory / name for name in (cls._ENCODER, cls._MERGES)]
        if missing := [file.name for file in files if not file.exists()]:
            raise FileNotFoundError(
                f"{directory} lacks {' and '.join(missing)}; config.tokenizer.path "
                "must name the `model/` folder of openai/finetune-transformer-lm."
            )
        return cls(*(file.read_text("utf-8") for file in files))


def _repaired_lines(text: str) -> Iterator[str]:
    """The lines of `ftfy.fix_text(text)`, with dashes and the like in ASCII.

    ftfy works line by line. If a line is ASCII but for `_QUOTES` and `_ASCII`, and
    holds neither ampersands nor control characters, ftfy straightens its quotes only.
    """
    has_tags = False  # from the first "<" on, ftfy leaves HTML entities as they are
    in_ascii = _replace(text, _QUOTES | _ASCII).split(NEWLINE)
    for raw, line in zip(io.StringIO(text), in_ascii, strict=False):
        if line.isascii() and line.isprintable() and "&" not in line:
            yield line
        else:
            fixed = ftfy.fix_text(raw, unescape_html=False if has_tags else "auto")
            yield from _replace(fixed, _ASCII).split(NEWLINE)
        has_tags = has_tags or "<" in raw


def standardize_text(text: str) -> str:
    r"""Spacing and punctuation as the released `text_standardize` leaves them.

    Dashes, ellipsis and acute accent become ASCII; runs of the listed punctuation
    get a space on both sides; white space around a newline becomes `" \n "`. The
    backslash is not spaced: in the released code its pattern escapes the plus sign.
    """
    text = _PUNCTUATION.sub(r" \1 ", _replace(text, _ASCII))
    # Only from the start of white space: otherwise long runs take quadratic time.
    text = re.sub(r"(?<!\s)\s*\n\s*", " \n ", text)
    return re.sub(r"[^\S\n]+", " ", text).strip()


def _split_punctuation(chunk: str) -> list[str]:
    """`standardize_text(chunk).split()`, if the chunk needs nothing but spaces."""
    parts = _PUNCTUATION.split(chunk)
    del parts[2::3]  # what the inner group matched
    return list(filter(None, parts))


def _replace(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


_ASCII = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
_QUOTES = {"‘": "'", "’": "'", "“": '"', "”": '"'}
_PUNCTUATION = re.compile(r"""(([-~!";?+,)(/*\[\]}{|_])\2*)""")
_MOST_CHARS = 4_000_000  # of chunks that a process remembers: under 200 MB


@functools.cache
def _spacy_tokenizers() -> tuple[Any, Any, set[tuple[str, ...]]]:
    """spaCy's English tokenizer, and what it does to a chunk whatever its neighbours.

    Once all chunks are split, spaCy's tokenizer makes a last pass: it finds exceptions
    such as "'em" that were split into several words, and puts their own words in place
    of those. Neighbours matter only in this pass: an exception that seems to begin in
    one chunk and end in the next is not replaced, but hides a shorter one that it
    overlaps.

    Returns:
      The tokenizer; the tokenizer without its last pass; and the words that the pass
      replaces, the first two or the only one of each exception. A chunk that holds none
      of these is split alike by both tokenizers, whatever its neighbours.
    """
    import spacy
    from spacy.symbols import ORTH

    whole: Any = spacy.blank("en").tokenizer
    is_made = False

    def without_last_pass(rules: dict | None) -> Any:
        # The pass is for exceptions with an affix; as they are added, none is found.
        return spacy.tokenizer.Tokenizer(
            spacy.Vocab(),
            rules,
            lambda text: whole.prefix_search(text) if is_made else None,
            lambda text: whole.suffix_search(text) if is_made else None,
            lambda text: whole.infix_finditer(text) if is_made else (),
            whole.token_match,
            whole.url_match,
        )

    by_affixes, with_exceptions = map(without_last_pass, (None, whole.rules))
    is_made = True
    replaced = set()
    for text, words in whole.rules.items():
        found = tuple(word.text for word in by_affixes(text))
        if found != tuple(word[ORTH] for word in words):
            replaced.add(found[:2])
    return whole, with_exceptions, replaced
