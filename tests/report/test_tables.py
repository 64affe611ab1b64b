"""The long tables of scores, and the Markdown made from them."""

import dataclasses
import functools

import pytest
from etils import epath
from tiny_tasks import finetune_config

from gpt1_jax.config.sections import ModelSection
from gpt1_jax.finetuning.results import Finished
from gpt1_jax.report import tables
from gpt1_jax.report.paper import GLUE
from gpt1_jax.tasks.metrics import Metric
from gpt1_jax.tasks.paper_tasks import TASKS

SIZES = dict(num_layers=2, num_heads=2, embed_dim=8, mlp_dim=32, lstm_units=24)


@functools.cache
def configured(task, **overrides):
    return finetune_config(task, {"init_from": "runs/pretrain"}, **overrides)


# GPT-1 on the GLUE leaderboard, in points: the first metrics are the paper's.
LEADERBOARD = {
    "cola": {"matthews": 45.4},
    "sst2": {"accuracy": 91.3},
    "mrpc": {"f1": 82.3, "accuracy": 75.7},
    "stsb": {"pearson": 82.0, "spearman": 80.0},
    "qqp": {"f1": 70.3, "accuracy": 88.5},
    "mnli": {"matched": 82.1, "mismatched": 81.4},
    "qnli": {"accuracy": 88.1},
    "rte": {"accuracy": 56.0},
    "wnli": {"accuracy": 53.4},
}
COLUMNS = ["task", "metric", "n", "pretrained", "scratch", "majority", "gpt1", "none"]


def result(n=10, seed=0, subsets=None, majority=None, **metrics):
    """One results.json; metrics in points."""

    def fractions(values):
        return {name: value / 100 for name, value in values.items()}

    dev = {"n": n, **fractions(metrics)}
    if subsets:
        parts = fractions(subsets).items()
        dev["subsets"] = {name: {"n": n, "accuracy": value} for name, value in parts}
    return {"dev": dev, "seed": seed, "majority": {"n": n, **fractions(majority or {})}}


def table_of(results):
    """The long table of {task: {variant: [results.json, ..]}}."""
    runs, variants = [], []
    for task, by_variant in results.items():
        for variant, of_variant in by_variant.items():
            for each in of_variant:
                config = configured("sst2", seeds=(each["seed"],))
                model = ModelSection(
                    **vars(config.model), **SIZES, kind="transformer", max_seq_len=16
                )
                config = dataclasses.replace(config, tasks=(task,), model=model)
                runs.append(Finished(epath.Path("run"), config, each))
                variants.append(variant)
    return tables.score_table(runs, variants)


def results_table(results, skipped=None):
    return tables.results_table(table_of(results), skipped)


def glue_score(results, variant="pretrained"):
    return tables.glue_score(table_of(results), variant)


def leaderboard_results():
    runs = {
        task: {"pretrained": [result(**values)]}
        for task, values in LEADERBOARD.items()
        if task != "mnli"
    }
    mnli = result(accuracy=81.75, subsets=LEADERBOARD["mnli"])
    return {**runs, "mnli": {"pretrained": [mnli]}}


def parsed(text):
    """The lines of the table by their first cell, as dictionaries."""
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if "|" in line]
    return {r[0]: dict(zip(COLUMNS, r, strict=True)) for r in rows if len(r) == 8}


def test_glue_score_of_gpt1_is_the_papers():
    # mean of 45.4, 91.3, 79.0, 81.0, 79.4, 81.75, 88.1, 56.0, 53.4 = 655.35 / 9
    score = glue_score(leaderboard_results())
    assert score == pytest.approx(655.35 / 9)
    assert round(score, 1) == GLUE


def test_glue_score_takes_the_median_of_runs():
    results = leaderboard_results()
    results["rte"]["pretrained"] = [result(seed=s, accuracy=50 + s) for s in (9, 0, 2)]
    # The median is 52 where GPT-1 had 56.
    assert glue_score(results) == pytest.approx((655.35 - 4) / 9)


def test_glue_score_needs_all_nine_tasks():
    for missing in LEADERBOARD:
        results = leaderboard_results()
        del results[missing]
        assert glue_score(results) is None, missing


def test_glue_score_needs_all_metrics_and_subsets():
    results = leaderboard_results()
    assert glue_score(results, "scratch") is None
    results["mnli"]["pretrained"] = [result(accuracy=80, subsets={"matched": 80})]
    assert glue_score(results) is None
    results = leaderboard_results()
    results["mrpc"]["pretrained"].append(result(f1=80))
    assert glue_score(results) is None


def test_table_has_a_line_for_each_column_of_the_paper():
    text = results_table(leaderboard_results())
    lines = list(parsed(text))
    assert lines[2:] == [
        "**Table 2: natural language inference**",
        "MNLI-m", "MNLI-mm", "QNLI", "RTE",
        "**Table 4: classification and semantic similarity**",
        "CoLA", "SST-2", "MRPC", "STS-B", "QQP",
        "**Not in the paper's tables**",
        "WNLI",
        "**Average**",
    ]  # fmt: skip
    for name, line in parsed(text).items():
        if line["metric"] in ("accuracy", "f1", "matthews", "pearson"):
            assert line["pretrained"] == line["gpt1"], name
    expected = "GLUE score: 72.8 (pretrained, dev); the paper's 72.8 (test)."
    assert expected in text


def test_line_has_the_spread_of_variants_and_the_baseline():
    results = {
        "rte": {
            "pretrained": [
                result(277, seed, accuracy=value, majority={"accuracy": 52.7})
                for seed, value in enumerate([55.0, 60.04, 57.0])
            ],
            "scratch": [result(277, accuracy=51.0, majority={"accuracy": 52.7})],
        }
    }
    assert parsed(results_table(results))["RTE"] == {
        "task": "RTE",
        "metric": "accuracy",
        "n": "277",
        "pretrained": "57.0 (55.0 to 60.0)",
        "scratch": "51.0",
        "majority": "52.7",
        "gpt1": "56.0",
        "none": "53.8",
    }


def test_line_without_runs_of_a_variant_has_dashes():
    line = parsed(results_table({"snli": {"scratch": [result(1234, accuracy=60)]}}))[
        "SNLI"
    ]
    assert (line["pretrained"], line["scratch"]) == ("-", "60.0")
    assert (line["majority"], line["none"], line["n"]) == ("-", "-", "1,234")


def test_numbers_of_examples_that_differ_are_a_range():
    runs = [result(n, accuracy=60) for n in (300, 100, 200)]
    assert (
        parsed(results_table({"snli": {"scratch": runs}}))["SNLI"]["n"] == "100 to 300"
    )


def test_average_is_over_the_lines_present():
    results = {
        "rte": {"pretrained": [result(accuracy=60)]},
        "snli": {"pretrained": [result(accuracy=81)], "scratch": [result(accuracy=70)]},
        "mine": {"pretrained": [result(accuracy=90)]},
    }
    line = parsed(results_table(results))["**Average**"]
    assert line["pretrained"] == "77.0 (3)"  # (60 + 81 + 90) / 3
    assert line["scratch"] == "70.0 (1)"
    assert line["gpt1"] == "73.0 (2)"  # (56.0 + 89.9) / 2 = 72.95
    assert line["none"] == "53.8 (1)"
    assert line["majority"] == "-"


def test_the_average_counts_race_and_mnli_once():
    """RACE as a whole, MNLI as the mean of its halves; each line is there."""
    race = result(accuracy=40, subsets={"high": 37})
    halves = result(accuracy=99, subsets={"matched": 60, "mismatched": 50})
    snli = result(accuracy=80)
    tasks = {"race": race, "mnli": halves, "snli": snli}
    text = results_table({k: {"pretrained": [v]} for k, v in tasks.items()})
    assert "A task with several lines counts once" in text
    lines = parsed(text)
    assert (lines["RACE-m"]["pretrained"], lines["RACE-m"]["n"]) == ("-", "-")
    assert lines["RACE-h"]["pretrained"] == "37.0"
    average = lines["**Average**"]
    assert average["pretrained"] == "58.3 (3)"  # (40 + 55 + 80) / 3
    assert average["gpt1"] == "76.9 (3)"  # (59.0 + (82.1 + 81.4) / 2 + 89.9) / 3
    half = {"mnli": {"pretrained": [result(accuracy=9, subsets={"matched": 60})]}}
    assert parsed(results_table(half))["**Average**"]["pretrained"] == "60.0 (1)"


def test_custom_task_has_its_first_metric_and_no_paper_value():
    mine = {"mine": {"pretrained": [result(f1=50, accuracy=70)]}}
    paper = {"snli": {"pretrained": [result(accuracy=80)]}}
    line = parsed(results_table({**mine, **paper}))["mine"]
    assert (line["metric"], line["pretrained"]) == ("f1", "50.0")
    assert (line["gpt1"], line["none"]) == ("-", "-")
    alone = results_table(mine)
    assert "| mine | f1 | 10 | 50.0 |" in alone
    assert "paper" not in alone and "GPT-1" not in alone and "Table" not in alone


def test_small_values_that_are_not_in_points_keep_three_digits(monkeypatch):
    """A table of such values alone has no average and says nothing of x 100."""
    loss = Metric(lambda predictions, labels: 0.0, highest_is_best=False)
    monkeypatch.setitem(tables.METRICS, "loss", loss)
    runs = [result(seed=n, loss=v) for n, v in enumerate([1.234, 1.25, 99.95])]
    alone = results_table({"mine": {"pretrained": runs}})
    assert "| mine | loss | 10 | 0.0125 (0.0123 to 1.00) | - |" in alone
    assert "Average" not in alone and "x 100" not in alone
    assert alone.endswith(
        "hand. For several runs, the median, then the lowest to highest. Lower is "
        "better: loss.\n"
    )
    points = {"rte": {"pretrained": [result(accuracy=60, loss=3)]}}
    both = results_table({"mine": {"pretrained": runs}, **points})
    assert "All values but loss are x 100; for several runs," in both
    assert parsed(both)["**Average**"]["pretrained"] == "60.0 (1)"
    assert "x 100; for" in results_table(points)
    assert "loss" not in results_table(points)  # which shows the accuracy alone
    named = table_of({"mine": {"bigger": [result(loss=0.125)]}})
    assert "| bigger | 0.00125 |" in tables.results_table(named)
    large = table_of({"mine": {"bigger": [result(loss=123456)]}})
    assert "| bigger | 1234.6 |" in tables.results_table(large)


def test_scores_of_labelled_test_splits_have_a_column():
    labelled = {**result(accuracy=80), "test": {"n": 9, "accuracy": 0.79}}
    withheld = {**result(accuracy=60), "test": {"n": 9, "scores": None}}
    text = results_table(
        {"snli": {"pretrained": [labelled]}, "rte": {"pretrained": [withheld]}}
    )
    header, rule, *_ = [line for line in text.splitlines() if line.startswith("|")]
    titles = [cell.strip() for cell in header.strip("|").split("|")]
    assert len(titles) == rule.count("---")
    column = titles.index("ours, pre-trained (test)")
    cells = {
        line.split(" | ")[0]: [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    }
    assert cells["| SNLI"][column] == "79.0" and cells["| RTE"][column] == "-"
    assert "ours, from scratch (test)" not in titles


def test_skipped_tasks_are_listed_with_reasons():
    results = {"snli": {"pretrained": []}, "cola": {"pretrained": [result(matthews=1)]}}
    text = results_table(results, {"story_cloze": "no data", "cola": "one run failed"})
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    assert "- Story Cloze: no data" in listed
    assert "- CoLA: one run failed" in listed
    assert len(listed) == 2


def test_nothing_is_listed_as_skipped_when_all_ran():
    runs = {name: {"pretrained": [result(accuracy=50)]} for name in TASKS}
    assert "Skipped" not in results_table(runs)


def test_table_says_which_splits_are_compared():
    text = results_table({})
    assert "Ours is measured on the dev splits" in text
    assert "the paper's on the test splits" in text
    assert parsed(text)["**Average**"]["pretrained"] == "-"


def variants_of(text):
    """The table of variants: a dictionary for each line, by its first cell."""
    header, _, *rows = [line[2:-2] for line in text.splitlines() if line[:1] == "|"]
    titles = header.split(" | ")
    lines = [dict(zip(titles, row.split(" | "), strict=True)) for row in rows]
    return {line["variant"]: line for line in lines}


def test_variants_have_a_line_each_and_tasks_are_columns():
    low, high = (result(accuracy=60, majority={"accuracy": 50}, seed=s) for s in (0, 1))
    high["dev"]["accuracy"] = 0.7
    low["train"], low["test"] = {"accuracy": 0.9}, {"n": 3, "accuracy": 0.4}
    halves = result(accuracy=75, subsets={"matched": 80, "mismatched": 70})
    halves["train"] = {"accuracy": 0.95}
    text = results_table(
        {
            "mnli": {"layers1": [halves]},
            "rte": {"layers0": [low], "layers1": [low, high]},
        },
        {"race": "no data"},
    )
    assert variants_of(text) == {
        "layers1": {
            "variant": "layers1",
            "MNLI-m, accuracy (dev)": "80.0",
            "MNLI-m, accuracy (train)": "95.0",
            "MNLI-mm, accuracy (dev)": "70.0",
            "RTE, accuracy (dev)": "65.0 (60.0 to 70.0)",
            "RTE, accuracy (train)": "90.0",
            "RTE, accuracy (test)": "40.0",
        },
        "layers0": {
            "variant": "layers0",
            "MNLI-m, accuracy (dev)": "-",
            "MNLI-m, accuracy (train)": "-",
            "MNLI-mm, accuracy (dev)": "-",
            "RTE, accuracy (dev)": "60.0",
            "RTE, accuracy (train)": "90.0",
            "RTE, accuracy (test)": "40.0",
        },
        "majority baseline": {
            "variant": "majority baseline",
            "MNLI-m, accuracy (dev)": "-",
            "MNLI-m, accuracy (train)": "-",
            "MNLI-mm, accuracy (dev)": "-",
            "RTE, accuracy (dev)": "50.0",
            "RTE, accuracy (train)": "-",
            "RTE, accuracy (test)": "-",
        },
    }
    assert "- RACE-m, RACE-h, RACE: no data" in text


def headline(task, **metrics):
    lines = tables.paper_lines(table_of({task: {"pretrained": [result(**metrics)]}}))
    return tables.headline(lines, task)


@pytest.mark.parametrize(
    ("task", "title"), [("race", "RACE"), ("mnli", "MNLI-m"), ("cola", "CoLA")]
)
def test_one_line_of_a_task_stands_for_it(task, title):
    assert headline(task, accuracy=1).title == title


def test_a_task_of_ones_own_stands_for_itself():
    line = headline("mine", f1=50, accuracy=70)
    assert (line.title, line.metric, line.subset) == ("mine", "f1", "")


# --- names of runs ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (
            (("transformer", "runs/a"), ("lstm", "runs/a/b")),
            ["a (Transformer)", "b (LSTM)"],
        ),
        ((("lstm", "x/a"), ("rnn", "y/a")), ["x/a (LSTM)", "y/a (rnn)"]),
        ((("lstm", "x/a"), ("lstm", "x/a")), ["a"]),
        ((("lstm", "runs/a"), ("lstm", "gs://x/b/")), ["a", "b"]),
        ((("lstm", "x/a"), ("lstm", "y/a")), ["x/a", "y/a"]),
    ],
)
def test_runs_are_named_by_folder_and_by_kinds_that_differ(given, names):
    runs = [{"kind": kind, "init_from": folder} for kind, folder in given]
    assert list(dict.fromkeys(tables.run_names(runs))) == names
