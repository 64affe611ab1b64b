"""The arrays in a Hugging Face folder: safetensors, or .bin where torch is installed.

Safetensors hold nothing but arrays. A .bin file is a pickle, of which torch's
`weights_only` reader builds arrays alone and refuses the rest.
"""

import io
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import write_whole
from gpt1_jax.errors import MissingPackage, UserError

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
BIN_FILE = "pytorch_model.bin"

# Masks and positions, which old files hold beside the parameters.
_BUFFERS = (".attn.bias", ".attn.masked_bias", "position_ids")

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": jnp.bfloat16}


def read(folder: epath.Path) -> dict[str, np.ndarray]:
    """All parameters in a folder by name, as float32; buffers are left out.

    Raises:
      FileNotFoundError: if there are no weights, or a part is missing.
      ImportError: if there is only a .bin file, and torch is not installed.
      ValueError: if a file is damaged, or holds anything but floating-point arrays.
    """
    if (folder / WEIGHTS_FILE).exists():
        return _read_safetensors(folder / WEIGHTS_FILE)
    if (folder / INDEX_FILE).exists():
        arrays: dict[str, np.ndarray] = {}
        for name in _parts(folder / INDEX_FILE):
            arrays.update(_read_safetensors(folder / name))
        return arrays
    if (folder / BIN_FILE).exists():
        return _read_bin(folder / BIN_FILE)
    raise FileNotFoundError(
        f"{folder} holds no weights: it has none of {WEIGHTS_FILE}, {INDEX_FILE} and "
        f"{BIN_FILE}."
    )


def write(folder: epath.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes model.safetensors, marked as transformers wants it."""
    # What is not contiguous would be saved in the wrong order, without an error.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = safetensors.numpy.save(contiguous, metadata={"format": "pt"})
    write_whole(folder / WEIGHTS_FILE, content)


def _parts(index: epath.Path) -> list[str]:
    """The files that an index names."""
    weight_map = read_json(index).get("weight_map")
    found = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    if not found or not all(isinstance(name, str) and name for name in found):
        raise UserError(f"{index} has no weight_map of names to files.")
    for name in sorted(found):
        if epath.Path(name).name != name:
            raise UserError(f"{index} names {name!r}, which lies in another folder.")
        if not (index.parent / name).exists():
            raise FileNotFoundError(
                f"{index.parent} lacks {name}, a part of the model."
            )
    return sorted(found)


def _read_safetensors(path: epath.Path) -> dict[str, np.ndarray]:
    try:
        entries = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise UserError(
            f"{path} is damaged, perhaps cut short: {error}. Copy the file again."
        ) from error
    return {
        name: _decode(path, name, entry) for name, entry in entries if _wanted(name)
    }


def _decode(path: epath.Path, name: str, entry: Mapping[str, Any]) -> np.ndarray:
    if entry["dtype"] not in _DTYPES:
        raise _not_floats(path, name, entry["dtype"])
    array = np.frombuffer(entry["data"], np.dtype(_DTYPES[entry["dtype"]]))
    return array.astype(np.float32).reshape(entry["shape"])


def _read_bin(path: epath.Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise MissingPackage(
            f"{path} is PyTorch's own format; install torch to read it, or save the "
            f"model as {WEIGHTS_FILE} with transformers' save_pretrained."
        ) from error
    try:
        file = io.BytesIO(path.read_bytes())
        held = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zip's and torch's own
        raise UserError(
            f"{path} is damaged, or holds more than weights ({type(error).__name__}). "
            "Nothing in it was executed; get the model as safetensors."
        ) from error
    if not isinstance(held, dict):
        raise UserError(f"{path} holds {type(held).__name__}, not weights by name.")
    arrays = {}
    for name, tensor in held.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise _not_floats(path, str(name), type(tensor).__name__)
        if not _wanted(name):
            continue
        if not tensor.is_floating_point():
            raise _not_floats(path, name, str(tensor.dtype))
        arrays[name] = tensor.float().numpy()
    return arrays


def _wanted(name: str) -> bool:
    return not name.endswith(_BUFFERS)


def _not_floats(path: epath.Path, name: str, found: str) -> UserError:
    return UserError(f"{path}: {name} holds {found}, not floating-point numbers.")
