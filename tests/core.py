"""Writes the core of the package to a folder: pre-training alone, with its tests.

    python tests/core.py FOLDER

The core is what `gpt1_jax.jobs.pretrain` imports, imports inside functions counted,
with the command line and `configs/pretrain.py`, whose values are changed where they ask
for more. Of the tests, those files go along that need nothing else. A README says what
is there, and what is not.
"""

import ast
import functools
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpt1_jax"
DOOR = ("", "__main__", "addresses", "main", "program")  # the command line
_ALSO = ("LICENSE", "pyproject.toml", "setup.cfg")
_RECIPE = "configs/pretrain.py"
_END = "    return config.lock()\n"
_VALUES = """\
    config.data.update(source="text", train="gpt1_jax/**/*.py")
    config.log.tensorboard = False
"""  # what the core can do by itself
_TESTED = ("config", "data", "model", "ops", "parallel", "runs", "training")
# In a file of tests: what is of other jobs, found by name, or of the repository around.
_ELSEWHERE = re.compile(
    r"configs/(?!pretrain)|gpt1_jax\.load\b|\b(JOBS|STUDIES)\b|\bfile=|\bROOT\b"
    r"|tensorboard=True|source=\"(builtin|tokens)\"|\"(report|tensorboard)\"|eval__sample"
    r"|plots/|(?<!metrics)\.(jsonl|gz|zst|parquet)\b|gzip|jsonl_|\bMARK\b|\bshared_cache\b"
    r"|\b(finetuned|finetune_base|past_its_best)\b"
)


# --- the package --------------------------------------------------------------------


@functools.cache
def module_paths() -> dict[str, Path]:
    """The modules of the package by their dotted names, without "gpt1_jax."."""
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        paths[".".join(parts).removesuffix("__init__").rstrip(".")] = path
    return paths


def imported(node: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported within a piece of code."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield from (f"{each.module}.{alias.name}" for alias in each.names)


@functools.cache
def _imported_by(path: Path) -> set[str]:
    return {*imported(ast.parse(path.read_text()))}


def closure(*names: str) -> set[str]:
    """The modules with these names, and all modules of the package that they import.

    The package itself is left out, as its `__init__` imports only when asked to.
    """
    paths, found, todo = module_paths(), set(), list(names)
    while todo:
        name = todo.pop()
        if not name or name in found or name not in paths:
            continue
        found.add(name)
        todo.append(name.rpartition(".")[0])
        for other in _imported_by(paths[name]):
            inside = other.removeprefix("gpt1_jax.")
            if inside != other:
                todo += [inside, inside.rpartition(".")[0]]
    return found


def size(names: set[str]) -> tuple[int, int]:
    """How many modules those are, without the `__init__` of packages, and lines."""
    paths = [path for name, path in module_paths().items() if name in names]
    modules = sum(path.name != "__init__.py" for path in paths)
    return modules, sum(line_counts(names).values())


def line_counts(names: set[str]) -> dict[str, int]:
    """The number of lines of each of these modules."""
    return {
        name: len(path.read_text().splitlines())
        for name, path in module_paths().items()
        if name in names
    }


# --- the tests ----------------------------------------------------------------------


def core_tests(core: set[str]) -> set[Path]:
    """The files of tests that need nothing but these modules, and their helpers."""
    tests, kept = ROOT / "tests", set()
    for path in tests.glob("*/*.py"):
        files, todo = set(), [path] if path.parent.name in _TESTED else []
        todo += [tests / "conftest.py"]
        while todo:
            files.add(file := todo.pop())
            helpers = {_helper(name) for name in _needed(file)}
            todo += [each for each in helpers - files if each.exists()]
        if all(_fits(file, core) for file in files):
            kept |= files
    return kept


def _helper(name: str) -> Path:
    """The file that "tiny_run.load_config" is of, if a helper of tests defines it."""
    return ROOT / "tests" / f"{name.partition('.')[0]}.py"


@functools.cache
def _needed(path: Path) -> set[str]:
    """The names that a file of tests needs, and a helper to be imported."""
    body, text = ast.parse(path.read_text()).body, ""
    if path.name.startswith("test_"):
        text = path.read_text()
    else:
        body = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
    names = {name for each in body for name in imported(each)}
    return names | set(re.findall(r"gpt1_jax\.[\w.]+", text))


def _fits(path: Path, core: set[str]) -> bool:
    """Whether a file needs nothing but these modules."""
    if path.name.startswith("test_") and _ELSEWHERE.search(path.read_text()):
        return False
    modules = module_paths().keys() - core - set(DOOR)
    for name in _needed(path):
        inside = name.removeprefix("gpt1_jax.")
        if {inside, inside.rpartition(".")[0]} & modules or name.startswith("bench"):
            return False
    return True


# --- the README ---------------------------------------------------------------------

_README = """\
# Pre-training a GPT, copied out of gpt1_jax

{modules} modules of {lines:,} lines that turn text into a trained model (Radford et al.
2018, eq. 1 and 2), and the command line. `python tests/core.py FOLDER` copied them.

## Run it

With the packages of `setup.cfg` installed, in this folder:

```bash
python -m gpt1_jax.main --config=configs/pretrain.py:quickstart
```

A model of four layers learns to write this code, in minutes: `data.train` in
`configs/pretrain.py` names the modules themselves. Text of your own, and all keys:

```bash
python -m gpt1_jax.main --config=configs/pretrain.py:quickstart \\
    --config.data.train='books/*.txt'
python -m gpt1_jax.main --config=configs/pretrain.py --help
```

`python -m pytest tests` runs those files of tests that need nothing else.

## Change it

| to change | look into |
| --- | --- |
| the model, attention | `gpt1_jax/model/transformer.py`, `gpt1_jax/ops/attention.py` |
| the loss and the step | `gpt1_jax/training/steps.py` |
| the optimizer | `gpt1_jax/training/optimizer.py` |
| what is read when | `gpt1_jax/data/windows.py` |
| a value of the configuration | `configs/pretrain.py`, `gpt1_jax/config/sections.py` |

## What is not here

Fine-tuning, all other jobs and studies, and what pre-training finds by name: a line
says that it is missing, and training goes on without sampled text, the plot of the loss
and kernels. To have one of these, copy its module from gpt1_jax, and what that imports.
A gpt1_jax that is installed besides is not looked into.
"""


# --- the folder ---------------------------------------------------------------------


def write_core(folder: Path) -> set[str]:
    """Writes the core to a new or empty folder; returns the names of its modules."""
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name another folder.")
    core, paths = closure("jobs.pretrain"), module_paths()
    carried = core | closure(*DOOR) | {""}
    others = [*(ROOT / name for name in _ALSO), *core_tests(carried)]
    for path in [*(paths[name] for name in carried), *others]:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    recipe = (ROOT / _RECIPE).read_text()
    if recipe.count(_END) != 1:
        raise ValueError(f"{_RECIPE} does not have {_END!r} once.")
    (folder / _RECIPE).parent.mkdir()
    (folder / _RECIPE).write_text(recipe.replace(_END, _VALUES + _END))
    modules, lines = size(core)
    (folder / "README.md").write_text(_README.format(modules=modules, lines=lines))
    (folder / "gpt1_jax" / "py.typed").touch()
    (folder / "gpt1_jax" / "configs").symlink_to("../configs")
    return core


def main(argv: list[str]) -> None:
    """Writes the core and says how large it is."""
    if len(argv) != 2:
        sys.exit(__doc__)
    try:
        modules, lines = size(write_core(Path(argv[1])))
    except FileExistsError as error:
        sys.exit(str(error))
    print(f"{modules} modules of {lines:,} lines, and the command line, in {argv[1]}.")


if __name__ == "__main__":
    main(sys.argv)
