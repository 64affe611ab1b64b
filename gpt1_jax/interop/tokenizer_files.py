"""The tokenizer beside weights in another format.

Folders written here hold a copy in our own form, so that any tokenizer comes back bit
for bit. Other folders hold GPT-1's two BPE files, under OpenAI's or Hugging Face's
names.
"""

from etils import epath

from gpt1_jax.data import tokenizers
from gpt1_jax.data.files import create
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError

OWN_FOLDER = "gpt1_jax_tokenizer"
OPENAI_FILES = ("encoder_bpe_40000.json", "vocab_40000.bpe")
HUGGING_FACE_FILES = ("vocab.json", "merges.txt")


def read(folder: epath.Path, vocab_size: int) -> Tokenizer:
    """The tokenizer of a folder.

    Args:
      folder: of weights in another format.
      vocab_size: the rows of the token embedding.

    Raises:
      FileNotFoundError: if the folder holds no tokenizer that can be read.
      ImportError: if it is GPT-1's own, and spaCy is not installed.
      ValueError: if it is damaged, or its size is another.
    """
    tokenizer = _load(folder)
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"The tokenizer in {folder} has {tokenizer.vocab_size} entries; the token "
            f"embedding has {vocab_size} rows. They do not belong together."
        )
    return tokenizer


def write(tokenizer: Tokenizer, folder: epath.Path) -> None:
    """Writes a copy in our own form into a folder that has none."""
    tokenizer.save(folder / OWN_FOLDER)


def write_openai(tokenizer: Tokenizer, folder: epath.Path) -> None:
    """The same, and OpenAI's two files if the tokenizer is made of them."""
    write(tokenizer, folder)
    for name in OPENAI_FILES:
        if (folder / OWN_FOLDER / name).exists():
            create(folder / name, (folder / OWN_FOLDER / name).read_bytes())


def _load(folder: epath.Path) -> Tokenizer:
    if (folder / OWN_FOLDER).exists():
        return tokenizers.load(folder / OWN_FOLDER)
    for files in (OPENAI_FILES, HUGGING_FACE_FILES):
        if all((folder / name).exists() for name in files):
            return _from_bpe_files(folder, files)
    raise FileNotFoundError(
        f"{folder} holds no tokenizer that can be read: neither {OWN_FOLDER}/ nor "
        f"{' and '.join(OPENAI_FILES)} nor {' and '.join(HUGGING_FACE_FILES)}. Copy "
        "GPT-1's two files there."
    )


def _from_bpe_files(folder: epath.Path, files: tuple[str, str]) -> Tokenizer:
    from gpt1_jax.data.gpt1_tokenizer import GPT1Tokenizer  # imports ftfy

    try:
        return GPT1Tokenizer(*((folder / name).read_text("utf-8") for name in files))
    except (OSError, ImportError):
        raise
    except Exception as error:  # JSON's and the BPE's own
        raise UserError(
            f"{' and '.join(files)} in {folder} are not GPT-1's vocabulary: {error}"
        ) from error
