"""The built-in corpus: the documentation that is on every machine."""

import ast
import functools
import gc
import importlib.metadata
import importlib.util
import inspect
import json
import platform
import re
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path

from gpt1_jax.config.sections import DataConfig
from gpt1_jax.data.files import files_below, write_whole
from gpt1_jax.data.named_texts import NamedText

PACKAGES = ("numpy", "scipy", "jax", "flax", "optax", "matplotlib")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_NOT_DOCUMENTATION = {"site-packages", "test", "tests", "idlelib"}


def find_text(
    config: DataConfig, cache_dir: Path, say: Callable[[str], None]
) -> tuple[list[NamedText], list[NamedText]]:
    """The documentation on this machine; none of it is named for validation."""
    del config
    return builtin_texts(cache_dir, say), []


def builtin_texts(cache_dir: Path, say: Callable[[str], None]) -> list[NamedText]:
    """The documentation of Python and of the installed scientific packages.

    Language reference topics and the docstrings found in the sources of the
    standard library, numpy, scipy, jax and more: English prose, about 10 MB. They
    are collected once into a JSON file under `cache_dir`, one text per module.

    Args:
      cache_dir: the cache folder.
      say: shows a line to the user.
    """
    versions = {"python": platform.python_version(), "format": "1"}
    for package in PACKAGES:
        if importlib.util.find_spec(package):
            versions[package] = importlib.metadata.version(package)
    label = "-".join(f"{name}{version}" for name, version in versions.items())
    path = cache_dir / "builtin" / f"{label}.json"
    texts = _read(path)
    if not texts:
        again = " again: the collected file is damaged" if path.exists() else ""
        say(f"Collecting the documentation on this machine, once{again}.")
        gc.disable()  # one of its callbacks, JAX's, can lose a signal's exception
        try:
            texts = _collect_docstrings([name for name in versions if name in PACKAGES])
        finally:
            gc.enable()
        write_whole(path, json.dumps(texts, indent=0))

    return [
        NamedText(name, label, len(text), functools.partial(iter, [text]))
        for name, text in sorted(texts.items())
    ]


def _read(path: Path) -> dict[str, str]:
    """The texts collected earlier; none if the file is missing or damaged."""
    try:
        texts = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    whole = isinstance(texts, dict) and all(isinstance(t, str) for t in texts.values())
    return texts if whole else {}


def _collect_docstrings(packages: list[str]) -> dict[str, str]:
    """Text by module name; from source files, so nothing is imported or run."""
    import pydoc_data.topics

    texts = {
        f"python.{topic}": unwrap(text)
        for topic, text in pydoc_data.topics.topics.items()
    }
    roots = [Path(sysconfig.get_paths()["stdlib"])]
    for package in packages:
        spec = importlib.util.find_spec(package)
        folders = spec.submodule_search_locations if spec else ()
        roots += [Path(folder) for folder in folders or ()]
    seen: set[str] = set()
    for root in roots:
        for file in sorted(path for path in files_below(root) if path.suffix == ".py"):
            if _NOT_DOCUMENTATION & set(file.relative_to(root).parts):
                continue
            docstrings = [text for text in _docstrings(file) if text not in seen]
            seen.update(docstrings)
            if docstrings:
                name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
                texts[name] = "\n".join(docstrings)
    return texts


def _docstrings(file: Path) -> list[str]:
    """The prose of docstrings of 80 characters or more in one source file."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about their escape sequences
            tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    documented = (node for node in ast.walk(tree) if isinstance(node, Documented))
    found = (ast.get_docstring(node) for node in documented)
    prose = (unwrap(text) for text in found if text and len(text) >= 80)
    return [text for text in prose if text]


def unwrap(text: str) -> str:
    """Joins each paragraph into one line; leaves out code samples and rulers."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    prose = [p for p in paragraphs if ">>>" not in p and "    " not in p[:4]]
    lines = (" ".join(re.sub(r"(?m)^[-=~^*#]{3,}$", "", p).split()) for p in prose)
    return "\n".join(line for line in lines if line)
