"""The two tokenizers behind one small interface.

`SentencePieceTokenizer` is a byte-pair encoding trained on the corpus, the default.
`GPT1Tokenizer` is the released one: ftfy, a handful of regular expressions, spaCy
words, OpenAI's 40,000 merges. Both are lower-case, end words with a marker and keep
the newline as a token of its own.

Text is a sequence of lines: the ids of a text are those of its lines joined by the
newline id, so a document may be encoded in pieces cut at line ends.
"""

import abc
import functools
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import ftfy
import sentencepiece
import tokenizers

NEWLINE = "\n"
_DESCRIPTION_FILE = "tokenizer.json"


NUM_SPECIAL_TOKENS = 3


class SpecialTokens(NamedTuple):
    """Ids of the tokens that exist from fine-tuning on, after the vocabulary."""

    start: int
    delimiter: int
    extract: int


def special_tokens(vocab_size: int) -> SpecialTokens:
    """The special tokens after a tokenizer's `vocab_size` entries: 40478 to 40480."""
    return SpecialTokens(vocab_size, vocab_size + 1, vocab_size + 2)


class Tokenizer(abc.ABC):
    """Text to ids and back; `len(ids)` never depends on how text was cut at lines."""

    kind: str
    vocab_size: int
    newline_id: int
    fingerprint: str  # of the mapping from text to ids; equal means interchangeable

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of `text`; what the vocabulary cannot spell becomes `<unk>`, id 0."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, lower-case; spacing is the tokenizer's, not the original's."""

    @abc.abstractmethod
    def _save_files(self, directory: Path) -> None: ...

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes all that `load` needs into `directory`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._save_files(directory)
        description = {
            "kind": self.kind,
            "vocab_size": self.vocab_size,
            "fingerprint": self.fingerprint,
        }
        (directory / _DESCRIPTION_FILE).write_text(json.dumps(description, indent=2))


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece byte-pair encoding, set up to resemble GPT-1's.

    Case-folded; the word boundary is a suffix as GPT-1's `</w>`; no start, end or
    padding piece; id 0 is `<unk>`; the newline is a user-defined piece.

    Every character survives. All of printable ASCII is in the vocabulary, whether the
    corpus uses it or not, and other characters that it lacks are spelled in UTF-8
    bytes, so `<unk>` never occurs. Only normalisation changes text: NFKC, case
    folding, runs of white space (and U+2581, SentencePiece's mark of a space) to one
    space, no control or replacement characters. Tokenizers saved by earlier versions
    have no bytes: they make rare characters `<unk>`.
    """

    kind = "sentencepiece"
    _FILE = "sentencepiece.model"

    def __init__(self, model: bytes):
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = self._processor.vocab_size()
        self.newline_id = self._processor.piece_to_id(NEWLINE)
        if self.newline_id == self._processor.unk_id():
            raise ValueError(
                "This SentencePiece model has no newline piece; train one with "
                "gpt1_jax, or with user_defined_symbols='\\n'."
            )
        pieces = [self._processor.id_to_piece(i) for i in range(self.vocab_size)]
        self.fingerprint = _digest(self.kind, *pieces)

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int) -> "SentencePieceTokenizer":
        """Trains on lines of text.

        Args:
          lines: without line ends; long lines are cut at spaces, never dropped.
          vocab_size: entries; the 256 bytes and the characters count.

        Returns:
          The tokenizer.

        Raises:
          ValueError: if the text is empty, or `vocab_size` is too small for its
            characters or too large for its words.
        """
        model = io.BytesIO()
        interrupted: list[BaseException] = []

        def sentences() -> Iterable[str]:
            try:
                for line in lines:
                    yield from _cut(line)
            except (Exception, KeyboardInterrupt) as error:
                interrupted.append(error)  # the trainer makes it a RuntimeError
                raise

        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences(),
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                unk_id=0,
                bos_id=-1,
                eos_id=-1,
                pad_id=-1,
                treat_whitespace_as_suffix=True,
                normalization_rule_name="nmt_nfkc_cf",
                user_defined_symbols=[NEWLINE],
                required_chars=_FOLDED_ASCII,
                byte_fallback=True,
                max_sentence_length=_MAX_LINE_BYTES,
                max_sentencepiece_length=64,
                num_threads=os.cpu_count() or 1,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            if interrupted:
                raise interrupted[0] from None
            raise _training_error(str(error), vocab_size) from error
        return cls(model.getvalue())

    def encode(self, text: str) -> list[int]:
        encoded = self._processor.encode(text.split(NEWLINE))
        ids = encoded[0]
        for line in encoded[1:]:
            ids.append(self.newline_id)
            ids.extend(line)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        lines: list[list[int]] = [[]]
        for token in ids:
            if token == self.newline_id:
                lines.append([])
            else:
                lines[-1].append(int(token))
        return NEWLINE.join(self._processor.decode(line).rstrip(" ") for line in lines)

    def _save_files(self, directory: Path) -> None:
        (directory / self._FILE).write_bytes(self._model)

    @classmethod
    def load(cls, directory: Path) -> "SentencePieceTokenizer":
        return cls((directory / cls._FILE).read_bytes())


_MAX_LINE_BYTES = 4096
_FOLDED_ASCII = "".join(c for c in map(chr, range(33, 127)) if not c.isupper())


def _cut(line: str) -> Iterable[str]:
    """Parts of a line that SentencePiece's trainer accepts, cut at spaces."""
    limit = _MAX_LINE_BYTES // 4  # characters; UTF-8 takes at most 4 bytes for one
    while len(line) > limit:
        end = line.rfind(" ", 1, limit)
        end = end if end > 0 else limit
        yield line[:end]
        line = line[end:]
    if line and not line.isspace():
        yield line


def _training_error(message: str, vocab_size: int) -> ValueError:
    too_large = re.search(r"<= (\d+)", message)
    if too_large:
        return ValueError(
            f"config.tokenizer.vocab_size={vocab_size} is too large for this corpus; "
            f"its text yields at most {too_large[1]} entries. Use "
            f"--config.tokenizer.vocab_size={too_large[1]} or a larger corpus."
        )
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return ValueError(
            f"config.tokenizer.vocab_size={vocab_size} is too small: 256 bytes and the "
            f"characters of this corpus already take {too_small[1]} entries. Use "
            f"--config.tokenizer.vocab_size={too_small[1]} or more."
        )
    if "sentences_.empty()" in message:
        return ValueError("The corpus holds no text to train a tokenizer on.")
    return ValueError(
        f"SentencePiece could not train a tokenizer of config.tokenizer.vocab_size="
        f"{vocab_size} entries: {message}"
    )


class GPT1Tokenizer(Tokenizer):
    """The tokenizer of the released model (text_utils.py), id for id.

    Text is repaired by ftfy, standardised, split into words by spaCy's English
    rules, lower-cased word by word, and each word is merged from its characters by
    the byte-pair encoding in OpenAI's files. Needs the extra `openai` (spaCy).
    """

    kind = "gpt1"
    _ENCODER, _MERGES = "encoder_bpe_40000.json", "vocab_40000.bpe"

    def __init__(self, encoder_text: str, merges_text: str):
        try:
            import spacy
        except ImportError as error:
            raise ImportError(
                "GPT-1's own tokenizer splits words with spaCy; install it with "
                "pip install 'gpt1_jax[openai]'."
            ) from error
        self._files = {self._ENCODER: encoder_text, self._MERGES: merges_text}
        vocabulary: dict[str, int] = json.loads(encoder_text)
        merges = [
            (left, right)
            for left, right in (line.split() for line in merges_text.split("\n")[1:-1])
        ]
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise ValueError(f"{self._ENCODER}: ids are not 0..{len(vocabulary) - 1}.")
        self._symbols = {index: symbol for symbol, index in vocabulary.items()}
        self.vocab_size = len(vocabulary)
        self.newline_id = vocabulary[NEWLINE + "</w>"]
        self.fingerprint = _digest(self.kind, encoder_text, merges_text)
        self._split_words = spacy.blank("en").tokenizer
        bpe = tokenizers.models.BPE(
            vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>"
        )

        @functools.lru_cache(maxsize=1_000_000)
        def encode_word(word: str) -> tuple[int, ...]:
            if word.startswith(NEWLINE):  # spaCy's token "\n " is the newline entry
                return (self.newline_id,)
            return tuple(token.id for token in bpe.tokenize(word))

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

    def _save_files(self, directory: Path) -> None:
        for name, text in self._files.items():
            (directory / name).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> "GPT1Tokenizer":
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
    text = re.sub(r"\s*\n\s*", " \n ", text)
    return re.sub(r"[^\S\n]+", " ", text).strip()


_ASCII = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
_PUNCTUATION = re.compile(
    "(" + "|".join(re.escape(symbol) + "+" for symbol in '-~!";?+,)(/*[]}{|_') + ")"
)


def load(directory: str | os.PathLike[str]) -> Tokenizer:
    """Loads a saved tokenizer, or OpenAI's two files, from a folder.

    Raises:
      FileNotFoundError: if the folder or one of its files is missing.
      ValueError: if the description names no known kind.
    """
    directory = Path(directory)
    description = directory / _DESCRIPTION_FILE
    if description.exists():
        kind = json.loads(description.read_text()).get("kind")
    else:
        kind = GPT1Tokenizer.kind
    classes = {cls.kind: cls for cls in (SentencePieceTokenizer, GPT1Tokenizer)}
    if kind not in classes:
        raise ValueError(
            f"{description} names the tokenizer kind {kind!r}; known are "
            f"{', '.join(classes)}."
        )
    if not directory.is_dir():
        raise FileNotFoundError(f"There is no tokenizer folder {directory}.")
    return classes[kind].load(directory)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
