"""What the configurations of the jobs that look inside a model share."""

import pytest
from tiny_run import load_config

from gpt1_jax.config import load
from gpt1_jax.studies.config import AnalysisConfig
from gpt1_jax.studies.words.config import FeaturesConfig

VALID = dict(
    job="surprisal",
    preset="",
    init_from="run",
    step="newest",
    dtype="",
    compilation_cache_dir="",
)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"init_from": ""}, "--config.init_from=runs/pretrain/NAME"),
        ({"dtype": "float16"}, "config.dtype='float16'.*bfloat16"),
    ],
)
def test_impossible_values_are_refused_by_name(overrides, problem):
    AnalysisConfig(**VALID)
    with pytest.raises(ValueError, match=problem):
        AnalysisConfig(**{**VALID, **overrides})


FEATURES = dict(
    VALID,
    job="features",
    input="a.txt",
    lines_column="",
    words_column="",
    text_column="",
    layers=(),
    rows="words",
    context="line",
    context_words=0,
    overlap=0,
    attention=False,
    output="out.npz",
    output_dtype="float32",
)
TABLE = {"input": "a.csv", "words_column": "word"}


@pytest.mark.parametrize(
    "overrides",
    [
        {**TABLE, "text_column": "item", "context_words": 5, "layers": (9,)},
        {"input": "a.jsonl", "lines_column": "text", "output": "out.h5"},
        {"rows": "mean", "attention": True},
        {"rows": "words", "context": "text", "overlap": 64},
    ],
    ids=str,
)
def test_settings_of_features_go_together(overrides):
    FeaturesConfig(**{**FEATURES, **overrides})


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"init_from": ""}, "--config.init_from=runs/pretrain/NAME"),
        ({"input": ""}, "--config.input=FILE"),
        ({**TABLE, "lines_column": "text"}, "name one of the two"),
        ({**TABLE, "rows": "last"}, "config.rows='last' needs lines"),
        ({"text_column": "item"}, "config.text_column='item' does nothing without"),
        ({"layers": (1, 1)}, r"config.layers=\(1, 1\) must name no layer twice"),
        ({"rows": "first"}, "config.rows='first'.*words, last, mean"),
        ({"context": "page"}, "config.context='page'.*line"),
        ({"context_words": -1}, "config.context_words=-1 must not be negative"),
        ({"overlap": -1}, "config.overlap=-1 must not be negative"),
        ({"rows": "mean", "context": "text"}, "config.rows='mean' reads a line"),
        ({"rows": "last", "context_words": 5}, "config.rows='last' reads a line"),
        ({"attention": True}, "config.attention=True keeps maps of whole lines"),
        ({"output": "out.txt"}, "config.output='out.txt' must end in .npz or .h5"),
        ({"output_dtype": "float64"}, "config.output_dtype='float64'"),
    ],
    ids=str,
)
def test_settings_of_features_that_cannot_work_are_refused(overrides, problem):
    with pytest.raises(ValueError, match=problem):
        FeaturesConfig(**{**FEATURES, **overrides})


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"init_from": ""}, "--config.init_from=runs/pretrain/NAME"),
        ({"dtype": "float16"}, "config.dtype='float16'"),
        (
            {"baseline_init_from": "run"},
            "config.baseline_init_from='run' name a run twice",
        ),
        ({"step": "kept"}, "config.step='kept' is now config.step='milestones'"),
        ({"step": "last"}, "config.step='last' must be default, .* all, milestones"),
        ({"tasks": ()}, r"config.tasks=\(\) must name one"),
        ({"seed": -1}, "config.seed=-1"),
        ({"batch_tokens": 0}, "config.batch_tokens=0"),
        ({"data.source": "files"}, "config.data.source='files'.*official"),
        ({"data.source": "jsonl"}, "--config.data.dir=DIR"),
        ({"data.max_examples": -1}, "config.data.max_examples=-1"),
    ],
)
def test_impossible_zero_shot_values_are_refused(overrides, problem):
    values = load_config("sst2+copa:train", file="zero_shot", init_from="run")
    config = load({**values.to_dict(), "baseline_init_from": "other"})
    assert config.tasks == ("sst2", "copa:train")
    assert load(values.to_dict()).baseline_init_from == ""
    values.update_from_flattened_dict(overrides)
    with pytest.raises(ValueError, match=problem):
        load(values.to_dict())


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"input": "a.txt"}, r"config\.text='a' and config\.input='a\.txt': set one"),
        ({"text_column": "item"}, r"text_column='item' does nothing without .*words_c"),
        ({"words_column": "word"}, r"words_column='word' does nothing without .*input"),
        ({"punctuation": "alone"}, r"punctuation='alone'.*with_word, apart"),
        ({"first_word": "seen"}, r"first_word='seen'.*scored, unscored"),
        ({"output": "a.json"}, r"output='a\.json' must end in \.csv or \.tsv or \.npz"),
        ({"figure": "a.gif"}, r"figure='a\.gif' must end in \.png or \.svg or \.pdf"),
        ({"figure": "/dev/stdout"}, r"figure='/dev/stdout' must end in \.png"),
        (
            {"figure": ".svg"},
            r"figure='\.svg' names no file; .*, such as surprisal\.svg",
        ),
    ],
    ids=str,
)
def test_impossible_surprisal_values_are_refused(overrides, problem):
    given = {"init_from": "run", "text": "a", "output": "/dev/stdout"}
    load(load_config("", file="surprisal", **given, punctuation="apart").to_dict())
    with pytest.raises(ValueError, match=problem):
        load(load_config("", file="surprisal", **{**given, **overrides}).to_dict())


def test_the_key_of_1_0_for_the_figure_of_surprisal_is_understood():
    values = load_config("", file="surprisal", init_from="run", text="a").to_dict()
    del values["figure"]
    assert load({**values, "plot": "a.png"}).figure == "a.png"


@pytest.mark.parametrize("file", ["pretrain", "finetune", "zero_shot", "report"])
def test_a_figure_of_another_format_is_refused(file):
    given = {} if file in ("pretrain", "report") else {"init_from": "run"}
    values = load_config(None, file=file, **given)
    for figure in ("a.gif", "gif", ""):
        with pytest.raises(ValueError, match=r"figure=.*\.png.*\.svg.*\.pdf"):
            load({**values.to_dict(), "figure": figure})


def test_a_report_names_its_folders():
    config = load(load_config("", file="report", runs="runs/a, runs/b").to_dict())
    assert config.folders == ("runs/a", "runs/b")


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"runs": ""}, "config.runs='' must name a folder"),
        ({"runs": "a,,b"}, "config.runs='a,,b' must name a folder"),
    ],
    ids=str,
)
def test_reports_that_cannot_be_made_are_refused(overrides, problem):
    with pytest.raises(ValueError, match=problem):
        load(load_config("", file="report", **overrides).to_dict())
