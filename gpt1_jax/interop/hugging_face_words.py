"""GPT-1's words as rules of the `tokenizers` library: ftfy, spaCy, lower case.

Only normalisers may change a text, and they come before the words are cut. So the
places where spaCy cuts are marked by the normaliser, while the case is still there
(spaCy's rules need it); then the text is lower-cased, and cut at spaces and marks.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

Exceptions = dict[str, list[str]]


def read_files(
    files: Mapping[str, bytes],
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges from the contents of OpenAI's two files."""
    vocabulary: dict[str, int] = {}
    merges: list[tuple[str, str]] = []
    for name, content in files.items():
        if name.endswith(".json"):
            vocabulary = json.loads(content)
        else:
            lines = content.decode().split("\n")[1:-1]
            merges = [(left, right) for left, right in map(str.split, lines)]
    return vocabulary, merges


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Cuts at spaces and marks, and leaves them out."""
    return pre_tokenizers.Split(Regex(f"[ {_CUT}]+"), "removed")


def normalizer() -> normalizers.Normalizer:
    """Text repaired, standardised, marked where spaCy cuts it, and lower-cased."""
    exceptions = _exceptions()
    steps = [
        *_repair(),
        *_standardize(),
        *_prefixes(exceptions),
        *_keep_endings(exceptions),
        *_cut_exceptions(exceptions),
        *_keep_endings(exceptions),  # "s." of "whats.", too
        *_suffixes(),
        *_infixes(),
        *_join_apostrophes(),
        *((hidden, end) for end, hidden in _HIDDEN.items()),
    ]
    replace = [
        normalizers.Replace(pattern if len(pattern) == 1 else Regex(pattern), content)
        for pattern, content in steps
    ]
    return normalizers.Sequence([normalizers.NFC(), *replace, normalizers.Lowercase()])


Steps = list[tuple[str, str]]


def _repair() -> Steps:
    """What ftfy does to ordinary text: quotes, ligatures, line ends, controls."""
    return [
        ("[\u02bc\u2018-\u201b]", "'"),
        ("[\u201c-\u201f]", '"'),
        *_LIGATURES.items(),
        ("\r\n|[\r\u0085\u2028\u2029]", "\n"),
        ("[\x00-\x08\x0b\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]", ""),
    ]


def _standardize() -> Steps:
    """`standardize_text` of GPT-1's tokenizer."""
    return [
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


def _exceptions() -> Exceptions:
    """spaCy's English exceptions that standardised text can hold, with their words."""
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
    """Cuts opening quotes and the like off, three deep; "'em" stays whole."""
    whole = [t for t in exceptions if len(t) > 1 and re.match(_PREFIX, t)]
    first = rf"{_START}(?!(?:{_any(whole)}){_END})(?:{_PREFIX})\K(?=[^ ])"
    runs = r"([!\";?,)(*\[\]}{_+])\K(?=\1)"  # standing alone by now
    return [(runs, _CUT), *[(first, _CUT)] * 3]


def _keep_endings(exceptions: Exceptions) -> Steps:
    """Hides the ends of "Mr." and "goin'" from the rules that cut them off."""
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


def _suffixes() -> Steps:
    """Cuts before everything at a word's end that spaCy cuts off."""
    return [(rf"(?<=[^ \n{_CUT}])(?={_SUFFIX}{_END})", _CUT)]


def _infixes() -> Steps:
    """Cuts words at dots, colons and the like inside them."""
    return [
        (r"(?<=[^ .])(?=\.\.)|(?<=\.\.)(?=[^ .])", _CUT),
        (r"(?<=[\p{Ll}'])(?=\.[\p{Lu}'])|(?<=[\p{Ll}']\.|[\ue001])(?=[\p{Lu}'])", _CUT),
        (r"(?<=[\p{L}0-9])(?=[:<>=]\p{L})|(?<=[\p{L}0-9][:<>=])(?=\p{L})", _CUT),
    ]


def _join_apostrophes() -> Steps:
    """Makes two apostrophes side by side one word again, as spaCy does last."""
    return [(rf"{_START}'{_CUT}+'(?=[ \n{_CUT}]|\z)", "''")]


def _any(texts: Iterable[str]) -> str:
    """A pattern of alternatives, the longest first."""
    ordered = sorted(set(texts), key=lambda text: (-len(text), text))
    return "|".join(re.escape(text) for text in ordered)


# Characters for private use, which are gone when the words are cut.
_CUT = "\ue000"
_HIDDEN = {".": "\ue001", "'": "\ue002"}
_SPACED = r"\-~!\";?+,)(/*\[\]}{|_"
_LIGATURES = {
    "ﬀ": "ff",
    "ﬁ": "fi",
    "ﬂ": "fl",
    "ﬃ": "ffi",
    "ﬄ": "ffl",
    "ﬅ": "ſt",
    "ﬆ": "st",
    "Ĳ": "IJ",
    "ĳ": "ij",
}
_PREFIX = r"\.\.++|[§%=:<>#&'`$£€¥°©®]|US\$"
_SUFFIX = (
    r"(?:'[sS]|(?<!\.)\.\.++|[:<>#&'`°©®]|(?<=[0-9])[%$£€¥]"
    r"|(?<=[\p{Ll}0-9%'$£°²\ue001\ue002]|\p{Lu}\p{Lu})\.)"
)
_START = rf"(?<![^ {_CUT}])"
_END = rf"(?:{_SUFFIX})*+(?:[ \n{_CUT}]|\z)"
