"""The configurations of the jobs that look inside a model, and of reports."""

import pytest
from tiny_run import job_config, load_config

from gpt1_jax.config import load

TABLE = {"input": "a.csv", "words_column": "word"}
# For each file of configs/: its preset, and values that it accepts.
ACCEPTED = {
    "features": ("", {"init_from": "run", "input": "a.txt", "output": "out.npz"}),
    "surprisal": ("", {"init_from": "run", "text": "a"}),
    "zero_shot": ("sst2+copa:train", {"init_from": "run"}),
    "finetune": (None, {"init_from": "run"}),
    "pretrain": (None, {}),
    "report": ("", {"runs": "runs/a, runs/b"}),
}


def config_of(file, **overrides):
    preset, values = ACCEPTED[file]
    return job_config(file, preset, **{**values, **overrides})


@pytest.mark.parametrize(
    ("file", "overrides", "problem"),
    [
        ("features", {"init_from": ""}, "--config.init_from=runs/pretrain/NAME"),
        ("features", {"dtype": "float16"}, "config.dtype='float16'.*bfloat16"),
        ("features", {"input": ""}, "--config.input=FILE"),
        ("features", {**TABLE, "lines_column": "text"}, "name one of the two"),
        ("features", {**TABLE, "rows": "last"}, "config.rows='last' needs lines"),
        ("features", {"text_column": "item"}, "text_column='item' does nothing with"),
        ("features", {"layers": (1, 1)}, r"layers=\(1, 1\) must name no layer twice"),
        ("features", {"rows": "first"}, "config.rows='first'.*words, last, mean"),
        ("features", {"overlap": -1}, "config.overlap=-1 must not be negative"),
        ("features", {"rows": "mean", "context": "text"}, "rows='mean' reads a line"),
        ("features", {"attention": True}, "attention=True keeps maps of whole lines"),
        ("features", {"output": "out.txt"}, "output='out.txt' must end in .npz or .h5"),
        ("zero_shot", {"baseline_init_from": "run"}, "_from='run' name a run twice"),
        ("zero_shot", {"step": "kept"}, "step='kept' is now config.step='milestones'"),
        ("zero_shot", {"tasks": ()}, r"config.tasks=\(\) must name one"),
        ("zero_shot", {"data.source": "files"}, "data.source='files'.*official"),
        ("zero_shot", {"data.source": "jsonl"}, "--config.data.dir=DIR"),
        ("surprisal", {"text": ""}, "config.input='': set one"),
        ("surprisal", {"input": "a.txt"}, r"text='a' and .*input='a\.txt': set one"),
        ("surprisal", {"text_column": "item"}, r"does nothing without .*words_c"),
        ("surprisal", {"words_column": "word"}, r"does nothing without .*input"),
        ("surprisal", {**TABLE, "text": "", "punctuation": "apart"}, "several rows of"),
        ("surprisal", {"output": "a.json"}, r"must end in \.csv or \.tsv or \.npz"),
        ("surprisal", {"figure": ".svg"}, r"names no file; .*, such as surprisal\.svg"),
        ("report", {"runs": "a,,b"}, "config.runs='a,,b' must name a folder"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(file, overrides, problem):
    with pytest.raises(ValueError, match=problem):
        config_of(file, **overrides)


@pytest.mark.parametrize("file", ["pretrain", "finetune", "zero_shot", "report"])
def test_a_figure_of_another_format_is_refused(file):
    with pytest.raises(ValueError, match=r"figure=.*\.png.*\.svg.*\.pdf"):
        config_of(file, figure="gif")


def test_names_are_split_at_commas_and_plus_signs():
    assert config_of("zero_shot").tasks == ("sst2", "copa:train")
    assert config_of("report").folders == ("runs/a", "runs/b")


def test_the_key_of_1_0_for_the_figure_of_surprisal_is_understood():
    values = load_config("", file="surprisal", init_from="run", text="a").to_dict()
    del values["figure"]
    assert load({**values, "plot": "a.png"}).figure == "a.png"
