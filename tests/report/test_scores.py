"""The long tables of scores, and the Markdown made from them."""

import dataclasses
import functools

import pytest
from etils import epath
from tiny_tasks import finetune_config

from gpt1_jax.config.sections import ModelSection
from gpt1_jax.finetuning.results import Finished
from gpt1_jax.report import scores
from gpt1_jax.report.paper import (
    GLUE,
    PAPER,
    TABLE_5,
    TABLE_5_TASKS,
)
from gpt1_jax.report.scores import (
    ablations_table,
    aux_weight_scores,
    aux_weights_table,
    layer_transfer_scores,
    layers_table,
)
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
    return scores.score_table(runs, variants)


def results_table(results, skipped=None):
    return scores.results_table(table_of(results), skipped)


def glue_score(results, variant="pretrained"):
    return scores.glue_score(table_of(results), variant)


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


def test_subset_without_scores_has_a_line_but_is_not_averaged():
    runs = [result(accuracy=40, subsets={"high": 40})]
    lines = parsed(results_table({"race": {"pretrained": runs}}))
    assert (lines["RACE-m"]["pretrained"], lines["RACE-m"]["n"]) == ("-", "-")
    assert lines["RACE-h"]["pretrained"] == "40.0"
    assert lines["**Average**"]["gpt1"] == "58.2 (2)"  # (57.4 + 59.0) / 2


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
    monkeypatch.setitem(scores.METRICS, "loss", loss)
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
    assert "| bigger | 0.00125 |" in scores.results_table(named)
    large = table_of({"mine": {"bigger": [result(loss=123456)]}})
    assert "| bigger | 1234.6 |" in scores.results_table(large)


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
    lines = scores.paper_lines(table_of({task: {"pretrained": [result(**metrics)]}}))
    return scores.headline(lines, task)


@pytest.mark.parametrize(
    ("task", "title"), [("race", "RACE"), ("mnli", "MNLI-m"), ("cola", "CoLA")]
)
def test_one_line_of_a_task_stands_for_it(task, title):
    assert headline(task, accuracy=1).title == title


def test_a_task_of_ones_own_stands_for_itself():
    line = headline("mine", f1=50, accuracy=70)
    assert (line.title, line.metric, line.subset) == ("mine", "f1", "")


# --- comparisons: Table 5, layers transferred, lambda ---------------------------


def run(task, seed=0, *, train_examples=100, train=None, kind="transformer", **values):
    """A finished run; the scores, in points, are those that are no configuration."""
    overrides = {k: v for k, v in values.items() if "__" in k or "_" in k}
    scores = {k: v for k, v in values.items() if k not in overrides}
    config = configured(task, seeds=(seed,), **overrides)
    model = ModelSection(**vars(config.model), **SIZES, kind=kind, max_seq_len=16)
    dev = {
        name: score / 100 for name, score in scores.items() if name not in ("m", "mm")
    }
    halves = {"m": "matched", "mm": "mismatched"}
    subsets = {
        halves[k]: {"accuracy": v / 100} for k, v in scores.items() if k in halves
    }
    if subsets:
        dev |= {"accuracy": 0.123, "subsets": subsets}
    result = {"dev": dev, "train_examples": train_examples}
    if train is not None:
        result["train"] = {"accuracy": train / 100}
    return Finished(epath.Path("run"), dataclasses.replace(config, model=model), result)


METRICS = {line.task: line.metric for line in PAPER}
NONE = {"transfer_layers": "none"}
NO_AUX = {"head__aux_lm_weight": 0.0}
LSTM = {"kind": "lstm", "init_from": "runs/lstm"}


def parsed_ablations(text):
    """Our lines and the paper's of Table 5, as dictionaries by task."""
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line[:1] == "|"]
    header, _, *body = rows
    tasks = [row[0] for row in body]
    assert tasks == [*TABLE_5_TASKS.values(), "**Average**"]
    assert [row[1] for row in body[:-1]] == [METRICS[task] for task in TABLE_5_TASKS]
    titles = [ablation.title for ablation in TABLE_5.values()]
    assert header[2::2] == [f"{title}, ours (dev)" for title in titles]
    assert set(header[3::2]) == {"paper (test)"}
    columns = [dict(zip(tasks, c, strict=True)) for c in zip(*body, strict=True)][2:]
    ours, paper = (dict(zip(TABLE_5, columns[k::2], strict=True)) for k in (0, 1))
    return ours, paper


def test_table_5_has_each_score_in_its_place_beside_the_papers():
    ours, paper = parsed_ablations(
        ablations_table(
            [
                run("cola", matthews=40.0, accuracy=80),
                run("rte", 0, accuracy=60.0),
                run("rte", 1, accuracy=64.04),
                run("rte", 2, accuracy=61.0),
                run("rte", accuracy=50.0, **NONE),
                run("mrpc", f1=81.0, accuracy=70, **NO_AUX),
                run("stsb", pearson=70.0, spearman=1, **LSTM),
                run("snli", accuracy=99.0),
            ]
        )
    )
    assert ours["full"]["CoLA"] == "40.0"
    assert ours["full"]["RTE"] == "61.0 (60.0 to 64.0)"
    assert ours["full"]["MRPC"] == "-"
    assert ours["no_pretraining"]["RTE"] == "50.0"
    assert ours["no_aux_lm"]["MRPC"] == "81.0"
    assert ours["lstm"]["STS-B"] == "70.0" and ours["lstm"]["RTE"] == "-"
    assert paper["lstm"]["STS-B"] == "71.8" and paper["full"]["RTE"] == "56.0"


def test_averages_are_over_the_tasks_that_both_have():
    ours, paper = parsed_ablations(
        ablations_table([run("cola", matthews=40), run("rte", accuracy=61)])
    )
    assert ours["full"]["**Average**"] == "50.5 (2)"
    assert paper["full"]["**Average**"] == "50.7 (2)"  # (45.4 + 56.0) / 2
    assert ours["lstm"]["**Average**"] == paper["lstm"]["**Average**"] == "-"


def test_all_tasks_have_the_papers_own_average():
    everything = [run(task, **{METRICS[task]: 50.0}) for task in TABLE_5_TASKS]
    ours, paper = parsed_ablations(ablations_table(everything))
    assert (ours["full"]["**Average**"], paper["full"]["**Average**"]) == (
        "50.0 (8)",
        "74.7 (8)",
    )


@pytest.mark.parametrize(
    ("halves", "text"),
    [({"m": 80, "mm": 70}, "75.0"), ({"m": 80}, "80.0"), ({"accuracy": 66}, "66.0")],
)
def test_mnli_is_the_mean_of_the_halves_that_were_scored(halves, text):
    ours, _ = parsed_ablations(ablations_table([run("mnli", **halves)]))
    assert ours["full"]["MNLI"] == text


def test_table_5_names_the_origins():
    text = ablations_table([run("rte", accuracy=50), run("rte", accuracy=40, **LSTM)])
    assert text.rstrip().endswith(
        "Ours start from the Transformer of runs/pretrain and the LSTM of runs/lstm."
    )
    ours, _ = parsed_ablations(ablations_table([]))
    assert {line["**Average**"] for line in ours.values()} == {"-"}


def test_table_5_leaves_out_runs_of_other_comparisons():
    """Beside them lie runs on fewer examples, from another model, of other lambdas."""
    here = [run("rte", accuracy=60), run("rte", accuracy=50, **NONE)]
    few = {"data__max_train_examples": 10}
    others = [
        run("rte", accuracy=7, **few, **NONE),
        *(run("rte", s, accuracy=1, **few) for s in range(30)),
        *(run("rte", s, accuracy=2, init_from="runs/other") for s in range(9)),
        *(run("rte", 0, accuracy=3, head__aux_lm_weight=w) for w in (0.25, 1.0)),
        run("rte", accuracy=4, transfer_layers="1"),
        run("rte", accuracy=5, train__num_epochs=9.0),
        run("rte", accuracy=6, **{**LSTM, "head__aux_lm_weight": 0.0}),
    ]
    for runs in ([*here, *others], [*others, *here]):
        ours, _ = parsed_ablations(ablations_table(runs))
        assert (ours["full"]["RTE"], ours["no_pretraining"]["RTE"]) == ("60.0", "50.0")
        assert ours["no_aux_lm"]["RTE"] == ours["lstm"]["RTE"] == "-"


def test_table_5_takes_the_lambda_of_most_runs():
    weight = {"head__aux_lm_weight": 0.3}
    runs = [run("rte", s, accuracy=s, **weight) for s in (1, 2)]
    ours, _ = parsed_ablations(ablations_table([run("rte", accuracy=90), *runs]))
    assert ours["full"]["RTE"] == "1.5 (1.0 to 2.0)"


def test_a_seed_that_was_run_twice_counts_once():
    runs = [run("rte", accuracy=60), run("rte", accuracy=60, eval__batch_size=8)]
    ours, _ = parsed_ablations(ablations_table([*runs, run("rte", 1, accuracy=70)]))
    assert ours["full"]["RTE"] == "65.0 (60.0 to 70.0)"


def test_padding_changes_masks_as_a_seed_does_and_makes_no_other_row():
    padded = {"data__unpadded_sizes": 0, "data__seq_len_buckets": (8, 16)}
    runs = [run("rte", accuracy=60), run("rte", 1, accuracy=50, **padded, **NONE)]
    ours, _ = parsed_ablations(ablations_table(runs))
    assert (ours["full"]["RTE"], ours["no_pretraining"]["RTE"]) == ("60.0", "50.0")
    runs = [run("rte", accuracy=60), run("rte", 1, accuracy=70, **padded)]
    assert scores.row_numbers(runs) == [0, 0]


def layers(task, number, seed=0, **values):
    return run(task, seed, transfer_layers=str(number), **values)


def spreads(scores, *keys):
    """Median, lowest and highest score of each group; keys are columns."""
    found = scores.groupby([*keys])["score"].agg(["median", "min", "max"])
    return {key: pytest.approx(row) for key, row in found.T.items()}


def test_layer_transfer_has_scores_of_each_task_over_seeds():
    table = layer_transfer_scores(
        [
            layers("race", 0, 0, accuracy=30, train=50),
            layers("race", 0, 1, accuracy=32, train=54),
            run("race", accuracy=40),  # all layers are two
            run("race", 1, accuracy=40),
            run("race", accuracy=20, **NONE),
            layers("mnli", 1, m=70, mm=60),
            layers("mnli", 0, m=65, mm=60),
        ]
    )
    assert set(table["metric"]) == {"accuracy"}
    assert spreads(table, "title", "split", "layers") == {
        ("RACE", "dev", 0): (31, 30, 32),
        ("RACE", "dev", 2): (40, 40, 40),
        ("RACE", "train", 0): (52, 50, 54),
        ("MNLI-m", "dev", 0): (65, 65, 65),
        ("MNLI-m", "dev", 1): (70, 70, 70),
    }
    assert layers_table(table).split("\n\n") == [
        "| layers transferred | split | 0 | 1 | 2 |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| RACE, accuracy | dev | 31.0 (30.0 to 32.0) | - | 40.0 |\n"
        "| RACE, accuracy | training | 52.0 (50.0 to 54.0) | - | - |\n"
        "| MNLI-m, accuracy | dev | 65.0 | 70.0 | - |",
        "Over several seeds: the median, then the lowest to highest.",
    ]


def test_a_task_with_one_number_of_layers_is_not_compared():
    runs = [run("rte", seed, accuracy=60) for seed in (0, 1)]
    assert layer_transfer_scores([*runs, run("rte", accuracy=1, **NONE)]).empty
    assert layer_transfer_scores([]).empty


def weighed(weight, size=0, seed=0, **values):
    overrides = {"head__aux_lm_weight": weight, "data__max_train_examples": size}
    return run("rte", seed, train_examples=min(size or 90, 90), **overrides, **values)


def test_lambda_has_scores_for_each_training_set_size():
    table = aux_weight_scores(
        [
            weighed(0.5, 20, accuracy=40),
            weighed(0.5, accuracy=60),
            weighed(0.0, accuracy=55),
            weighed(0.0, seed=1, accuracy=57),
            weighed(0.0, 200, accuracy=1),  # all of them once more
            weighed(1.0, 200, accuracy=70),
            weighed(0.0, 20, accuracy=45),
            weighed(0.5, 30, accuracy=10),
            run("rte", accuracy=30, head__aux_lm_weight=0.25, **NONE),
        ]
    )
    assert set(table["title"]) == {"RTE"} and set(table["metric"]) == {"accuracy"}
    assert spreads(table, "train_examples", "aux_lm_weight") == {
        (90, 0.0): (56, 55, 57),
        (90, 0.5): (60, 60, 60),
        (90, 1.0): (70, 70, 70),
        (20, 0.0): (45, 45, 45),
        (20, 0.5): (40, 40, 40),
    }
    assert aux_weights_table(table).splitlines()[:4] == [
        "| weight (lambda) | training examples | 0 | 0.5 | 1 |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| RTE, accuracy | 90 | 56.0 (55.0 to 57.0) | 60.0 | 70.0 |",
        "| RTE, accuracy | 20 | 45.0 | 40.0 | - |",
    ]


def test_a_task_with_one_lambda_is_not_compared():
    assert aux_weight_scores([run("rte", accuracy=60)]).empty
    assert aux_weight_scores([]).empty


def test_a_task_of_ones_own_is_compared_by_its_first_metric(monkeypatch):
    configs = [
        dataclasses.replace(each.config, tasks=("<i>",))
        for each in (layers("rte", 0, f1=1), layers("rte", 1, f1=1))
    ]
    runs = [
        Finished(epath.Path("run"), config, {"dev": {"n": 1, "f1": score}})
        for config, score in zip(configs, (0.2, 0.3), strict=True)
    ]
    table = layer_transfer_scores(runs)
    small = Metric(lambda predictions, labels: 0.0)
    monkeypatch.setitem(scores.METRICS, "small", small)
    shown = layers_table(table.assign(metric="small", score=table["score"] / 1e4))
    assert r"| \<i\>, small | dev | 0.00200 | 0.00300 |" in shown
    assert spreads(table, "title", "metric", "layers") == {
        (r"\<i\>", "f1", 0): (20, 20, 20),
        (r"\<i\>", "f1", 1): (30, 30, 30),
    }


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
    assert list(dict.fromkeys(scores.run_names(runs))) == names
