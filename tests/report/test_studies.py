"""What studies add to a report, also studies outside of the package."""

import json
import re
import sys
from pathlib import Path

import pytest
from made_up_runs import write_zero_shot
from tiny_tasks import read_lines

import gpt1_jax
from gpt1_jax.config import default_config, load
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import report
from gpt1_jax.report.plots import Picture
from gpt1_jax.report.runs import read_runs
from gpt1_jax.report.sections import make_report
from gpt1_jax.report.studies import find_studies

_STUDY = """
from gpt1_jax.report.plots import new_figure
from gpt1_jax.report.studies import Study
from gpt1_jax.studies.zero_shot.config import ZeroShotConfig as Config

def run(config, workdir):
    raise NotImplementedError

def rows(task, scores):
    yield {"task": task, "score": scores["n"], "error": 0}

def table(scores, config):
    return f"n {list(scores['score'])} of {config.init_from}"

def figure(scores):
    return new_figure(1, 1)

STUDY = Study("own-words", None, rows, table, figure, heading="Ours")
"""
PAGE = Path(__file__).parents[2] / "docs" / "report.md"


@pytest.fixture
def module(write, tmp_path, monkeypatch):
    """`module(name, text)` makes a module that Python finds."""
    monkeypatch.syspath_prepend(tmp_path / "modules")
    before = set(sys.modules)
    yield lambda name, text: write(f"modules/{name}.py", text)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write_results(folder, job):
    """The results of a study outside: those of the zero-shot job under its name."""
    file = write_zero_shot(folder) / "results.json"
    result = json.loads(file.read_text())
    result["config"]["job"] = job
    file.write_text(json.dumps(result))


def test_a_study_outside_has_its_section_and_versions(tmp_path, module):
    module("own_words", _STUDY)
    for name in ("a", "b"):
        write_results(tmp_path / "runs" / name, "own_words")
    runs = read_runs([str(tmp_path / "runs")], find_studies(["own_words"]))
    document = make_report(runs, "A title", "23 November 2026")
    assert "measured: 2 own-words evaluations." in document.introduction
    assert make_report(runs, "", "23 November 2026").title == "own-words"
    titles = [section.title for section in document.sections]
    assert titles == ["Ours", "Configurations", "Versions"]
    ours = document.sections[0].blocks
    names = [block.name for block in ours if isinstance(block, Picture)]
    assert names == ["own_words", "own_words_2"]
    tables = [block for block in ours if isinstance(block, str)][1::2]
    assert tables == 2 * ["n [40, 40] of runs/pretrain/small"]
    configurations, versions = document.sections[-2:]
    assert "### Own-words: runs/pretrain/small" in configurations.blocks[-1]
    assert "Module: own_words\n" in configurations.blocks[-1]
    row = f"| own-words of runs/pretrain/small | gpt1_jax {gpt1_jax.__version__}, jax"
    assert row in versions.blocks[0]


def test_what_a_results_folder_names_is_not_imported(tmp_path, module):
    module("stranger", "raise SystemExit('imported')")
    write_results(tmp_path / "runs" / "strange", "stranger")
    write_zero_shot(tmp_path / "runs" / "known")
    runs = read_runs([str(tmp_path / "runs")], find_studies())
    assert sum(len(found) for found in runs.studies.values()) == 1
    titles = [each.title for each in make_report(runs, "", "today").sections]
    assert titles[1:] == ["Configurations", "Versions"], "none without results"
    assert "stranger" not in sys.modules
    unknown = r"results of the job 'stranger', which is unknown .*config\.studies\.$"
    with pytest.raises(FileNotFoundError, match=unknown):
        read_runs([str(tmp_path / "runs" / "strange")], find_studies())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (_STUDY.replace("def run", "def go"), "config.job='own_words' is not known"),
        (None, "config.studies names 'own_words', but there is no such module here"),
        ("STUDY = 'Ours'\n", "names 'own_words', which has no STUDY"),
        ("import no_such_module\n", "No module named 'no_such_module'"),  # its own
    ],
)
def test_a_module_that_adds_nothing_is_refused(module, text, problem):
    if text:
        module("own_words", text)
    with pytest.raises((UserError, ModuleNotFoundError), match=problem):
        find_studies(["own_words"])


def test_the_study_of_the_page_scores_a_run_and_has_its_section(
    tmp_path, module, pretrained, corpus_dir
):
    """A whole study from outside in about 80 lines, over steps, resumed, reported."""
    text, configuration = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(text.splitlines()) < 90
    module("last_words", text)
    (namespace := {}).update(default_config=default_config)
    exec(configuration, namespace)
    values = namespace["get_config"]().to_dict()
    (tmp_path / "passages.txt").write_text("ab cd ef\nword\ngh ab cd\n")
    values |= {"init_from": str(pretrained), "lines": str(tmp_path / "passages.txt")}
    values |= {"step": "all", "compilation_cache_dir": str(corpus_dir / "xla")}
    out = tmp_path / "out"
    for _ in range(2):  # the second has nothing to do
        sys.modules["last_words"].run(load(values), str(out))
    model = gpt1_jax.load(str(pretrained))
    predictions = read_lines(out / "predictions/run/12/last_words.jsonl")
    for line, sentence in zip(predictions, ("ab cd ef", "gh ab cd"), strict=True):
        nats = model.surprisal(sentence)[-1].nats
        assert line["nats"] == pytest.approx(nats, abs=1e-4)
    assert "| last_words | 2 |" in (out / "results.md").read_text()
    values = {"job": "report", "preset": "", "studies": ("last_words",)}
    report.run(load({**values, "runs": str(out)}), str(tmp_path / "page"))
    page = (tmp_path / "page/report.md").read_text()
    assert "## The last words of lines" in page and "| step 8 | step 12 |" in page
    assert (tmp_path / "page/plots/last_word.png").exists()
