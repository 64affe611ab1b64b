"""The tokenizer files of a Hugging Face folder."""

from etils import epath

from gpt1_jax.data.tokenizers import Tokenizer


def save(tokenizer: Tokenizer, folder: epath.Path, max_seq_len: int) -> None:
    """Writes what AutoTokenizer reads into an existing folder.

    Args:
      tokenizer: either kind of tokenizer.
      folder: the exported folder.
      max_seq_len: the longest sequence that the model takes, in tokens.
    """
    del tokenizer, folder, max_seq_len
