"""README.md and docs/: documented commands parse, links lead somewhere."""

import contextlib
import copy
import inspect
import re
import shlex
import subprocess
import warnings

import pytest
import yaml
from absl import flags as flags_lib
from ml_collections import config_flags
from tiny_run import ROOT, setup_cfg

import gpt1_jax.program
from gpt1_jax import config as config_lib
from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning import steps as finetuning_steps
from gpt1_jax.model import interventions, language_model
from gpt1_jax.studies.zero_shot import tasks as zero_shot
from gpt1_jax.tasks.paper_tasks import select_tasks
from gpt1_jax.trained_model import TrainedModel
from gpt1_jax.training import optimizer, steps

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
OTHER_PAGES = ("CHANGELOG", "CONTRIBUTING", "benchmarks/README", "benchmarks/LOG")
LINKING_PAGES = [*PAGES, *(ROOT / f"{name}.md" for name in OTHER_PAGES)]
PROGRAM = "python -m gpt1_jax.main"
CONFIG_FILES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))

# What starts the program on several hosts, before or around its own command.
LAUNCHERS = (
    r"launch/local\.sh (--\S+ )*\d+ (.*)",
    r"launch/tpu\.sh (up|run) (.*)",
    r"sbatch (--\S+ )*launch/slurm\.sbatch (.*)",
    r'sky jobs launch launch/sky\.yaml (.* )?--env COMMAND="(.*)"',
)


def page_id(path):
    return str(path.relative_to(ROOT))


def commands(text):
    """Single commands of the ```bash blocks, comments and continuations resolved."""
    for block in re.findall(r"(?ms)^```bash\n(.*?)^```$", text):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            for command in re.sub(r"(^|\s)#.*", "", line).split("&&"):
                if command.strip():
                    yield command.strip()


def without_code(text):
    return re.sub(r"(?ms)^```.*?^```$", "", text)


def links(text):
    """Targets of links and images outside code."""
    return re.findall(r"\]\(([^)\s]+)\)", without_code(text))


def anchors(text):
    """The fragments that GitHub gives to the headings of a page."""
    for heading in re.findall(r"(?m)^#+ (.+)$", without_code(text)):
        kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        yield kept.replace(" ", "-")


def flags_in_prose(text):
    """`--config.key=value ...` spans: each a list of arguments."""
    spans = re.findall(r"`([^`]+)`", without_code(text))
    flags = [span for span in spans if span.startswith("--config.")]
    return [shlex.split(span) for span in flags if "=" in span]


DOCUMENTED = {
    f"{page_id(path)}-{number}": command
    for path in PAGES
    for number, command in enumerate(commands(path.read_text()))
}
PROSE_FLAGS = {
    f"{page_id(path)}:{' '.join(arguments)}": arguments
    for path in PAGES
    for arguments in flags_in_prose(path.read_text())
}


def parsed(arguments):
    """The program's own flags, set from `arguments` as absl and ml_collections do."""
    values = flags_lib.FlagValues()
    for flag in flags_lib.FLAGS.flags_by_module_dict()[gpt1_jax.program.__name__]:
        if flag.name != "config":
            values[flag.name] = copy.deepcopy(flag)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # ml_collections opens configuration files by load_module().
        warnings.filterwarnings("ignore", "the load_module", DeprecationWarning)
        patch.chdir(ROOT)
        patch.setattr("sys.argv", ["main", *arguments])  # read by DEFINE_config_file
        config_flags.DEFINE_config_file("config", flag_values=values)
        left = values(["main", *arguments])
    assert left == ["main"], f"not flags: {left[1:]}"
    assert values.config is not None, "--config is missing"
    return values.config


def load_typed(arguments):
    """The typed configuration of a command line, checked as the program checks it."""
    config = config_lib.load(parsed(arguments).to_dict())
    needs_files = config.job == "finetune" and config.data.source == "files"
    if config.job == "finetune" and not needs_files:
        select_tasks(config)
    if config.job == "zero_shot":
        zero_shot.select_zero_shot_tasks(config.tasks)
    return config


def check_command(command):
    """Raises an error if a documented command cannot be right."""
    for form in LAUNCHERS:
        if match := re.fullmatch(form, command):
            command = match[2]
    if command.startswith(PROGRAM):
        load_typed(shlex.split(command.removeprefix(PROGRAM)))
    for module in re.findall(r"-m (gpt1_jax\S*)", command):
        assert module in ("gpt1_jax.main", "gpt1_jax.eval_harness")
    for extras in re.findall(r"\.\[(.*)\]", command):
        assert {*extras.split(",")} <= {*setup_cfg()["options.extras_require"]}
    for file in re.findall(r"(?:docs|launch|tests)/\w+\.\w+", command):
        assert (ROOT / file).exists()


@pytest.mark.parametrize("command", DOCUMENTED.values(), ids=DOCUMENTED)
def test_documented_commands_are_accepted(command):
    check_command(command)


def test_the_commands_in_the_files_of_launch_are_accepted():
    launch = ROOT / "launch"
    task = yaml.safe_load((launch / "sky.yaml").read_text())
    check_command(task["envs"]["COMMAND"])
    jobset = yaml.safe_load((launch / "jobset.yaml").read_text())
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    check_command(shlex.join(job["template"]["spec"]["containers"][0]["command"]))


def test_every_job_has_a_documented_command():
    jobs = {
        load_typed(shlex.split(command.removeprefix(PROGRAM))).job
        for command in DOCUMENTED.values()
        if command.startswith(PROGRAM)
    }
    assert jobs == set(CONFIG_FILES)


@pytest.mark.parametrize("arguments", PROSE_FLAGS.values(), ids=PROSE_FLAGS)
def test_flags_in_prose_exist(arguments):
    for file in CONFIG_FILES:
        wrong = AttributeError, KeyError, ValueError, TypeError, flags_lib.Error
        with contextlib.suppress(*wrong):
            parsed([f"--config=configs/{file}.py", *arguments])
            return
    pytest.fail(f"no job takes {arguments}")


def test_only_setup_cfg_says_who_owns_the_project():
    """What the owner fills in before a release; CITATION.cff repeats the author."""
    grep = ["git", "grep", "-lE", "OWNER|THIS_REPOSITORY|YOUR_(NAME|ACCOUNT)"]
    listed = subprocess.run(grep, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode > 1:
        pytest.skip("not a git checkout")
    found = set(listed.stdout.split())
    tests = {"tests/test_docs.py", "tests/test_notebooks.py"}
    assert found - tests <= {"setup.cfg"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    authors = [each["name"] for each in citation["authors"]]
    assert authors == [setup_cfg()["metadata"]["author"]]


def broken_links(path):
    """Relative links of a page whose file or heading is not there."""
    for link in links(path.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        lost = not target.exists() or not target.is_relative_to(ROOT)
        if lost or (fragment and fragment not in anchors(target.read_text())):
            yield link


def test_the_list_of_functions_says_what_they_take_and_do():
    """As docs/api.md has them; each that has its docstring there is in a table."""
    page = (ROOT / "docs" / "api.md").read_text()
    rows = re.findall(r"(?m)^\| `([\w.]+)\((.*)\)` \| (.*) \|$", page)
    modules = heads, interventions, language_model, optimizer, steps
    places = {module.__name__.rpartition(".")[2]: module for module in modules}
    places |= {"finetuning.steps": finetuning_steps, "model": TrainedModel}
    places[""] = gpt1_jax
    for name, listed, does in rows:
        place, _, function = name.rpartition(".")
        found = getattr(places[place], function)
        taken = [
            ("**" if each.kind is each.VAR_KEYWORD else "") + each.name
            for each in inspect.signature(found).parameters.values()
            if each.name != "self"
        ]
        first = inspect.getdoc(found).partition("\n\n")[0].replace("\n", " ")
        assert (listed, does.replace("\\|", "|")) == (", ".join(taken), first)
    shown = set(re.findall(r"(?m)^::: gpt1_jax\.(\w+)$", page))
    for members in re.findall(r"members: \[(.*)\]", page):
        shown |= set(members.split(", "))
    own = {n for n, x in vars(TrainedModel).items() if n[0] != "_" and callable(x)}
    assert {name.rpartition(".")[2] for name, _, _ in rows} == shown | own, "each once"


def test_every_page_is_one_click_from_the_readme():
    targets = {link.partition("#")[0] for link in links(README.read_text())}
    assert {page_id(path) for path in LINKING_PAGES[1:]} <= targets


@pytest.mark.parametrize("path", LINKING_PAGES, ids=page_id)
def test_what_a_page_links_to_and_the_files_that_it_names_exist(path):
    assert list(broken_links(path)) == []
    named = re.findall(r"`((?:\w+/)+\w+\.py)(?::\w+)?`", path.read_text())
    found = [
        n for n in named if (ROOT / n).exists() or (ROOT / "gpt1_jax" / n).exists()
    ]
    assert found == named


def test_the_architecture_names_every_room_and_functions_that_exist():
    package = (ROOT / "gpt1_jax").iterdir()
    rooms = {path.name for path in package if (path / "__init__.py").exists()}
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert set(re.findall(r"(?m)^\| `(\w+)/`", page)) == rooms
    named = re.findall(r"`([a-z_/]+)\.(\w+(?:\.\w+)*)`", page)
    modules = {name: ROOT / "gpt1_jax" / f"{name}.py" for name, _ in named}
    found = [(module, names) for module, names in named if modules[module].exists()]
    assert len(found) > 25
    for module, names in found:
        for name in names.split("."):
            made = rf"\b(def|class) {name}\b|^{name}(: .*)? = "
            text = modules[module].read_text()
            assert re.search(made, text, re.MULTILINE), f"{module} has no {name}"
