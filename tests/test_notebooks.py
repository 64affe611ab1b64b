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


def sources(name):
    found = json.loads(NOTEBOOKS[name].read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


@each_notebook
def test_it_holds_calls_of_the_package_without_output(name):
    """On a TPU, which serves one process, by the kernel or by programs, never both."""
    found = json.loads(NOTEBOOKS[name].read_text())["cells"]
    outputs = [cell for cell in found if cell.get("outputs", [])]
    assert outputs == [] and {c.get("execution_count") for c in found} == {None}
    code = "\n".join(sources(name))
    assert not re.search(r"\b(def|class|lambda)\b", code) and "gpt1_jax" in code
    in_kernel = re.search(r"(?m)^(import|from) (jax|gpt1_jax)\b", code)
    assert bool(in_kernel) != ("!python" in code)
    # Until the address is filled in there, the reader of the notebook fills it in.
    address = setup_cfg()["metadata"]["url"]
    (repository,) = re.findall(r'REPOSITORY = "(.*)"', code)
    assert repository == ("" if "OWNER" in address else address)


@each_notebook
def test_it_is_a_valid_notebook(name):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbformat.validate(nbformat.read(NOTEBOOKS[name], as_version=4))


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pictures", "says"),
    [
        ("pretrain", 1, ["Done: 8 steps", "(this function returns.*){3}"]),
        ("finetune", 1, [r"\| SST-2 \| accuracy \| 12 \|", "a warm , funny film"]),
        (
            "look_inside",
            10,
            [
                r"step 8: 1 layer, 32 wide, [\d,]+ parameters>",
                "(temperature.*){3}",
                "(positive: -.*){2}",
                "nats for each token of the rest",
                r"(0\.\d{4} with(out head \d| all heads)\n.*){3}",
            ],
        ),
    ],
)
def test_it_computes_and_draws(executed, name, pictures, says):
    text = (executed / f"{name}.txt").read_text()
    for pattern in says:
        assert re.search(pattern, text, re.DOTALL), pattern
    drawn = [path.read_bytes() for path in executed.glob(f"{name}_*.png")]
    assert len(drawn) == pictures
    assert all(x.startswith(b"\x89PNG") and len(x) > 5_000 for x in drawn)
