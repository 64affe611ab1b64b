"""Tokenizers whose ids can be seen in the text, and a small one of GPT-1's kind."""

import json
import string

import pytest

from gpt1_jax.data.tokenizers import Tokenizer

VOCAB_SIZE = 2000


class Numbers(Tokenizer):
    """Reads "3 1 4" as the ids 3, 1, 4."""

    kind, vocab_size, newline_id, digest = "numbers", VOCAB_SIZE, 0, "numbers"

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, ids):
        return " ".join(map(str, ids))

    def _contents(self):
        raise NotImplementedError


def small_gpt1_tokenizer():
    """GPT-1's own tokenizer with letters, punctuation and a few merges."""
    pytest.importorskip("spacy", reason="spaCy is not installed")
    from gpt1_jax.data.gpt1_tokenizer import GPT1Tokenizer

    merges = [("d", "o</w>"), ("n", "'"), ("n'", "t</w>"), ("m", "r"), ("mr", ".</w>")]
    letters = string.ascii_lowercase + string.punctuation
    symbols = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters)]
    symbols += [*map("".join, merges), "\n</w>"]
    lines = ["#version: 0.2", *map(" ".join, merges), ""]
    numbered = {symbol: number for number, symbol in enumerate(symbols)}
    return GPT1Tokenizer(json.dumps(numbered), "\n".join(lines))


class Characters(Tokenizer):
    """A character is a token; that of a word's last one is another."""

    kind, vocab_size, newline_id = "characters", 256, ord("\n")
    digest = "characters"

    def encode(self, text):
        ids = []
        for number, line in enumerate(text.split("\n")):
            ids += [self.newline_id] * (number > 0)
            for word in line.split():
                ids += [*map(ord, word[:-1]), ord(word[-1]) + 128]
        return ids

    def decode(self, ids):
        return "".join(chr(i % 128) + " " * (i >= 128) for i in ids)

    def _contents(self):
        raise NotImplementedError


def shown(answers):
    """The texts of answers in `Characters`: "what is read|what is scored"."""
    decode = Characters().decode
    return [
        f"{decode(window.ids[: window.num_context])}|"
        f"{decode(window.ids[window.num_context :])}"
        for window in answers.windows
    ]
