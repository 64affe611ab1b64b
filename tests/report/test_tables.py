import pytest

from gpt1_jax.report.paper import PAPER_GLUE
from gpt1_jax.report.tables import glue_score, headline, results_table, summarise
from gpt1_jax.tasks.paper_tasks import TASKS

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


def run(n=10, seed=0, subsets=None, majority=None, **metrics):
    """One results.json; metrics in points."""

    def fractions(values):
        return {name: value / 100 for name, value in values.items()}

    dev = {"n": n, **fractions(metrics)}
    if subsets:
        parts = fractions(subsets).items()
        dev["subsets"] = {name: {"n": n, "accuracy": value} for name, value in parts}
    return {"dev": dev, "seed": seed, "majority": {"n": n, **fractions(majority or {})}}


def leaderboard_runs():
    runs = {
        task: {"pretrained": [run(**values)]}
        for task, values in LEADERBOARD.items()
        if task != "mnli"
    }
    mnli = run(accuracy=81.75, subsets=LEADERBOARD["mnli"])
    return {**runs, "mnli": {"pretrained": [mnli]}}


def parsed(text):
    """The lines of the table by their first cell, as dictionaries."""
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if "|" in line]
    return {r[0]: dict(zip(COLUMNS, r, strict=True)) for r in rows if len(r) == 8}


def test_summary_is_that_computed_by_hand():
    # Mean 16 / 4 = 4; squared deviations 4 + 9 + 1 + 4 = 18, over n - 1 = 3.
    assert summarise([6.0, 1.0, 3.0, 6.0]) == {
        "median": 4.5,
        "mean": 4.0,
        "min": 1.0,
        "max": 6.0,
        "std": pytest.approx((18 / 3) ** 0.5),
        "n": 4,
    }


def test_summary_of_one_value_has_no_deviation():
    summary = summarise([0.5])
    assert (summary["median"], summary["std"], summary["n"]) == (0.5, None, 1)


def test_summary_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        summarise([])


def test_glue_score_of_gpt1_is_the_papers():
    # mean of 45.4, 91.3, 79.0, 81.0, 79.4, 81.75, 88.1, 56.0, 53.4 = 655.35 / 9
    score = glue_score(leaderboard_runs())
    assert score == pytest.approx(655.35 / 9)
    assert round(score, 1) == PAPER_GLUE


def test_glue_score_takes_the_median_of_runs():
    results = leaderboard_runs()
    results["rte"]["pretrained"] = [run(seed=s, accuracy=50 + s) for s in (9, 0, 2)]
    # The median is 52 where GPT-1 had 56.
    assert glue_score(results) == pytest.approx((655.35 - 4) / 9)


@pytest.mark.parametrize("missing", sorted(LEADERBOARD))
def test_glue_score_needs_all_nine_tasks(missing):
    results = leaderboard_runs()
    del results[missing]
    assert glue_score(results) is None


def test_glue_score_needs_all_metrics_and_subsets():
    results = leaderboard_runs()
    assert glue_score(results, "scratch") is None
    results["mnli"]["pretrained"] = [run(accuracy=80, subsets={"matched": 80})]
    assert glue_score(results) is None
    results = leaderboard_runs()
    results["mrpc"]["pretrained"].append(run(f1=80))
    assert glue_score(results) is None


def test_table_has_a_line_for_each_column_of_the_paper():
    text = results_table(leaderboard_runs())
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


def test_line_shows_runs_starts_and_baseline():
    results = {
        "rte": {
            "pretrained": [
                run(277, seed, accuracy=value, majority={"accuracy": 52.7})
                for seed, value in enumerate([55.0, 60.04, 57.0])
            ],
            "scratch": [run(277, accuracy=51.0, majority={"accuracy": 52.7})],
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


def test_line_without_runs_of_a_start_has_dashes():
    line = parsed(results_table({"snli": {"scratch": [run(1234, accuracy=60)]}}))[
        "SNLI"
    ]
    assert (line["pretrained"], line["scratch"]) == ("-", "60.0")
    assert (line["majority"], line["none"], line["n"]) == ("-", "-", "1,234")


def test_numbers_of_examples_that_differ_are_shown():
    runs = [run(n, accuracy=60) for n in (300, 100, 200)]
    assert (
        parsed(results_table({"snli": {"scratch": runs}}))["SNLI"]["n"] == "100 to 300"
    )


def test_average_is_over_the_lines_present():
    results = {
        "rte": {"pretrained": [run(accuracy=60)]},
        "snli": {"pretrained": [run(accuracy=81)], "scratch": [run(accuracy=70)]},
        "mine": {"pretrained": [run(accuracy=90)]},
    }
    line = parsed(results_table(results))["**Average**"]
    assert line["pretrained"] == "77.0 (3)"  # (60 + 81 + 90) / 3
    assert line["scratch"] == "70.0 (1)"
    assert line["gpt1"] == "73.0 (2)"  # (56.0 + 89.9) / 2 = 72.95
    assert line["none"] == "53.8 (1)"
    assert line["majority"] == "-"


def test_subset_that_was_not_scored_is_shown_but_not_averaged():
    runs = [run(accuracy=40, subsets={"high": 40})]
    lines = parsed(results_table({"race": {"pretrained": runs}}))
    assert (lines["RACE-m"]["pretrained"], lines["RACE-m"]["n"]) == ("-", "-")
    assert lines["RACE-h"]["pretrained"] == "40.0"
    assert lines["**Average**"]["gpt1"] == "58.2 (2)"  # (57.4 + 59.0) / 2


def test_custom_task_has_its_first_metric_and_no_paper_value():
    mine = {"mine": {"pretrained": [run(f1=50, accuracy=70)]}}
    paper = {"snli": {"pretrained": [run(accuracy=80)]}}
    line = parsed(results_table({**mine, **paper}))["mine"]
    assert (line["metric"], line["pretrained"]) == ("f1", "50.0")
    assert (line["gpt1"], line["none"]) == ("-", "-")
    alone = results_table(mine)
    assert "| mine | f1 | 10 | 50.0 |" in alone
    assert "paper" not in alone and "GPT-1" not in alone and "Table" not in alone


def test_scores_of_labelled_test_splits_are_shown_beside_the_papers():
    labelled = {**run(accuracy=80), "test": {"n": 9, "accuracy": 0.79}}
    withheld = {**run(accuracy=60), "test": {"n": 9, "scores": None}}
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
    results = {"snli": {"pretrained": []}, "cola": {"pretrained": [run(matthews=1)]}}
    text = results_table(results, {"story_cloze": "no data", "cola": "one run failed"})
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    assert "- Story Cloze: no data" in listed
    assert "- CoLA: one run failed" in listed
    assert len(listed) == 2


def test_nothing_is_listed_as_skipped_when_all_ran():
    runs = {name: {"pretrained": [run(accuracy=50)]} for name in TASKS}
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
    low, high = (run(accuracy=60, majority={"accuracy": 50}, seed=s) for s in (0, 1))
    high["dev"]["accuracy"] = 0.7
    low["train"], low["test"] = {"accuracy": 0.9}, {"n": 3, "accuracy": 0.4}
    halves = run(accuracy=75, subsets={"matched": 80, "mismatched": 70})
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


@pytest.mark.parametrize(
    ("task", "title"), [("race", "RACE"), ("mnli", "MNLI-m"), ("cola", "CoLA")]
)
def test_one_line_of_a_task_stands_for_it(task, title):
    assert headline(task, [run(accuracy=1)]).title == title


def test_a_task_of_ones_own_stands_for_itself():
    row = headline("mine", [run(f1=50, accuracy=70)])
    assert (row.title, row.metric, row.subset) == ("mine", "f1", "")
