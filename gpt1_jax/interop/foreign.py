"""Models in the formats of others: which format a folder has, and how it is read."""

import dataclasses
import os
import pickle
import subprocess
import sys
from typing import NamedTuple

from etils import epath

from gpt1_jax import config as config_lib
from gpt1_jax.config import ModelConfig
from gpt1_jax.config.convert import ConvertConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import ModelOptions
from gpt1_jax.data.tokenizers import Tokenizer, load_tokenizer, refuse_lfs_pointers
from gpt1_jax.errors import UserError
from gpt1_jax.interop import hugging_face, hugging_face_tokenizer, openai
from gpt1_jax.interop.run_folder import save_params
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel.processes import is_joined
from gpt1_jax.runs.folder import CONFIG_FILE, locate_run

RUN, HUGGING_FACE, OPENAI = "run", "huggingface", "openai"

TOKENIZER_FOLDER = "gpt1_jax_tokenizer"  # our own format, beside other weights
OPENAI_BPE_FILES = ("encoder_bpe_40000.json", "vocab_40000.bpe")
HUGGING_FACE_BPE_FILES = ("vocab.json", "merges.txt")


def find_format(folder: epath.Path) -> str:
    """The format of a folder, detected from its files."""
    if (folder / CONFIG_FILE).exists():
        values = read_json(folder / CONFIG_FILE)
        if "job" in values:
            return RUN
        if "model_type" in values:
            return HUGGING_FACE
    shards = (openai.SHAPES_FILE, openai.shard_file(0))
    if any((folder / name).exists() for name in shards):
        return OPENAI
    raise FileNotFoundError(
        f"config.init_from={str(folder)!r} holds no model: a run folder has a "
        f"{CONFIG_FILE} with a job, a Hugging Face folder one with a model_type, "
        f"OpenAI's model/ folder {openai.SHAPES_FILE}."
    )


class ForeignModel(NamedTuple):
    """A language model that was read from another format."""

    config: ModelConfig
    params: Params
    tokenizer: Tokenizer
    notes: list[str]  # what was left out, and how it was read; a sentence each


def make_run(config: ConvertConfig, target: str) -> list[str]:
    """Makes a run folder of the model in `config.init_from`; returns its notes.

    Raises:
      OSError, UserError: as `read_model` and `save_params`.
    """
    model = read_model(locate_run(config.init_from), config.model)
    sized = dataclasses.replace(config, model=config.model.with_sizes(model.config))
    save_params(target, model.params, model.tokenizer, sized)
    return model.notes


def make_run_alone(config: ConvertConfig, target: str) -> list[str]:
    """`make_run` for one of several processes that have joined.

    It starts another process, because orbax makes all that have joined save a
    checkpoint together.

    Raises:
      ChildProcessError: if that process dies.
    """
    if not is_joined():
        return make_run(config, target)
    # It can import what this process can, and nothing else from the working folder.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths},
        input=pickle.dumps((config.to_dict(), target)),
        stdout=subprocess.PIPE,
    )
    try:
        found = pickle.loads(done.stdout)
    except (EOFError, pickle.UnpicklingError) as error:
        raise ChildProcessError(
            f"{config.init_from} was not converted: the process that does it died, "
            "perhaps for lack of memory."
        ) from error
    if isinstance(found, Exception):
        raise found
    return list(found)


# Ctrl-C ends it without a traceback, which would be of the imports.
_PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
from gpt1_jax.interop import foreign
foreign.main()
"""


def main() -> None:
    """The main function of the process that `make_run_alone` starts."""
    result = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for what libraries print
    values, target = pickle.load(sys.stdin.buffer)
    try:
        found: object = make_run(config_lib.load(values), target)
    except Exception as error:
        found = error
    with result:
        pickle.dump(found, result)


def read_model(folder: epath.Path, options: ModelOptions) -> ForeignModel:
    """Reads a language model in another format.

    Its options are the part of a run's `config.model` that is not sizes.

    Raises:
      FileNotFoundError: if a file is missing.
      ImportError: if a package is missing that its weights or its tokenizer need.
      UserError: if a file is damaged, or holds another kind of model.
    """
    notes: list[str] = []
    if find_format(folder) == OPENAI:
        sizes, params = openai.read_shards(folder)
    else:
        sizes, params, notes = hugging_face.read_model(folder)
    tokenizer = read_tokenizer(folder, sizes.vocab_size)
    if more := sizes.vocab_size - tokenizer.vocab_size:
        sizes = sizes._replace(vocab_size=tokenizer.vocab_size)
        params = {**params, "wte": params["wte"][: tokenizer.vocab_size]}
        notes.append(
            f"The last {more:,} row{'s' * (more > 1)} of the token embedding, for "
            "which the tokenizer has no entries, are left out: added tokens, or "
            "padding."
        )
    if tokenizer.kind == "huggingface" and not (folder / TOKENIZER_FOLDER).exists():
        notes.append("The tokenizer is read as the library tokenizers does.")
    section = {**vars(options), **sizes.section()}
    model = ModelConfig(**section, vocab_size=sizes.vocab_size)
    return ForeignModel(model, params, tokenizer, notes)


def read_tokenizer(folder: epath.Path, vocab_size: int) -> Tokenizer:
    """The tokenizer beside weights: our own copy, GPT-1's two BPE files, or any other.

    The token embedding of the weights has `vocab_size` rows.

    Raises:
      FileNotFoundError: if the folder holds no tokenizer that can be read.
      ImportError: if it is GPT-1's own, and spaCy is not installed.
      ValueError: if it is damaged, or has more entries than there are rows.
    """
    tokenizer = _load_tokenizer(folder)
    if tokenizer.vocab_size > vocab_size:
        raise UserError(
            f"The tokenizer in {folder} has {tokenizer.vocab_size} entries; the token "
            f"embedding has {vocab_size} rows. They do not belong together."
        )
    return tokenizer


def _load_tokenizer(folder: epath.Path) -> Tokenizer:
    if (folder / TOKENIZER_FOLDER).exists():
        return load_tokenizer(folder / TOKENIZER_FOLDER)
    refuse_lfs_pointers(folder)
    for files in (OPENAI_BPE_FILES, HUGGING_FACE_BPE_FILES):
        if all((folder / name).exists() for name in files):
            contents = [(folder / name).read_bytes() for name in files]
            texts = [
                c.decode("utf-8", "replace").replace("\r\n", "\n") for c in contents
            ]
            return _gpt1_tokenizer(f"{' and '.join(files)} in {folder} are", *texts)
    file = folder / hugging_face_tokenizer.TOKENIZER_FILE
    if file.exists():
        if found := hugging_face_tokenizer.read_gpt1_files(file):
            return _gpt1_tokenizer(f"{file} is", *found)
        return load_tokenizer(file)
    raise FileNotFoundError(
        f"{folder} holds no tokenizer that can be read: neither {TOKENIZER_FOLDER}/ "
        f"nor {' and '.join(OPENAI_BPE_FILES)} nor "
        f"{' and '.join(HUGGING_FACE_BPE_FILES)} nor {file.name}. Copy GPT-1's two "
        "files there."
    )


def _gpt1_tokenizer(described: str, encoder: str, merges: str) -> Tokenizer:
    from gpt1_jax.data.gpt1_tokenizer import GPT1Tokenizer  # imports ftfy

    try:
        return GPT1Tokenizer(encoder, merges)
    except (OSError, ImportError):
        raise
    except Exception as error:  # from JSON or from the BPE
        raise UserError(f"{described} not GPT-1's vocabulary: {error}") from error
