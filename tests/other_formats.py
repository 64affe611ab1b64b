"""Parameters to convert, vocabulary files, and pickles that would do harm."""

import json
import os

import numpy as np

from gpt1_jax.interop import names


def assert_same_params(one, other):
    """The same names, and the same arrays bit for bit."""
    one, other = names.flatten_params(one), names.flatten_params(other)
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype == np.float32, name
        np.testing.assert_array_equal(
            array.view(np.uint32), other[name].view(np.uint32), err_msg=name
        )


def write_bpe_files(folder, files, vocab_size):
    """GPT-1's two vocabulary files, of characters without merges."""
    letters = [chr(ord("a") + number) for number in range(vocab_size - 2)]
    symbols = ["<unk>", *(f"{letter}</w>" for letter in letters), "\n</w>"]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    (folder / files[0]).write_text(json.dumps(vocabulary))
    (folder / files[1]).write_text("#version: 0.2\n")


class Harm:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)
