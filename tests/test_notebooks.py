"""notebooks/: each runs from top to bottom, and is committed without output."""

import base64
import json
import os
import re
import shutil
import sys

import pytest
from tiny_run import ROOT, setup_cfg
from tiny_tasks import write_task

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def cells(name, kind=None):
    found = json.loads(NOTEBOOKS[name].read_text())["cells"]
    return [cell for cell in found if kind in (None, cell["cell_type"])]


def sources(name, kind=None):
    return ["".join(cell["source"]) for cell in cells(name, kind)]


# --- as committed -------------------------------------------------------------


def code(name):
    return "\n".join(sources(name, "code"))


def test_the_notebooks_are_found():
    assert set(NOTEBOOKS) == {"pretrain", "finetune", "look_inside"}


@each_notebook
def test_it_holds_calls_of_the_package_without_output(name):
    """On a TPU, which serves one process, by the kernel or by programs, never both."""
    for cell in cells(name, "code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None
    assert not re.search(r"\b(def|class|lambda)\b", code(name))
    assert "gpt1_jax" in code(name)
    in_kernel = re.search(r"^(import|from) (jax|gpt1_jax)\b", code(name), re.MULTILINE)
    assert bool(in_kernel) != ("!python" in code(name))


@each_notebook
def test_it_is_a_valid_notebook(name):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbformat.validate(nbformat.read(NOTEBOOKS[name], as_version=4))


@each_notebook
def test_it_installs_from_the_address_in_setup_cfg(name):
    """Until that is filled in, the reader of the notebook fills it in."""
    address = setup_cfg()["metadata"]["url"]
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


@each_notebook
def test_another_backend_than_the_expected_one_is_an_error(name):
    (check,) = [source for source in sources(name, "code") if "JAX found" in source]
    check = re.sub(r"^found = !.*", "found = ['cpu']", check)
    with pytest.raises(RuntimeError, match="JAX found cpu, not tpu"):
        exec(check, {"BACKEND": "tpu"})
    exec(check, {"BACKEND": "cpu"})


# --- executed -----------------------------------------------------------------


def execute(names, folder, texts):
    """Runs notebooks in a folder one after another, as tiny ones.

    In one kernel, to start which takes seconds; each begins with an empty namespace.
    What they show is written to NAME.txt and NAME_NUMBER.png.
    """
    for package in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import nbclient
    import nbformat

    shutil.copytree(texts, folder / "texts")
    write_task(folder / "tasks", "sst2", train=16)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    env = {**os.environ, "GPT1_SMOKE": "1", "PATH": path, "PYTHONPATH": str(ROOT)}
    env["XDG_CACHE_HOME"] = str(folder / "cache")
    place = {"metadata": {"path": str(folder)}}
    notebooks = {name: nbformat.read(NOTEBOOKS[name], as_version=4) for name in names}
    whole = nbformat.v4.new_notebook()
    for notebook in notebooks.values():
        whole.cells += [*notebook.cells, nbformat.v4.new_code_cell("%reset -f")]
    nbclient.NotebookClient(whole, timeout=300, resources=place).execute(env=env)
    for name, notebook in notebooks.items():
        outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
        data = [out["data"] for out in outputs if "data" in out]
        text = [out["text"] for out in outputs if "text" in out]
        text += [found.get("text/markdown", found["text/plain"]) for found in data]
        (folder / f"{name}.txt").write_text("\n".join(text))
        pictures = [found["image/png"] for found in data if "image/png" in found]
        for number, picture in enumerate(pictures):
            file = folder / f"{name}_{number}.png"
            file.write_bytes(base64.b64decode(picture))


@pytest.fixture(scope="session")
def executed(corpus_dir, made_once):
    """A folder in which the notebooks have run, with what they have shown."""
    names = ("pretrain", "finetune", "look_inside")
    texts = corpus_dir / "texts"
    return made_once("notebooks", lambda folder: execute(names, folder, texts))


def assert_pictures(folder, name, count):
    pictures = [path.read_bytes() for path in folder.glob(f"{name}_*.png")]
    assert len(pictures) == count
    for picture in pictures:
        assert picture.startswith(b"\x89PNG") and len(picture) > 5_000


def test_pretrain_trains_draws_and_writes(executed):
    text = (executed / "pretrain.txt").read_text()
    assert "Done: 8 steps" in text
    assert text.count("this function returns") >= 3
    assert_pictures(executed, "pretrain", 1)


def test_finetune_trains_draws_and_labels(executed):
    text = (executed / "finetune.txt").read_text()
    assert "| SST-2 | accuracy | 12 |" in text
    assert "a warm , funny film" in text
    assert_pictures(executed, "finetune", 1)


def test_look_inside_draws_and_generates(executed):
    text = (executed / "look_inside.txt").read_text()
    assert re.search(r"step 8: 1 layer, 32 wide, [\d,]+ parameters>", text)
    assert text.count("temperature") == 3
    assert text.count("positive: -") == 2 and "nats for each token of the rest" in text
    assert len(re.findall(r"0\.\d{4} with(?:out head \d| all heads)\n", text)) == 3
    assert_pictures(executed, "look_inside", 10)
