"""Writes the core of the package to a folder: pre-training alone, with its tests.

    python tests/core.py FOLDER

The core is what `gpt1_jax.jobs.pretrain` imports, imports inside functions counted,
with the command line and `configs/pretrain.py`, whose values are changed where they ask
for more. Of the tests, those go along that need nothing else. A README says what is
there, and what is not.
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
_TESTED = (  # folders of tests
    *("config", "data", "jobs", "model", "ops", "parallel", "runs", "training"),
)
_TESTS_OF_ALL = ("test_main.py", "test_resume.py")
# In a test: what is of other jobs, found by name, or of the repository around.
_ELSEWHERE = re.compile(
    r"configs/(?!pretrain)|gpt1_jax\.load\b|\b(JOBS|STUDIES)\b|\bfile=|\bROOT\b"
    r"|tensorboard=True|source=\"(builtin|tokens)\"|\"(report|tensorboard)\"|eval__sample"
    r"|plots/|(?<!metrics)\.(jsonl|gz|zst|parquet)\b|gzip|jsonl_|\bMARK\b|\bshared_cache\b"
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
        for other in imported(ast.parse(paths[name].read_text())):
            inside = other.removeprefix("gpt1_jax.")
            if inside != other:
                todo += [inside, inside.rpartition(".")[0]]
    return found


def size(names: set[str]) -> tuple[int, int]:
    """How many modules those are, without the `__init__` of packages, and lines."""
    paths = [path for name, path in module_paths().items() if name in names]
    lines = sum(line_counts(names).values())
    return sum(path.name != "__init__.py" for path in paths), lines


def line_counts(names: set[str]) -> dict[str, int]:
    """The number of lines of each of these modules."""
    return {
        name: len(path.read_text().splitlines())
        for name, path in module_paths().items()
        if name in names
    }


# --- the tests ----------------------------------------------------------------------


class TestFile:
    """A file of tests or of their helpers, by its top-level definitions."""

    def __init__(self, path: Path):
        self.path = path
        self.lines = path.read_text().splitlines(keepends=True)
        self.body = ast.parse("".join(self.lines)).body
        self.imports = {}  # the name that is bound: what it stands for
        self.defined = {}  # a name: the statement
        for node in self.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias, name in zip(node.names, imported(node), strict=True):
                    self.imports[alias.asname or alias.name] = name
            for name in _names_made(node):
                self.defined[name] = node

    def source(self, node: ast.stmt) -> str:
        """The text of a statement, with its decorators."""
        first, last = self.span(node)
        return "".join(self.lines[first:last])

    @staticmethod
    def span(node: ast.stmt) -> tuple[int, int]:
        """The lines of a statement, with its decorators."""
        decorators = getattr(node, "decorator_list", [])
        return min(each.lineno for each in (*decorators, node)) - 1, node.end_lineno


def _names_made(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [x.id for each in node.targets for x in ast.walk(each) if _is_name(x)]
    return []


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


@functools.cache
def _used(node: ast.AST) -> frozenset[str]:
    """Names that a statement uses; of a test or fixture, also those of fixtures."""
    names = set()
    for each in ast.walk(node):
        match each:
            # The last: @pytest.mark.usefixtures("name")
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Constant(value=str(name)):
                names.add(name)
    return frozenset(names)


@functools.cache
def _imported(node: ast.AST) -> frozenset[str]:
    return frozenset(imported(node))


def core_tests(core: set[str]) -> dict[Path, str]:
    """The tests that need nothing but these modules: their text by path below tests/.

    Args:
      core: the names of the modules.
    """
    files = {
        path.relative_to(ROOT / "tests"): TestFile(path)
        for path in sorted((ROOT / "tests").glob("*.py"))
        + [each for name in _TESTED for each in (ROOT / "tests" / name).glob("*.py")]
        if path.name != Path(__file__).name
        and (path.parent.name != "tests" or _is_helper(path))
        and not _is_outside(_tested(path), core, module_paths())
    }
    dropped: set[tuple[Path, str]] = set()
    while more := _needing_more(files, core, dropped) - dropped:
        dropped |= more
    kept = {path: _without(file, path, dropped) for path, file in files.items()}
    return _with_their_helpers(kept)


def _tested(path: Path) -> str:
    """The module that a file of tests is named after, if there is such a module."""
    return f"gpt1_jax.{path.parent.name}.{path.stem.removeprefix('test_')}"


def _is_helper(path: Path) -> bool:
    """Whether a file beside the folders of tests is of use to the core."""
    return not path.name.startswith("test_") or path.name in _TESTS_OF_ALL


def _needing_more(files, core, dropped):
    """Definitions that need a module outside the core, or one that was dropped."""
    found = set()
    modules = module_paths()
    for path, file in files.items():
        helpers = [p for p in (Path("conftest.py"), path.parent / "conftest.py")]
        for name, node in file.defined.items():
            used, text = _used(node), file.source(node)
            names = {file.imports[each] for each in used if each in file.imports}
            names |= _imported(node) | set(re.findall(r"gpt1_jax\.[\w.]+", text))
            if (
                _ELSEWHERE.search(text)
                or any(_is_outside(each, core, modules) for each in names)
                or any((path, each) in dropped for each in used - {name})
                or any((p, each) in dropped for p in helpers for each in used)
                or any(_helper(each) in dropped for each in names)
            ):
                found.add((path, name))
    return found


def _helper(name: str) -> tuple[Path, str]:
    """What "tiny_run.load_config" stands for: a definition in a file of helpers."""
    module, _, attribute = name.rpartition(".")
    return Path(f"{module}.py"), attribute


def _is_outside(name: str, core: set[str], modules: dict[str, Path]) -> bool:
    """Whether a dotted name leads to a module of the package outside the core."""
    if not name.startswith("gpt1_jax."):
        return name.startswith("benchmarks.")
    parts = name.split(".")[1:]
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module in modules:
            return module not in core and module not in DOOR
    return False


def _without(file: TestFile, path: Path, dropped: set) -> str:
    """The text of a file without what was dropped, and imports that only it used."""

    def is_kept(node: ast.stmt) -> bool:
        names = _used(node) if isinstance(node, ast.Expr) else _names_made(node)
        return not any((path, name) in dropped for name in names)

    nodes = list(filter(is_kept, file.body))
    others = [n for n in nodes if not isinstance(n, ast.Import | ast.ImportFrom)]
    used = set().union(*map(_used, others)) if others else set()
    lines = list(file.lines)
    for node in file.body:
        first, last = file.span(node)
        if node not in nodes:
            lines[first:last] = [""] * (last - first)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [
                a for a in node.names if (a.asname or a.name.split(".")[0]) in used
            ]
            lines[first:last] = [""] * (last - first)
            if names:
                node.names = names
                lines[first] = ast.unparse(node) + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", "".join(lines))


def _with_their_helpers(texts: dict[Path, str]) -> dict[Path, str]:
    """Files with tests, and the helpers that those import."""
    tests = {p for p, text in texts.items() if re.search(r"^def test_", text, re.M)}
    kept, todo = set(), [*tests, Path("conftest.py")]
    while todo:
        if (path := todo.pop()) in kept or path not in texts:
            continue
        kept.add(path)
        todo += [path.parent / "conftest.py"]
        for name in imported(ast.parse(texts[path])):
            todo.append(Path(f"{name.partition('.')[0]}.py"))
    return {path: texts[path] for path in sorted(kept)}


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

`python -m pytest tests` runs those tests of the package that need nothing else.

## Change it

| to change | look into |
| --- | --- |
| the model, attention | `gpt1_jax/model/transformer.py`, `gpt1_jax/ops/attention.py` |
| the loss and the step | `gpt1_jax/training/steps.py` |
| the optimizer | `gpt1_jax/training/optimizer.py` |
| what is read when | `gpt1_jax/data/windows.py` |
| a value of the configuration | `configs/pretrain.py`, `gpt1_jax/config/sections.py` |

## What is here

| in `gpt1_jax/` | modules | lines | |
| --- | ---: | ---: | --- |
{here}

## What is not here

Fine-tuning, all other jobs and studies, and what pre-training finds by name: a line
says that it is missing, and training goes on without sampled text, the plot of the loss
and kernels. To have one of these, copy its module from gpt1_jax, and what that imports.
A gpt1_jax that is installed besides is not looked into.

| in `gpt1_jax/` | |
| --- | --- |
{missing}
"""


def _readme(core: set[str], carried: set[str]) -> str:
    """What the copy is, for its reader: what it has, what it lacks, how to begin."""
    paths = module_paths()
    rooms = sorted({name.partition(".")[0] for name in core})
    sizes = {room: size({n for n in core if n.split(".")[0] == room}) for room in rooms}
    modules, lines = size(core)
    return _README.format(
        modules=modules,
        lines=lines,
        here="\n".join(
            f"| {room} | {number} | {length:,} | {_says(paths[room])} |"
            for room, (number, length) in sizes.items()
        ),
        missing="\n".join(
            f"| {name} | {_says(paths[name])} |"
            for name in sorted(_named({paths[name] for name in carried}) - carried)
        ),
    )


def _says(path: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = re.split(r"\.(?=\s|$)", docstring.replace("|", "\\|"))[0]
    return first.partition("\n\n")[0].replace("\n", " ")


def _named(paths: set[Path]) -> set[str]:
    """The modules that tables name: "gpt1_jax.MODULE:NAME" or "gpt1_jax.MODULE"."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = re.fullmatch(r"gpt1_jax\.([\w.]+)(:\w+)?", node.value)
                found |= {named[1]} if named else set()
    return found & set(module_paths())


# --- the folder ---------------------------------------------------------------------


def write_core(folder: Path) -> set[str]:
    """Writes the core to a new or empty folder; returns the names of its modules."""
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name another folder.")
    core, paths = closure("jobs.pretrain"), module_paths()
    carried = core | closure(*DOOR) | {""}
    for path in [paths[name] for name in carried] + [ROOT / name for name in _ALSO]:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    recipe = (ROOT / _RECIPE).read_text()
    if recipe.count(_END) != 1:
        raise ValueError(f"{_RECIPE} does not have {_END!r} once.")
    (folder / _RECIPE).parent.mkdir()
    (folder / _RECIPE).write_text(recipe.replace(_END, _VALUES + _END))
    (folder / "README.md").write_text(_readme(core, carried))
    (folder / "gpt1_jax" / "py.typed").touch()
    (folder / "gpt1_jax" / "configs").symlink_to("../configs")
    for path, text in core_tests(carried).items():
        target = folder / "tests" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
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
