"""Tokenizers as `transformers` reads them: `tokenizer.json` and its configuration.

Everything is in `tokenizer.json`, as rules of the `tokenizers` library. Its class must
be `PreTrainedTokenizerFast`: with none, or with `OpenAIGPTTokenizer`, `transformers`
puts BERT's normaliser and words in place of these rules, and ids differ silently.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers
from etils import epath
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from gpt1_jax.data.files import write_json, write_whole
from gpt1_jax.data.tokenizers import NEWLINE, Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.interop import hugging_face_words


def save(
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    max_seq_len: int,
    newline_as: Sequence[str] = (),
) -> None:
    """Writes what `transformers.AutoTokenizer.from_pretrained(folder)` reads.

    Ids equal the tokenizer's own, but for what `limits` says.

    Args:
      tokenizer: of either kind.
      folder: where `tokenizer.json` and `tokenizer_config.json` are written.
      max_seq_len: positions of the model, in tokens.
      newline_as: special tokens that the newline stands for, such as "pad_token". Ids
        stay as they are, but `decode(..., skip_special_tokens=True)` loses newlines.

    Raises:
      ValueError: if the tokenizer cannot be written as rules of that library.
    """
    rules = _BUILD[_known_kind(tokenizer)](tokenizer)
    newline = rules.id_to_token(tokenizer.newline_id)
    target = epath.Path(folder)
    write_whole(target / "tokenizer.json", rules.to_str(pretty=True))
    # No unk_token: transformers would make "<unk>" in a text the unknown token.
    write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_seq_len,
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **dict.fromkeys(newline_as, newline),
        },
    )


def limits(tokenizer: Tokenizer) -> str:
    """What of a tokenizer `save` cannot carry over, for the README of its folder."""
    return _LIMITS[_known_kind(tokenizer)]


def _known_kind(tokenizer: Tokenizer) -> str:
    if tokenizer.kind not in _BUILD:
        raise UserError(
            f"A tokenizer of kind {tokenizer.kind!r} cannot be written for "
            f"transformers; {' and '.join(_BUILD)} can."
        )
    return tokenizer.kind


def _sentencepiece(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: normaliser, words that end with the marker, merges."""
    (content,) = tokenizer._contents().values()
    model = _parse(content)
    _check(model)
    vocabulary = {piece.piece: index for index, piece in enumerate(model.pieces)}
    result = tokenizers.Tokenizer(
        models.BPE(
            vocabulary,
            list(_merges(model)),
            unk_token=model.trainer_spec.unk_piece,
            fuse_unk=True,
            byte_fallback=model.trainer_spec.byte_fallback,
        )
    )
    result.normalizer = _sentencepiece_normalizer(
        model.normalizer_spec.precompiled_charsmap
    )
    # Merges do not cross the marker, so words are encoded, and cached, one by one.
    result.pre_tokenizer = pre_tokenizers.Split(_SPACE, "merged_with_previous")
    # It is taken out of the text before anything is normalised: lines are apart.
    newline = tokenizers.AddedToken(NEWLINE, normalized=False, special=False)
    result.add_tokens([newline])
    result.decoder = decoders.Sequence(
        [
            decoders.Replace(model.trainer_spec.unk_piece, "\ue000" + _UNKNOWN),
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(Regex(r" +(?=\n|\z)|(?:\A|(?<=\n)) +"), ""),
            decoders.Replace("\ue000" + _UNKNOWN.rstrip(), " " + _UNKNOWN.rstrip()),
        ]
    )
    return result


def _sentencepiece_normalizer(charsmap: bytes) -> normalizers.Normalizer:
    """SentencePiece's normaliser, of a line.

    `Precompiled` looks up a grapheme by its beginning, and so would lose the accent of
    "X" + U+0301. A control character that the map deletes, between any two characters
    of which one is not ASCII, makes every character a grapheme; what the map composes
    is composed before.
    """
    return normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex(r"(?<=[^\x00-\x7f])(?=.)"), _DELETED),
            normalizers.Replace(Regex(r"(?<=[\x00-\x7f])(?=[^\x00-\x7f])"), _DELETED),
            normalizers.Precompiled(charsmap),
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" +"), _SPACE),
            normalizers.Replace(Regex(r"(?<=.)\z"), _SPACE),
        ]
    )


def _parse(content: bytes) -> Any:
    """The ModelProto in a model file; the class is made when its module is imported."""
    return vars(sentencepiece_model_pb2)["ModelProto"].FromString(content)


def _merges(model: Any) -> Iterator[tuple[str, str]]:
    """Pairs that make a piece, in the order in which SentencePiece merges them.

    SentencePiece keeps pieces and scores, not pairs: it joins any two neighbours whose
    union is a piece, best score first.
    """
    normal = [piece for piece in model.pieces if piece.type == piece.NORMAL]
    known = {piece.piece for piece in normal}
    for piece in sorted(normal, key=lambda piece: -piece.score):
        for cut in range(1, len(piece.piece)):
            left, right = piece.piece[:cut], piece.piece[cut:]
            if left in known and right in known:
                yield left, right


def _check(model: Any) -> None:
    """Refuses models that another program trained in another way."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    wanted = {
        "model_type=bpe": trainer.model_type == trainer.BPE,
        "treat_whitespace_as_suffix=true": trainer.treat_whitespace_as_suffix,
        "normalization_rule_name=nmt_nfkc_cf": normalizer.name == "nmt_nfkc_cf",
        "add_dummy_prefix=true": normalizer.add_dummy_prefix,
        "remove_extra_whitespaces=true": normalizer.remove_extra_whitespaces,
        "the newline as its only symbol of the user's": all(
            piece.type in (piece.NORMAL, piece.UNKNOWN, piece.BYTE)
            or piece.piece == NEWLINE
            for piece in model.pieces
        ),
    }
    missing = [name for name, holds in wanted.items() if not holds]
    if missing:
        raise UserError(
            f"This SentencePiece model was trained without {', '.join(missing)}, and "
            "cannot be written for transformers. Train one with gpt1_jax."
        )


def _gpt1(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """GPT-1's BPE behind rules that come near ftfy's and spaCy's."""
    vocabulary, merges = hugging_face_words.read_files(tokenizer._contents())
    result = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>")
    )
    result.normalizer = hugging_face_words.normalizer()
    result.pre_tokenizer = hugging_face_words.pre_tokenizer()
    result.decoder = decoders.Sequence(
        [
            decoders.Replace("</w>", " "),
            decoders.Fuse(),
            decoders.Replace(Regex(" ?\n ?"), NEWLINE),
            decoders.Replace(Regex(r"\A +| +\z"), ""),
        ]
    )
    return result


_SPACE = "\u2581"  # SentencePiece's mark of a space
_UNKNOWN = "\u2047 "  # after a space, how SentencePiece prints an unknown piece
_DELETED = "\x01"  # by SentencePiece's normaliser
_BUILD = {"sentencepiece": _sentencepiece, "gpt1": _gpt1}
_LIMITS = {
    "sentencepiece": (
        "The ids of `tokenizer.json` equal SentencePiece's on 10,000 lines of novels "
        "(2026-11-22). They can differ where a combining accent follows another "
        "accent, a full-width letter or a compatibility character, and for a line of "
        "nothing but control characters. Bytes that are no "
        "UTF-8, which only a model writes, can be decoded to other replacement signs."
    ),
    "gpt1": (
        "`tokenizer.json` replaces ftfy and spaCy with rules that come near both. Of "
        "the 15,681 lines of nine novels none gets other ids than from gpt1_jax, and "
        "of 41,463 lines of 216 others 4 do, 0.01% of the lines (2026-11-24, spaCy "
        "3.8.18); with the rules that transformers has for this model, it is 54% of "
        "10,000 such lines (2026-11-22). "
        "Wrongly decoded text and HTML entities are not repaired, and web addresses, "
        "units of measure and emoticons can be cut in other places."
    ),
}
