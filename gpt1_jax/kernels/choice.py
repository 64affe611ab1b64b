"""Which kernels there are, where they are known to be faster, if they are right there.

They are checked (`check.py`) on the chip that is to use them, once: the verdict is
kept beside the compiled programs, in a file for each function, device kind, version and
size.
"""

import contextlib
import datetime
import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from etils import epath
from jax.typing import DTypeLike

import gpt1_jax
from gpt1_jax.config import ModelConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.config.sections import compilation_cache
from gpt1_jax.data.files import is_remote, json_digest, make_folder, write_json
from gpt1_jax.data.owner import Held, system_lock
from gpt1_jax.errors import UserError
from gpt1_jax.kernels.check import AttentionCheck, Form, LayerNormCheck
from gpt1_jax.ops.attention import is_causal
from gpt1_jax.parallel.processes import EXIT_AGAIN, Watchdog
from gpt1_jax.runs.forms import KERNELS, TITLES

# For each backend, the module of this package with a function's kernels, and its entry.
ENTRIES = {
    "attention": {"tpu": "attention_tpu:attention", "gpu": "attention_gpu:attention"},
    "layer_norm": {"gpu": "layer_norm_gpu:residual_layer_norm"},
}
# Kinds of chip on which kernels are known to be faster than XLA's code, by what JAX's
# name for them begins with. How it is known, all in bfloat16 (`benchmarks/LOG.md`): an
# H200 took 0.898 ms for XLA's 2.58, and 0.198 for 0.351 ("An update on an H200"); an
# H100 timed both at the start of five runs, which took them ("GPT-1's layers on
# novels"); by their machine code the kernels are faster since ("The update on a GPU").
# For TPU v5e and v6e the compiler counts a sixth of the cycles ("What was tried").
FASTER = {
    "attention": (
        *("NVIDIA H100", "NVIDIA H200"),
        *("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e"),
    ),
    "layer_norm": ("NVIDIA H100", "NVIDIA H200"),
}

_NUM_SEQS = 4  # of a check; for more, the same program runs more often
_STUCK_SECONDS = 180.0  # for a check, whose programs take a few seconds to compile
_FOLDER = "forms"  # inside the folder of compiled programs
_MESSAGE = 160  # characters kept of a compiler's message
_WHY_NOT = "why_not"  # in a file: what is wrong with the kernel; "" if it is right
_NO_MEMORY = "RESOURCE_EXHAUSTED"  # in XLA's messages


def why_not(
    name: str, model: ModelConfig, seq_len: int, training: bool, before: str
) -> str:
    """Why a run computes a function without kernels; empty if it uses them.

    Kernels that the configuration names are used unchecked. Those that the run has used
    so far must be right; others must be right and known to be faster on this chip.

    Args:
      name: "attention" or "layer_norm".
      model: the model's configuration; the function's form is "auto" or "fused".
      seq_len: tokens in each sequence.
      training: whether gradients are computed, and dropout is on.
      before: the form that the run has used so far; "" if it has not begun.
    """
    shape = array_shape(name, model, seq_len)
    kernels, why = find_kernels(name, shape, model.dtype)
    if kernels is None or getattr(model, f"{name}_form") == KERNELS:
        return why
    device = jax.local_devices()[0].device_kind
    if before != KERNELS and not device.startswith(FASTER[name]):
        return f"it is not known to be faster on {device}"
    of_attention = name == "attention"
    rate = model.attn_dropout if of_attention else model.resid_dropout
    facts = {
        "function": name,
        "shape": shape,
        "dtype": model.dtype,
        "dropout": rate if training else 0.0,
        "training": training,
        "device": device,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "gpt1_jax": gpt1_jax.__version__,
    }
    check_of = AttentionCheck if of_attention else LayerNormCheck

    def check() -> str:
        return check_of(shape, model.dtype, rate, training).why_not(kernels)

    return _verdict(facts, check)


# --- which there are ------------------------------------------------------------------


def array_shape(name: str, model: ModelConfig, seq_len: int) -> tuple[int, ...]:
    """The shape of a function's large arrays in a check, [N, T, H, K] or [N, T, D]."""
    if name == "attention":
        heads = model.num_heads, model.embed_dim // model.num_heads
        return _NUM_SEQS, seq_len, *heads
    return _NUM_SEQS, seq_len, model.embed_dim


def find_kernels(
    name: str, shape: tuple[int, ...], dtype: DTypeLike
) -> tuple[Form | None, str]:
    """A function by kernels for this accelerator, or None and why there are none.

    Args:
      name: "attention" or "layer_norm".
      shape: shape of its large arrays, [N, T, H, K] or [.., D].
      dtype: their dtype.
    """
    backend = jax.default_backend()
    if name == "attention" and not is_causal(shape[1]):
        return None, "it is causal, and `may_attend` of gpt1_jax.ops.attention is not"
    if backend not in ENTRIES[name]:
        return None, f"there are none for a {backend.upper()}"
    module, _, entry = ENTRIES[name][backend].partition(":")
    # Imported only here, as importing Pallas takes a second.
    kernels = importlib.import_module(f"gpt1_jax.kernels.{module}")
    why = kernels.refusal(shape, dtype)
    return (None, why) if why else (getattr(kernels, entry), "")


def kernels_here(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Form | None:
    """Like `find_kernels`, for a form that was requested: warns if there are none."""
    kernels, why = find_kernels(name, shape, dtype)
    if why:
        warnings.warn(f"{TITLES[name]} without kernels: {why}", stacklevel=3)
    return kernels


# --- whether they are right: checked once ---------------------------------------------


def _verdict(facts: Mapping[str, Any], check: Callable[[], str]) -> str:
    """What is wrong with a kernel: as an earlier check found, or found now.

    It does without a file that cannot be written.
    """
    configured = getattr(jax.config, "jax_compilation_cache_dir", None)
    folder = epath.Path(compilation_cache(configured or "")) / _FOLDER
    file = folder / f"{facts['function']}-{json_digest(facts)[:16]}.json"
    try:
        with _locked(file):
            why = _remembered(file)
            return _checked(file, facts, check) if why is None else why
    except Held:
        return "another process has been checking it for too long"


@contextlib.contextmanager
def _locked(file: epath.Path) -> Iterator[None]:
    """Keeps other processes on this machine from making the same check."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            make_folder(file.parent)
            if not is_remote(file):
                lock = Path(file).with_suffix(".lock")
                held.enter_context(system_lock(lock, _STUCK_SECONDS))
        yield


def _remembered(file: epath.Path) -> str | None:
    """The verdict in a file; None if it is missing or damaged."""
    try:
        why = read_json(file).get(_WHY_NOT)
    except UserError:
        return None
    return why if isinstance(why, str) else None


def _checked(
    file: epath.Path, facts: Mapping[str, Any], check: Callable[[], str]
) -> str:
    """Checks a kernel and keeps the verdict.

    Until it is known, the file says that the kernel hung or ended the process.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    ended = f"it hung or ended the process that checked it on {now}"
    _write(file, facts, f"{ended} (delete {file} to check it again)")
    stuck = (
        f"stuck: the check of the kernels for {TITLES[facts['function']]} did not end "
        f"within {_STUCK_SECONDS:.0f} seconds. Run the same command again, which does "
        "without them."
    )
    why = None
    try:
        with Watchdog(_STUCK_SECONDS, stuck, EXIT_AGAIN, traces=True):
            why = check()
    except Exception as error:  # compilers may raise anything
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        why = f"{message:.{_MESSAGE}}"
    finally:
        if why is None or _NO_MEMORY in why:  # interrupted; or it may be free later
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
        else:
            _write(file, facts, why)
    return why


def _write(file: epath.Path, facts: Mapping[str, Any], why: str) -> None:
    with contextlib.suppress(OSError):
        write_json(file, {**facts, _WHY_NOT: why})
