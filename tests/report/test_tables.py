"""The long tables of scores, and the Markdown made from them."""

import dataclasses

import pytest
from made_up_runs import finished_run

from gpt1_jax.report import tables
from gpt1_jax.report.paper import GLUE

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
                run = finished_run("sst2", each, seeds=(each["seed"],))
                config = dataclasses.replace(run.config, tasks=(task,))
                runs.append(run._replace(config=config))
                variants.append(variant)
    return tables.score_table(runs, variants)


def results_table(results, skipped=None):
    return tables.results_table(table_of(results), skipped)


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
    score = tables.glue_score(table_of(leaderboard_results()), "pretrained")
    assert score == pytest.approx(655.35 / 9)
    assert round(score, 1) == GLUE


@pytest.mark.parametrize(
    ("task", "runs", "rest"),
    [
        # The median is 52 where GPT-1 had 56.
        ("rte", [result(seed=s, accuracy=50 + s) for s in (9, 0, 2)], 655.35 - 4),
        ("wnli", [], None),
        ("mnli", [result(accuracy=80, subsets={"matched": 80})], None),
        ("mrpc", [result(**LEADERBOARD["mrpc"]), result(f1=80)], None),
    ],
)
def test_glue_score_is_of_medians_over_all_tasks_metrics_and_subsets(task, runs, rest):
    results = {**leaderboard_results(), task: {"pretrained": runs}}
    table = table_of(results)
    expected = rest and pytest.approx(rest / 9)
    assert tables.glue_score(table, "pretrained") == expected
    assert tables.glue_score(table, "scratch") is None


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
    text = results_table(results)
    assert "Ours is measured on the dev splits" in text
    line = "RTE | accuracy | 277 | 57.0 (55.0 to 60.0) | 51.0 | 52.7 | 56.0 | 53.8"
    assert [*parsed(text)["RTE"].values()] == line.split(" | ")
    runs = [result(n, accuracy=60) for n in (3000, 100, 200)]
    line = parsed(results_table({"snli": {"scratch": runs}}))["SNLI"]
    assert line["n"] == "100 to 3,000" and line["pretrained"] == line["none"] == "-"


def test_average_is_over_the_lines_present():
    results = {
        "rte": {"pretrained": [result(accuracy=60)]},
        "snli": {"pretrained": [result(accuracy=81)], "scratch": [result(accuracy=70)]},
        "mine": {"pretrained": [result(accuracy=90, f1=7)]},
    }
    lines = parsed(results_table(results))
    assert lines["mine"]["metric"] == "accuracy", "its first"
    assert (lines["mine"]["pretrained"], lines["mine"]["gpt1"]) == ("90.0", "-")
    alone = results_table({"mine": results["mine"]})
    assert "paper" not in alone and "GPT-1" not in alone and "Table" not in alone
    line = lines["**Average**"]
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


def test_scores_of_labelled_test_splits_have_a_column():
    labelled = {**result(accuracy=80), "test": {"n": 9, "accuracy": 0.79}}
    withheld = {**result(accuracy=60), "test": {"n": 9, "scores": None}}
    text = results_table(
        {"snli": {"pretrained": [labelled]}, "rte": {"pretrained": [withheld]}}
    )
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "|" in line]
    titles, column = rows[0], rows[0].index("ours, pre-trained (test)")
    cells = {row[0]: row[column] for row in rows if len(row) == len(titles)}
    assert cells["SNLI"] == "79.0" and cells["RTE"] == "-"
    assert "ours, from scratch (test)" not in titles


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
    header, _, *lines = [line for line in text.splitlines() if line[:1] == "|"]
    mnli = "MNLI-m, accuracy (dev) | MNLI-m, accuracy (train) | MNLI-mm, accuracy (dev)"
    rte = "RTE, accuracy (dev) | RTE, accuracy (train) | RTE, accuracy (test)"
    assert header == f"| variant | {mnli} | {rte} |"
    assert lines == [
        "| layers1 | 80.0 | 95.0 | 70.0 | 65.0 (60.0 to 70.0) | 90.0 | 40.0 |",
        "| layers0 | - | - | - | 60.0 | 90.0 | 40.0 |",
        "| majority baseline | - | - | - | 50.0 | - | - |",
    ]
    assert "- RACE-m, RACE-h, RACE: no data" in text
