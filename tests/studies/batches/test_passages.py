"""Passages found in the tokens of a corpus."""

import itertools
import re

import numpy as np
import pytest
from made_up_tokenizer import Numbers, small_gpt1_tokenizer

from gpt1_jax.data.shards import CorpusWriter, TokenReader, open_corpus
from gpt1_jax.data.text import clean
from gpt1_jax.errors import UserError
from gpt1_jax.studies.batches import passages
from gpt1_jax.studies.batches.passages import find_passage

TEXT = """
The quick brown fox said: "Walk home again,
   for night is near." She walked home; she walked

home again. Café wizards — seven of them — never looked back.
"""


@pytest.fixture(params=["sentencepiece", "gpt1"])
def find(request, tmp_path, monkeypatch):
    """A function from a passage to the texts found, reading few tokens at a time."""
    if request.param == "gpt1":
        tokenizer = small_gpt1_tokenizer()
    else:
        tokenizer = request.getfixturevalue("sentencepiece_tokenizer")
    monkeypatch.setattr(passages, "_TOGETHER", 5)
    ids = np.array([*tokenizer.encode(clean(TEXT)), tokenizer.newline_id])
    writer = CorpusWriter(tmp_path, "", np.dtype("<u2"))
    writer.add("train", ids, 0, 0)
    writer.finish({"train": 1, "valid": 0}, {}, {}, [])
    reader = TokenReader(open_corpus(tmp_path), "train")

    def texts(passage):
        spans = find_passage(reader, tokenizer, passage)
        found = [tokenizer.decode(ids[start:end].tolist()) for start, end in spans]
        return ["".join(text.split()) for text in found]

    return texts


@pytest.mark.parametrize(
    ("passage", "found"),
    [
        ("brown fox said", ["brownfoxsaid"]),
        ("walk home again", ["walkhomeagain"]),  # between a quotation mark and a comma
        ("Walk HOME\n\n again, for night", ["walkhomeagain,fornight"]),
        ("is near", ["isnear"]),  # before a full stop
        ("she walked home", ["shewalkedhome"] * 2),  # once over a line end
        ("caf\u00e9 wizards \u2014 seven", ["wizards\u2014seven"]),
        ("fox said she walked", []),
        ("walk near home", []),
        ("fox", ["fox"]),
    ],
)
def test_a_passage_is_found_wherever_lines_end(find, passage, found):
    # GPT-1's tokenizer makes hyphens of dashes, and this one has no letter \u00e9.
    wanted = [text.replace("\u2014", "-") for text in found]
    got = [text.replace("\u2014", "-") for text in find(passage)]
    got = [re.sub("^caf(\u00e9|<unk>)", "", text) for text in got]
    # A token of the first or last word may hold a character more.
    assert len(got) == len(wanted)
    for text, part in zip(got, wanted, strict=True):
        assert part in text and len(text) <= len(part) + 2


def test_a_place_counts_once_whatever_tokens_end_its_words(find):
    """A word may end in a token of its own, which its characters do without."""
    words = TEXT.lower().split()
    for pair in itertools.pairwise(words):
        assert len(find(" ".join(pair))) == "".join(words).count("".join(pair)), pair


def test_what_cannot_be_found_is_refused(find):
    with pytest.raises(UserError, match="has no tokens"):
        find(" \n")

    class Beginnings(Numbers):
        marks_word_ends = False

    with pytest.raises(UserError, match=r"found in this run: .*--config\.steps=STEPS"):
        list(find_passage(None, Beginnings(), "1 2"))
