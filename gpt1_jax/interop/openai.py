"""OpenAI's released `model/` folder: ten shards of one flat vector, and their shapes.

The vector holds the tensors in the order of `names.tensors`, each in C order; the
boundaries of shards mean nothing. The released files do not say how many heads the
model has; its heads are 64 wide. Folders written here say it in `gpt1_jax.json`.
"""

import io
import json
import math
from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import create, write_json
from gpt1_jax.data.text import refuse_lfs_pointer
from gpt1_jax.errors import UserError
from gpt1_jax.interop import names
from gpt1_jax.interop.names import Sizes
from gpt1_jax.model.language_model import Params

SHAPES_FILE = "params_shapes.json"
NUM_SHARDS = 10

_HEADS_FILE = "gpt1_jax.json"
_HEAD_DIM = 64  # width of a head in the released model
_PER_LAYER = 12  # tensors in a layer
_FC = 6  # the place of mlp/c_fc/kernel among them


def shard_file(number: int) -> str:
    """The name of a shard."""
    return f"params_{number}.npy"


def read_shards(folder: epath.Path) -> tuple[Sizes, Params]:
    """Reads the sizes and parameters of a folder, and opens no pickle in it.

    Raises:
      FileNotFoundError: if a file is missing.
      ValueError: if the shapes are not those of a GPT-1, or do not fit the shards.
    """
    sizes = _read_sizes(folder)
    table = names.tensors(sizes)
    vector = _read_vector(folder)
    ends = np.cumsum([math.prod(tensor.shape) for tensor in table])
    if vector.size != ends[-1]:
        raise UserError(
            f"The shards in {folder} hold {vector.size:,} numbers; {SHAPES_FILE} lists "
            f"{ends[-1]:,}. Copy the whole folder again."
        )
    parts = np.split(vector, ends[:-1])
    pairs = zip(table, parts, strict=True)
    flat = {tensor.name: part.reshape(tensor.shape) for tensor, part in pairs}
    return sizes, names.unflatten_params(flat)


def write_shards(folder: epath.Path, sizes: Sizes, params: Params) -> None:
    """Writes shards, shapes and the number of heads into an existing folder."""
    table, flat = names.tensors(sizes), names.flatten_params(params)
    vector = np.concatenate([np.ravel(flat[tensor.name]) for tensor in table])
    for number, shard in enumerate(np.array_split(vector, NUM_SHARDS)):
        file = io.BytesIO()
        np.save(file, shard.astype(np.float32), allow_pickle=False)
        create(folder / shard_file(number), file.getvalue())
    shapes = json.dumps([tensor.openai_shape for tensor in table])
    create(folder / SHAPES_FILE, shapes)
    write_json(folder / _HEADS_FILE, {"num_heads": sizes.num_heads})


def _read_sizes(folder: epath.Path) -> Sizes:
    """The sizes that the list of shapes implies, if it is that of a GPT-1."""
    path = folder / SHAPES_FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} lacks {SHAPES_FILE}; config.init_from must name the `model/` "
            "folder of openai/finetune-transformer-lm."
        )
    try:
        shapes: Any = json.loads(path.read_text(encoding="utf-8"))
        (max_seq_len, embed_dim), (vocab_size, _), *in_layers = shapes
        num_layers, (_, _, mlp_dim) = len(in_layers) // _PER_LAYER, in_layers[_FC]
        sizes = Sizes(vocab_size, num_layers, 1, embed_dim, mlp_dim, max_seq_len)
        ours = [list(tensor.openai_shape) for tensor in names.tensors(sizes)]
        if shapes != ours or not all(type(each) is int and each > 0 for each in sizes):
            raise ValueError(f"not those of {sizes}")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise UserError(
            f"{path} does not list GPT-1's shapes: positions, tokens and {_PER_LAYER} "
            "for each layer. Copy the file again."
        ) from error
    return sizes._replace(num_heads=_num_heads(folder, embed_dim))


def _num_heads(folder: epath.Path, embed_dim: int) -> int:
    path = folder / _HEADS_FILE
    if not path.exists():
        released, rest = divmod(embed_dim, _HEAD_DIM)
        if rest:
            raise UserError(
                f"{folder} does not say how many heads the model has, and its width "
                f"{embed_dim} is no multiple of the released model's {_HEAD_DIM} a "
                f'head; write {{"num_heads": N}} into {path}.'
            )
        return released
    heads = read_json(path).get("num_heads")
    if type(heads) is not int or heads < 1 or embed_dim % heads:
        raise UserError(
            f"{path} names num_heads={heads!r}, which does not divide the model's "
            f"width {embed_dim}."
        )
    return heads


def _read_vector(folder: epath.Path) -> np.ndarray:
    """All shards as one vector."""
    paths = [folder / shard_file(number) for number in range(NUM_SHARDS)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise FileNotFoundError(
            f"{folder} lacks {', '.join(missing)} of its {NUM_SHARDS} shards; copy the "
            "whole folder again."
        )
    return np.concatenate([_read_shard(path) for path in paths])


def _read_shard(path: epath.Path) -> np.ndarray:
    content = path.read_bytes()
    refuse_lfs_pointer(content, str(path))
    try:
        array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # NumPy reads the header of a file as Python
        raise UserError(
            f"{path} is not an array of numbers: {' '.join(str(error).split())} "
            "Nothing in it was executed; copy the file again."
        ) from error
    if array.dtype.kind != "f" or array.ndim != 1:
        raise UserError(
            f"{path} holds {array.dtype} numbers of shape {array.shape}; a shard is a "
            "flat array of floating-point numbers."
        )
    return array.astype(np.float32, copy=False)
