"""Tokenizers as `transformers` reads them: `tokenizer.json` and its configuration.

`tokenizer.json` holds all rules, in the form of the `tokenizers` library. The class
must be `PreTrainedTokenizerFast`: without a class, or with `OpenAIGPTTokenizer`,
`transformers` replaces these rules by BERT's, and ids differ silently.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import tokenizers
from etils import epath
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import write_json, write_whole
from gpt1_jax.data.tokenizers import NEWLINE, Tokenizer, special_tokens
from gpt1_jax.errors import UserError, from_extra

TOKENIZER_FILE = "tokenizer.json"
_SPACE = "\u2581"  # SentencePiece's mark of a space
_UNKNOWN = "\u2047 "  # SentencePiece prints this, after a space, for an unknown piece
_DELETED = "\x01"  # SentencePiece's normaliser deletes it
# Private-use characters, by which text tells the ends of tokens to BabyLM's evaluation.
_PART = "\ue001"  # stands behind a token that does not end its word
_WORD_END = "\ue002"  # stands for a token that only ends a word
_SPECIAL_TOKENS = ("<|start|>", "<|delimiter|>", "<|extract|>")
_LIMITS = {
    "sentencepiece": (
        "The ids of `tokenizer.json` equal SentencePiece's on 10,000 lines of novels "
        "(2026-11-22), with capitals too (2026-11-26). They can differ where a "
        "combining accent follows another accent, a full-width letter or a "
        "compatibility character, and for a line of nothing but control characters. "
        "Bytes that are no UTF-8, which only a model writes, can be decoded to other "
        "replacement signs."
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
    "huggingface": (
        "`tokenizer.json` is the file that the run was given. gpt1_jax encodes texts "
        "line by line, with one token between lines; by itself, the file may encode "
        "line ends in another way, above all several in a row. Its rules may put "
        "special tokens around a text; gpt1_jax has none there, as with "
        "`add_special_tokens=False`."
    ),
}
_BABYLM = (
    " The rules are made for BabyLM's evaluation. The newline is the start and padding "
    "token: every text begins with one, and of a pair of texts each ends with one, "
    "too. `add_special_tokens=False` leaves them out, and `skip_special_tokens=True` "
    "all newlines. "
)
_BABYLM_LIMITS = {
    "sentencepiece": (
        "A token that does not end its word is decoded, if it stands alone, to a "
        "space, its text and U+E001, and a token that only ends a word to U+E002. In "
        "a text, these two characters mean the same. Bytes of a character that the "
        "vocabulary lacks have no text of their own: the evaluation of reading times "
        "stops at a word with one."
    ),
    "gpt1": (
        "The evaluation of reading times is wrong for words of several tokens, because "
        "the text of a token does not tell whether it ends its word."
    ),
}


def read_gpt1_files(file: epath.Path) -> tuple[str, str] | None:
    """The contents of GPT-1's two BPE files from a `tokenizer.json`.

    Its other rules, among them BERT's, which transformers puts there, are not read.

    Returns:
      The vocabulary as JSON and the merges, as OpenAI released them; None if the model
      is of another kind.
    """
    model = read_json(file).get("model")
    if not isinstance(model, dict) or model.get("end_of_word_suffix") != "</w>":
        return None
    lines = [
        merge if isinstance(merge, str) else " ".join(map(str, merge))
        for merge in model.get("merges") or ()
    ]
    merges = "".join(f"{line}\n" for line in ("#version: 0.2", *lines))
    return json.dumps(model.get("vocab")), merges


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    max_seq_len: int,
    for_babylm: bool = False,
    for_head: bool = False,
) -> None:
    """Writes the files for `transformers.AutoTokenizer.from_pretrained(folder)`.

    Ids equal the tokenizer's own, with the exceptions that `tokenizer_limits` states.

    Args:
      tokenizer: the tokenizer.
      folder: gets `tokenizer.json` and `tokenizer_config.json`.
      max_seq_len: positions of the model, in tokens.
      for_babylm: whether BabyLM's evaluation will read the tokenizer. Then the newline
        is its start and padding token: texts begin with one, and pairs also have one
        between them and one at the end. `decode(..., skip_special_tokens=True)` loses
        newlines. A SentencePiece tokenizer also tells in text where a word is cut.
      for_head: whether the model is fine-tuned. Then the special tokens stand before,
        between and behind texts, and the first pads: no sequence ends with it.

    Raises:
      ValueError: if the tokenizer cannot be expressed as rules of that library.
    """
    build = {"sentencepiece": _sentencepiece, "gpt1": _gpt1, "huggingface": _as_given}
    kind = tokenizer.kind
    if kind not in build:
        raise UserError(
            f"A tokenizer of kind {kind!r} cannot be written for transformers; "
            f"{' and '.join(build)} can."
        )
    if for_babylm and kind == "huggingface":
        raise UserError(
            "Milestones are exported for BabyLM's evaluation, which needs other rules "
            "than those of the run's tokenizer.json. Export steps one by one, with "
            "configs/convert.py:huggingface and --config.step=STEP."
        )
    rules = build[kind](tokenizer)
    roles: dict[str, Any] = {}
    if for_babylm:
        newline = rules.id_to_token(tokenizer.newline_id)
        roles = dict.fromkeys(("bos_token", "pad_token"), newline)
        rules.post_processor = processors.TemplateProcessing(
            single=[newline, "$A"],
            # A classifier reads at the end.
            pair=[newline, "$A", newline, "$B", newline],
            special_tokens=[(newline, tokenizer.newline_id)],
        )
        if kind == "sentencepiece":
            _tell_parts_of_words(rules)
    elif for_head:
        start, delimiter, extract = _SPECIAL_TOKENS
        rules.add_special_tokens(list(_SPECIAL_TOKENS))
        ids = special_tokens(tokenizer.vocab_size)
        if [*map(rules.token_to_id, _SPECIAL_TOKENS)] != [*ids]:
            raise UserError(
                f"{', '.join(_SPECIAL_TOKENS)} cannot follow the vocabulary of this "
                "tokenizer.json: it has one of them already, or ids without entries. "
                "Use the run in gpt1_jax."
            )
        rules.post_processor = processors.TemplateProcessing(
            single=[start, "$A", extract],
            pair=[start, "$A", delimiter, "$B", extract],
            special_tokens=list(zip(_SPECIAL_TOKENS, ids, strict=True)),
        )
        roles = {"pad_token": start}
        if kind != "huggingface":  # whose own special tokens may stand in a text
            roles["split_special_tokens"] = True  # in a text, their names are text
    content = rules.to_str(pretty=True)
    if kind == "huggingface" and not for_head:
        (given,) = tokenizer._contents().values()
        content = given.decode()  # unchanged
    target = epath.Path(folder)
    write_whole(target / TOKENIZER_FILE, content)
    # No unk_token: transformers would make "<unk>" in a text the unknown token.
    write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_seq_len,
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **roles,
        },
    )


def tokenizer_limits(tokenizer: Tokenizer, for_babylm: bool = False) -> str:
    """The differences of the written tokenizer from ours, for its folder's README."""
    limits = _LIMITS[tokenizer.kind]
    return limits + _BABYLM + _BABYLM_LIMITS[tokenizer.kind] if for_babylm else limits


def _sentencepiece(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: normaliser, words that end with a marker, merges."""
    (content,) = tokenizer._contents().values()
    # The module makes its classes at import.
    model = vars(sentencepiece_model_pb2)["ModelProto"].FromString(content)
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
    charsmap = model.normalizer_spec.precompiled_charsmap
    result.normalizer = _sentencepiece_normalizer(charsmap)
    # Merges do not cross the marker, so words are encoded, and cached, one by one.
    result.pre_tokenizer = pre_tokenizers.Split(_SPACE, "merged_with_previous")
    # The newline is cut out before the text is normalised, so lines are separate.
    result.add_tokens([tokenizers.AddedToken(NEWLINE, normalized=False)])
    result.decoder = _sentencepiece_decoder(model.trainer_spec.unk_piece)
    return result


def _sentencepiece_decoder(unknown: str, *fused: decoders.Decoder) -> decoders.Decoder:
    """Joins pieces; `fused` are applied before spaces around lines are dropped."""
    return decoders.Sequence(
        [
            decoders.Replace(unknown, "\ue000" + _UNKNOWN),
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *fused,
            decoders.Replace(Regex(r" +(?=\n|\z)|(?:\A|(?<=\n)) +"), ""),
            decoders.Replace("\ue000" + _UNKNOWN.rstrip(), " " + _UNKNOWN.rstrip()),
        ]
    )


def _sentencepiece_normalizer(charsmap: bytes) -> normalizers.Normalizer:
    """SentencePiece's normaliser, for one line.

    `Precompiled` looks up a grapheme by its beginning, and so would lose the accent of
    "X" + U+0301. Two steps prevent that: NFC composes first what the map would compose,
    and a control character, which the map deletes, goes between any two characters of
    which one is not ASCII, so that every character is a grapheme.
    """
    return normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex(r"(?<=[^\x00-\x7f])(?=.)"), _DELETED),
            normalizers.Replace(Regex(r"(?<=[\x00-\x7f])(?=[^\x00-\x7f])"), _DELETED),
            normalizers.Precompiled(charsmap),
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" +"), _SPACE),
            # Not (?<=.)\z, which tokenizers before 0.21.2 does not find.
            normalizers.Replace(Regex(r".\K\z"), _SPACE),
        ]
    )


def _tell_parts_of_words(rules: tokenizers.Tokenizer) -> None:
    """Makes text and offsets of tokens tell which words, and parts of words, they are.

    BabyLM's evaluation scores a word of several tokens one by one: it decodes each,
    alone, appends the text to the context and encodes that. A token in the middle of a
    word is decoded to a space, its text and a mark; the mark and spaces behind it are
    dropped when it is encoded, and no word ends there. Everything else is decoded and
    encoded as without these rules.

    The evaluation scores the tokens of a sentence that end after its first part. So a
    word has to end before the space that follows it: its end marker is put after its
    last character and gets that character's place in the text; the space's place is
    dropped.
    """
    rules.normalizer = normalizers.Sequence(
        [
            rules.normalizer,
            normalizers.Replace(Regex(f"(?<={_PART}){_SPACE}"), ""),
            normalizers.Replace(Regex(f"{_WORD_END}{_SPACE}?"), _SPACE),
            normalizers.Replace(Regex(f"(?<=[^{_SPACE}])(?={_SPACE})"), _SPACE),
            normalizers.Replace(Regex(f"(?<={_SPACE}){_SPACE}"), ""),
        ]
    )
    rules.pre_tokenizer = pre_tokenizers.Sequence(
        [rules.pre_tokenizer, pre_tokenizers.Split(_PART, "removed")]
    )
    alone = _sentencepiece_decoder(
        rules.model.unk_token,
        decoders.Replace(Regex(r"\A \z"), _WORD_END),
        decoders.Replace(Regex(rf"\A[^ \n{_WORD_END}]+\K\z"), _PART),
    )
    space = decoders.Replace(Regex(rf"\A(?=[^\n]*{_PART}\z)"), " ")
    rules.decoder = decoders.Sequence([alone, space])


def _merges(model: Any) -> Iterator[tuple[str, str]]:
    """All pairs that form a piece, in the order in which SentencePiece merges them.

    SentencePiece stores pieces and scores, not pairs: it joins any two neighbours whose
    union is a piece, the best score first.
    """
    normal = [piece for piece in model.pieces if piece.type == piece.NORMAL]
    known = {piece.piece for piece in normal}
    for piece in sorted(normal, key=lambda piece: -piece.score):
        for cut in range(1, len(piece.piece)):
            left, right = piece.piece[:cut], piece.piece[cut:]
            if left in known and right in known:
                yield left, right


def _check(model: Any) -> None:
    """Refuses models that were trained in another way than gpt1_jax trains them."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    wanted = {
        "model_type=bpe": trainer.model_type == trainer.BPE,
        "treat_whitespace_as_suffix=true": trainer.treat_whitespace_as_suffix,
        "normalization_rule_name=nmt_nfkc_cf or nmt_nfkc": normalizer.name
        in ("nmt_nfkc_cf", "nmt_nfkc"),
        "add_dummy_prefix=true": normalizer.add_dummy_prefix,
        "remove_extra_whitespaces=true": normalizer.remove_extra_whitespaces,
        "the newline as its only user-defined symbol": all(
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


def _as_given(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The rules of a `tokenizer.json`, for every length of text."""
    (content,) = tokenizer._contents().values()
    rules = tokenizers.Tokenizer.from_buffer(content)
    rules.no_truncation()
    rules.no_padding()
    return rules


def _gpt1(tokenizer: Any) -> tokenizers.Tokenizer:
    """GPT-1's BPE, after rules that approximate ftfy and spaCy."""
    result = tokenizers.Tokenizer(tokenizer.bpe)
    result.normalizer = words_normalizer()
    result.pre_tokenizer = words_pre_tokenizer()
    result.decoder = decoders.Sequence(
        [
            decoders.Replace("</w>", " "),
            decoders.Fuse(),
            decoders.Replace(Regex(" ?\n ?"), NEWLINE),
            decoders.Replace(Regex(r"\A +| +\z"), ""),
        ]
    )
    return result


# --- GPT-1's words: ftfy, spaCy and lower case as rules ---
#
# Only normalisers may change a text, and they run before the words are cut. spaCy's
# rules need the case of letters. So the normaliser marks the places where spaCy cuts,
# then lower-cases the text, which is cut at spaces and marks.

Steps = list[tuple[str, str]]  # patterns and their replacements
Exceptions = dict[str, list[str]]  # spaCy's exceptions, and the words of each

# Private-use characters, which are gone once the words are cut.
_CUT = "\ue000"
_HIDDEN = {".": "\ue001", "'": "\ue002"}
_SPACED = r"\-~!\";?+,)(/*\[\]}{|_"
_PREFIX = r"\.\.++|[§%=:<>#&'`$£€¥°©®]|US\$"
_SUFFIX = (
    r"(?:'[sS]|(?<!\.)\.\.++|[:<>#&'`°©®]|(?<=[0-9])[%$£€¥]"
    r"|(?<=[\p{Ll}0-9%'$£°²\ue001\ue002]|\p{Lu}\p{Lu})\.)"
)
_START = rf"(?<![^ {_CUT}])"
_END = rf"(?:{_SUFFIX})*+(?:[ \n{_CUT}]|\z)"
_REPAIR: Steps = [  # what ftfy does to ordinary text
    ("[\u02bc\u2018-\u201b]", "'"),
    ("[\u201c-\u201f]", '"'),
    *{"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl"}.items(),
    *{"ﬅ": "ſt", "ﬆ": "st", "Ĳ": "IJ", "ĳ": "ij"}.items(),
    ("\r\n|[\r\u0085\u2028\u2029]", "\n"),
    ("[\x00-\x08\x0b\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]", ""),
]
_STANDARDIZE: Steps = [  # as `standardize_text` of `gpt1_tokenizer`
    ("[—–―]", "-"),
    ("…", "..."),
    ("´", "'"),
    (rf"(?<![{_SPACED}])(?=[{_SPACED}])", " "),
    (rf"([{_SPACED}])\1*\K", " "),
    (r"\s*\n\s*", "\n"),
    (r"\A\s+|\s+\z", ""),
    (r"\n", " \n "),
    (r"[^\S\n]+", " "),
]
_INFIXES: Steps = [  # cuts inside words, at dots, colons and the like
    (r"(?<=[^ .])(?=\.\.)|(?<=\.\.)(?=[^ .])", _CUT),
    (r"(?<=[\p{Ll}'])(?=\.[\p{Lu}'])|(?<=[\p{Ll}']\.|[\ue001])(?=[\p{Lu}'])", _CUT),
    (r"(?<=[\p{L}0-9])(?=[:<>=]\p{L})|(?<=[\p{L}0-9][:<>=])(?=\p{L})", _CUT),
]


def words_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Cuts at spaces and marks, and drops them."""
    return pre_tokenizers.Split(Regex(f"[ {_CUT}]+"), "removed")


def words_normalizer() -> normalizers.Normalizer:
    """Repairs and standardises text, marks where spaCy cuts it, and lower-cases it."""
    exceptions = _exceptions()
    steps = [
        *_REPAIR,
        *_STANDARDIZE,
        *_prefixes(exceptions),
        *_keep_endings(exceptions),
        *_cut_exceptions(exceptions),
        *_keep_endings(exceptions),  # also "s." in "whats."
        (rf"(?<=[^ \n{_CUT}])(?={_SUFFIX}{_END})", _CUT),
        *_INFIXES,
        # Two adjacent apostrophes become one word again, as spaCy does last.
        (rf"{_START}'{_CUT}+'(?=[ \n{_CUT}]|\z)", "''"),
        *((hidden, end) for end, hidden in _HIDDEN.items()),
    ]
    replace = [
        normalizers.Replace(pattern if len(pattern) == 1 else Regex(pattern), content)
        for pattern, content in steps
    ]
    return normalizers.Sequence([normalizers.NFC(), *replace, normalizers.Lowercase()])


def _exceptions() -> Exceptions:
    """The English exceptions of spaCy that standardised text can contain."""
    with from_extra("openai", "Writing GPT-1's own tokenizer as rules"):
        import spacy
        from spacy.symbols import ORTH

    tokenizer: Any = spacy.blank("en").tokenizer
    impossible = re.compile(rf"[{_SPACED}\s’‘—]")
    return {
        text: [word[ORTH] for word in words]
        for text, words in tokenizer.rules.items()
        if not impossible.search(text)
    }


def _prefixes(exceptions: Exceptions) -> Steps:
    """Cuts off opening quotes and the like, up to three; "'em" stays whole."""
    whole = [t for t in exceptions if len(t) > 1 and re.match(_PREFIX, t)]
    first = rf"{_START}(?!(?:{_any(whole)}){_END})(?:{_PREFIX})\K(?=[^ ])"
    runs = r"([!\";?,)(*\[\]}{_+])\K(?=\1)"  # standing alone by now
    return [(runs, _CUT), *[(first, _CUT)] * 3]


def _keep_endings(exceptions: Exceptions) -> Steps:
    """Hides the ends of "Mr." and "goin'" from the rules that would cut them off."""
    uncut = [text for text, words in exceptions.items() if len(words) == 1]
    steps = []
    for end, hidden in _HIDDEN.items():
        kept = _any(text[:-1] for text in uncut if text[1:].endswith(end))
        first = _any(
            words[0][:-1] for words in exceptions.values() if words[0][1:].endswith(end)
        )
        whole = rf"(?:{kept})\K{re.escape(end)}(?={_END}|\p{{Lu}})"
        cut = rf"(?:{first})\K{re.escape(end)}(?={_CUT}\p{{L}})"  # y' in y'all
        steps += [(_START + whole, hidden), (_START + cut, hidden)]
    return steps


def _cut_exceptions(exceptions: Exceptions) -> Steps:
    """Contractions and the like, from their last word to their first."""
    steps: Steps = []
    for place in (3, 2, 1):
        left_of: dict[str, list[str]] = defaultdict(list)
        for words in exceptions.values():
            if len(words) > place:
                left_of[_CUT.join(words[place:])].append("".join(words[:place]))
        for right, left in sorted(left_of.items()):
            # One pattern for each: in alternatives, Oniguruma keeps a stale \K.
            after = rf"(?={re.escape(right)}{_END})"
            steps.append((rf"{_START}(?:{_any(left)})\K{after}", _CUT))
    return steps


def _any(texts: Iterable[str]) -> str:
    """A pattern that matches any of these texts, the longest first."""
    ordered = sorted(set(texts), key=lambda text: (-len(text), text))
    return "|".join(re.escape(text) for text in ordered)
