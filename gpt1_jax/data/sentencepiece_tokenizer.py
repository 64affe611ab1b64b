"""A SentencePiece byte-pair encoding, trained on the corpus: the default tokenizer."""

import io
import os
import re
from collections.abc import Iterable, Sequence

import sentencepiece
from etils import epath

from gpt1_jax.data.tokenizers import NEWLINE, Tokenizer, texts_digest
from gpt1_jax.errors import UserError


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece byte-pair encoding, set up to resemble GPT-1's.

    Case-folded, unless trained otherwise; the word boundary is a suffix, like GPT-1's
    `</w>`; no start, end or padding piece; id 0 is `<unk>`; the newline is a
    user-defined piece.

    Every character survives. All of printable ASCII is in the vocabulary, whether the
    corpus uses it or not, and other characters that it lacks are spelled in UTF-8
    bytes, so `<unk>` never occurs. Only normalisation changes text: NFKC, case
    folding, runs of white space (and U+2581, SentencePiece's mark of a space) to one
    space, no control or replacement characters. A model that was trained elsewhere may
    differ in all of this; the end piece may have to stand for the newline.
    """

    kind = "sentencepiece"
    _FILE = "sentencepiece.model"

    def __init__(self, model: bytes):
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = self._processor.vocab_size()
        self.lowercase = "A" not in self._processor.normalize("A")
        self.marks_word_ends = self._processor.normalize("a").endswith("\u2581")
        pieces = [self._processor.id_to_piece(i) for i in range(self.vocab_size)]
        found = [pieces.index(p) for p in (NEWLINE, "<0x0A>", "</s>") if p in pieces]
        if not found:
            raise UserError(
                "it has no newline piece, nor </s> to stand for one; train one with "
                "gpt1_jax, or with user_defined_symbols='\\n'."
            )
        self.newline_id = found[0]
        self.digest = texts_digest(self.kind, *pieces)

    @classmethod
    def train(
        cls, lines: Iterable[str], vocab_size: int, lowercase: bool = True
    ) -> "SentencePieceTokenizer":
        """Trains on lines of text.

        Args:
          lines: text without line ends; long lines are cut at spaces, never dropped.
          vocab_size: number of entries, the 256 bytes and the characters included.
          lowercase: whether text loses its capitals, as in GPT-1.

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
                interrupted.append(error)  # the trainer turns it into a RuntimeError
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
                normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
                user_defined_symbols=[NEWLINE],
                required_chars=_ASCII.lower() if lowercase else _ASCII,
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
        lines = text.split(NEWLINE)
        if len(lines) == 1:  # for a list, even of one line, a thread pool is made
            return self._processor.encode(text)
        encoded = self._processor.encode(lines, num_threads=1)
        ids = encoded[0]
        for line in encoded[1:]:
            ids.append(self.newline_id)
            ids.extend(line)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        lines = map(self._processor.decode, self.lines(ids))
        return NEWLINE.join(line.rstrip(" ") for line in lines)

    def _contents(self) -> dict[str, bytes]:
        return {self._FILE: self._model}

    @classmethod
    def load(cls, place: epath.Path) -> "SentencePieceTokenizer":
        return cls((place / cls._FILE if place.is_dir() else place).read_bytes())


_MAX_LINE_BYTES = 4096
_ASCII = "".join(map(chr, range(33, 127)))


def _cut(line: str) -> Iterable[str]:
    """Parts of a line that SentencePiece's trainer accepts, cut at spaces."""
    limit = _MAX_LINE_BYTES // 4  # characters, of at most 4 bytes each in UTF-8
    while len(line) > limit:
        end = line.rfind(" ", 1, limit)
        end = end if end > 0 else limit
        yield line[:end]
        line = line[end:]
    if line and not line.isspace():
        yield line


def _training_error(message: str, vocab_size: int) -> UserError:
    too_large = re.search(r"<= (\d+)", message)
    if too_large:
        return UserError(
            f"config.tokenizer.vocab_size={vocab_size} is too large for this corpus; "
            f"its text yields at most {too_large[1]} entries. Use "
            f"--config.tokenizer.vocab_size={too_large[1]} or a larger corpus."
        )
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return UserError(
            f"config.tokenizer.vocab_size={vocab_size} is too small: 256 bytes and the "
            f"characters of this corpus already take {too_small[1]} entries. Use "
            f"--config.tokenizer.vocab_size={too_small[1]} or more."
        )
    if "sentences_.empty()" in message:
        return UserError("The corpus holds no text to train a tokenizer on.")
    return UserError(
        f"SentencePiece could not train a tokenizer of config.tokenizer.vocab_size="
        f"{vocab_size} entries: {message}"
    )
