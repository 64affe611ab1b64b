"""The walls of the house: which room may import which."""

import ast
import functools
import importlib.metadata
import re
import sys

from core import PACKAGE, closure, imported, module_paths
from tiny_run import setup_cfg

# The syntax tree of each module, by its path in the package.
TREES = {
    path.relative_to(PACKAGE): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}

# A package may import itself and those before it, not those of its own rank.
ORDER = [
    {"errors"},
    {"formats"},
    {"config", "ops", "parallel"},
    {"data", "model"},
    {"inference", "tasks", "addresses"},
    {"runs"},
    {"training"},
    {"kernels", "finetuning", "interop"},
    {"report"},
    {"streams", "trained_model"},
    {"scripting"},
    {"", "jobs"},  # the first is the package itself
    {"studies"},
    {"eval_harness"},
    {"program"},
    {"main"},
    {"__main__"},
]
# What pre-training imports, and nothing else of the package.
CORE = {
    *("errors", "formats", "config", "ops", "parallel", "data", "model", "runs"),
    "training",
}
BY_NAME = {"kernels", "studies"}  # imported only by name, or by these
MODULE_BY_NAME = "gpt1_jax.parallel.overlap"
# Modules beside the studies that several of them share.
SHARED_BY_STUDIES = {
    path.stem for path in (PACKAGE / "studies").glob("*.py") if path.stem != "__init__"
}
DOORS = {"studies": {"eval_harness"}}
FIGURES = {"report", "studies/*/figure.py"}
ONLY_IN = {
    "flax": {"model", "interop/names.py"},
    "orbax": {"runs/checkpoints.py"},
    "huggingface_hub": {
        f"interop/{name}.py" for name in ("hub", "hub_files", "publish", "repository")
    },
    "matplotlib": FIGURES,
    "pandas": {"report", "studies", "scripting.py", "trained_model.py"},
    "tensorflow_datasets": {"data/tfds.py"},
    "pyarrow": {"data/parquet.py"},
    "backports": {"data/text_files.py"},
    "jax.experimental.pallas": {"kernels"},
    "torch": {"interop/hugging_face.py"},  # to read .bin files
    "tensorflow": set(),
    "tensorboardX": {"runs/tensorboard.py"},
    "wandb": {"runs/wandb.py"},
    "lm_eval": {"studies/eval_harness/model.py"},
}
# The second has a message of its own; the third is Python's, from 3.14 on.
IN_NO_EXTRA = {"gpt1_jax", "torch", "compression"}
WITHOUT_JAX = {"config", "data", "tasks"}
# data/files.py writes all else; these hand what it made or checked to a library.
WRITERS = {
    "data/shared_cache.py": {"open"},  # in a bucket
    "data/shards.py": {"memmap"},  # to read
    "data/tables.py": {"File", "ZipFile", "open"},  # in a partial file
    "finetuning/submission.py": {"ZipFile"},  # in memory
    "interop/openai.py": {"save"},  # in memory
    "report/plots.py": {"savefig"},  # in memory
    "runs/tensorboard.py": {"SummaryWriter"},  # in the run folder, under new names
}
WRITING = {
    *("write_text", "write_bytes", "mkdir", "makedirs", "touch", "symlink_to", "link"),
    *("symlink", "hardlink_to", "savez", "savez_compressed", "savefig", "tofile"),
    *("save_file", "SummaryWriter", "ZipFile", "File", "mkdtemp", "mkstemp", "memmap"),
    *("TemporaryFile", "TemporaryDirectory", "NamedTemporaryFile", "copy2", "copyfile"),
    *("copytree", "copy_to", "mknod", "mkfifo"),
}  # fmt: skip

# Where a whole path is a pattern, as the user has written it; else `files.find_files`.
PATTERNS = {"data/named_texts.py": {"glob"}, "data/files.py": {"glob"}}


def room(parts):
    name = parts[0].removesuffix(".py") if parts else ""
    return "" if name == "__init__" else name


def rank(name):
    return next(i for i, rooms in enumerate(ORDER) if name in rooms)


def calls(tree):
    """(the last name of what is called, the call) of each call in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def test_imports_run_one_way():
    assert set().union(*ORDER) == {room(path.parts) for path in TREES}
    for here, tree in TREES.items():
        for name in imported(tree):
            top, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if top == "gpt1_jax" and other not in ("__version__", ""):
                own = room(here.parts)
                assert other == own or rank(other) < rank(own), f"{here} imports {name}"
            if top in ("jax", "jaxlib", "flax"):
                assert room(here.parts) not in WITHOUT_JAX, f"{here} imports {name}"
            if top in ONLY_IN:
                places = {room(here.parts), str(here), f"{here.parts[0]}/*/{here.name}"}
                assert places & ONLY_IN[top], f"{here} imports {name}"


packages_distributions = functools.cache(importlib.metadata.packages_distributions)


def required():
    """The packages that setup.cfg requires, under "", and those of each extra."""
    setup = setup_cfg()
    lists = {**setup["options.extras_require"]}
    lists[""] = setup["options"]["install_requires"]
    return {
        name: {distribution(line) for line in lines.strip().splitlines()}
        for name, lines in lists.items()
    }


def distribution(requirement):
    """The normalised name of a package in a line of setup.cfg."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]*", requirement)[0]).lower()


def with_their_extras(tree):
    """The packages whose import `errors.from_extra` explains, and their extra."""
    for node in ast.walk(tree):
        call = node.items[0].context_expr if isinstance(node, ast.With) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "from_extra":
            for name in imported(node):
                yield name.partition(".")[0], call.args[0].value


def test_every_package_that_is_imported_is_required_or_its_extra_is_named():
    requirements, providers = required(), packages_distributions()
    for path, tree in TREES.items():
        extras = dict(with_their_extras(tree))
        for package in {name.partition(".")[0] for name in imported(tree)}:
            if package in sys.stdlib_module_names or package in IN_NO_EXTRA:
                continue
            names = map(distribution, providers.get(package, [package]))
            listed = requirements[extras.get(package, "")]
            assert listed & set(names), f"{path}: {package} may not be installed"


def test_only_what_uses_an_extra_needs_it():
    """As it is imported; what its functions import may be missing."""
    found, now = set(), {}
    for name, path in module_paths().items():
        body = TREES[path.relative_to(PACKAGE)].body
        body = [x for x in body if not isinstance(x, ast.FunctionDef | ast.ClassDef)]
        names = {f"{each}." for node in body for each in imported(node)}
        now[f"gpt1_jax.{name}"] = names
        if any(dict(with_their_extras(node)) for node in body):
            found.add(f"gpt1_jax.{name}")
    while more := {
        name
        for name, names in now.items()
        if name not in found
        and any(x.startswith(f"{y}.") for x in names for y in found)
    }:
        found |= more
    assert found - {"gpt1_jax.eval_harness.__main__"} == {
        "gpt1_jax.data.parquet",
        "gpt1_jax.eval_harness",
        "gpt1_jax.runs.wandb",
        "gpt1_jax.studies.eval_harness.model",
    }


def test_kernels_and_studies_are_reached_by_name():
    for path, tree in TREES.items():
        here, own = path.parts, room(path.parts)
        for name in imported(tree):
            assert not f"{name}.".startswith(f"{MODULE_BY_NAME}."), f"imports {name}"
            top, *rest = name.split(".")
            if top != "gpt1_jax" or not rest or rest[0] not in BY_NAME:
                continue
            assert own in {rest[0], *DOORS.get(rest[0], ())}, f"{path} imports {name}"
            if own == "studies" and len(here) > 2 and len(rest) > 2:
                known = here[1], *SHARED_BY_STUDIES
                assert rest[1] in known, f"{path} imports the study {rest[1]}"


def test_pretraining_imports_the_core_alone():
    found = closure("jobs.pretrain")
    others = {name for name in found if name.partition(".")[0] not in CORE}
    assert others == {"jobs", "jobs.pretrain"}


def test_what_a_table_names_is_there():
    paths = module_paths()
    for path, tree in TREES.items():
        texts = [x.value for x in ast.walk(tree) if isinstance(x, ast.Constant)]
        for text in texts:
            named = re.fullmatch(r"gpt1_jax\.([\w.]+):(\w+)", str(text))
            if named:
                assert named[1] in paths, f"{path}: {text}"
                body = ast.parse(paths[named[1]].read_text()).body
                assert named[2] in {getattr(each, "name", "") for each in body}, text


def writing_calls(tree):
    """Names of the functions that a module calls to write to disk."""
    for name, node in calls(tree):
        module = getattr(getattr(node.func, "value", None), "id", "")
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        texts = [each.value for each in arguments if isinstance(each, ast.Constant)]
        modes = [t for t in texts if isinstance(t, str) and set(t) & set("wax+")]
        if name == "open" and any(set(mode) <= set("rwaxbt+") for mode in modes):
            yield name
        if (module, name) == ("os", "open") and "O_RDONLY" not in ast.dump(node):
            yield name
        if name in WRITING or (module, name) in (("np", "save"), ("shutil", "copy")):
            yield name


def test_one_module_opens_files_to_write():
    found = {str(path): set(writing_calls(tree)) for path, tree in TREES.items()}
    assert found.pop("data/files.py")
    assert {path: names for path, names in found.items() if names} == WRITERS


def test_the_name_of_a_folder_is_no_pattern():
    called = {
        str(path): {name for name, _ in calls(tree)} for path, tree in TREES.items()
    }
    found = {path: names & {"glob", "iglob", "rglob"} for path, names in called.items()}
    assert {path: names for path, names in found.items() if names} == PATTERNS
