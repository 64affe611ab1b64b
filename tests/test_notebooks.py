"""notebooks/: each runs from top to bottom, and is committed without output."""

import base64
import configparser
import json
import os
import re
import shutil
import sys

import pytest
from tiny_run import ROOT
from tiny_tasks import write_task

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def cells(name, kind=None):
    found = json.loads(NOTEBOOKS[name].read_text())["cells"]
    return [cell for cell in found if kind in (None, cell["cell_type"])]


def sources(name, kind=None):
    return ["".join(cell["source"]) for cell in cells(name, kind)]


# --- as committed -------------------------------------------------------------


def test_the_notebooks_are_found():
    assert set(NOTEBOOKS) == {"pretrain", "finetune", "look_inside"}


@each_notebook
def test_outputs_are_stripped(name):
    for cell in cells(name, "code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None


@each_notebook
def test_it_is_a_valid_notebook(name):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbformat.validate(nbformat.read(NOTEBOOKS[name], as_version=4))


@each_notebook
def test_it_installs_from_the_address_in_setup_cfg(name):
    """Until that is filled in, the reader of the notebook fills it in."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    address = setup["metadata"]["url"]
    (repository,) = re.findall(r'REPOSITORY = "(.*)"', code(name))
    assert repository == ("" if "OWNER" in address else address)


@each_notebook
def test_without_an_address_to_install_from_it_says_so(name):
    (install,) = [each for each in sources(name, "code") if "REPOSITORY}" in each]
    install = re.sub(r"^    [!%].*\n?", "", install, flags=re.MULTILINE)
    missing = install.replace('"gpt1_jax"', '"no_such_package"')
    with pytest.raises(ValueError, match="Set REPOSITORY"):
        exec(missing, {"REPOSITORY": ""})
    exec(missing, {"REPOSITORY": "https://example.org/gpt1_jax"})
    exec(install, {"REPOSITORY": ""})


def code(name):
    return "\n".join(sources(name, "code"))


@each_notebook
def test_it_calls_the_package_and_holds_no_functions(name):
    assert not re.search(r"\b(def|class|lambda)\b", code(name))
    assert "gpt1_jax" in code(name)


@each_notebook
def test_jax_is_used_by_the_kernel_or_by_programs_never_by_both(name):
    """A TPU serves one process."""
    in_kernel = re.search(r"^(import|from) (jax|gpt1_jax)\b", code(name), re.MULTILINE)
    assert bool(in_kernel) != ("!python" in code(name))


@each_notebook
def test_another_backend_than_the_expected_one_is_an_error(name):
    (check,) = [source for source in sources(name, "code") if "JAX found" in source]
    check = re.sub(r"^found = !.*", "found = ['cpu']", check)
    with pytest.raises(RuntimeError, match="JAX found cpu, not tpu"):
        exec(check, {"BACKEND": "tpu"})
    exec(check, {"BACKEND": "cpu"})


# --- executed -----------------------------------------------------------------


def executed(name, folder):
    """Runs a notebook in a folder, as a tiny one.

    Returns:
      The text that it shows, and its pictures.
    """
    for package in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import nbclient
    import nbformat

    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    env = {**os.environ, "GPT1_SMOKE": "1", "PATH": path, "PYTHONPATH": str(ROOT)}
    env["XDG_CACHE_HOME"] = str(folder / "cache")
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=place).execute(env=env)
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    data = [out["data"] for out in outputs if "data" in out]
    text = [out["text"] for out in outputs if "text" in out]
    text += [found.get("text/markdown", found["text/plain"]) for found in data]
    pictures = [found["image/png"] for found in data if "image/png" in found]
    return "\n".join(text), [base64.b64decode(picture) for picture in pictures]


@pytest.fixture(scope="session")
def pretrained_in_notebook(corpus_dir, made_once):
    """A folder in which pretrain.ipynb has run, with what it has shown."""

    def make(folder):
        shutil.copytree(corpus_dir / "texts", folder / "texts")
        write_task(folder / "tasks", "sst2", train=16)
        text, pictures = executed("pretrain", folder)
        (folder / "shown.txt").write_text(text)
        for number, picture in enumerate(pictures):
            (folder / f"shown_{number}.png").write_bytes(picture)

    return made_once("notebooks", make)


def assert_pictures(pictures, count):
    assert len(pictures) == count
    for picture in pictures:
        assert picture.startswith(b"\x89PNG") and len(picture) > 5_000


def test_pretrain_trains_draws_and_writes(pretrained_in_notebook):
    text = (pretrained_in_notebook / "shown.txt").read_text()
    assert "Done: 8 steps" in text
    assert text.count("this function returns") >= 3
    assert_pictures([p.read_bytes() for p in pretrained_in_notebook.glob("*.png")], 1)


def test_finetune_trains_draws_and_labels(pretrained_in_notebook):
    text, pictures = executed("finetune", pretrained_in_notebook)
    assert "| SST-2 | accuracy | 12 |" in text
    assert "a warm , funny film" in text
    assert_pictures(pictures, 1)


def test_look_inside_draws_and_generates(pretrained_in_notebook):
    text, pictures = executed("look_inside", pretrained_in_notebook)
    assert "step 8: 1 layer, 32 wide, 512 tokens" in text
    assert text.count("temperature") == 3
    assert text.count("positive: -") == 2 and "nats for each token of the rest" in text
    assert_pictures(pictures, 9)
