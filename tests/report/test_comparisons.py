"""The paper's analyses from runs with made-up scores."""

import dataclasses
import functools
import statistics

import pytest
from etils import epath
from tiny_tasks import finetune_config

from gpt1_jax.config.sections import ModelSection
from gpt1_jax.report import comparisons
from gpt1_jax.report.comparisons import Spread, ablations_table
from gpt1_jax.report.paper import TABLE_5, TABLE_5_COLUMNS
from gpt1_jax.runs.past_runs import Finished

SIZES = dict(num_layers=2, num_heads=2, embed_dim=8, mlp_dim=32, lstm_units=24)


@functools.cache
def configured(task, **overrides):
    return finetune_config(task, {"init_from": "runs/pretrain"}, **overrides)


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


NONE = {"transfer_layers": "none"}
NO_AUX = {"head__aux_lm_weight": 0.0}
LSTM = {"kind": "lstm", "init_from": "runs/lstm"}


def parsed(text):
    """Our lines and the paper's of Table 5, as dictionaries by task."""
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line[:1] == "|"]
    header, _, *body = rows
    tasks = [row[0] for row in body]
    assert tasks == [*(column.title for column in TABLE_5_COLUMNS), "**Average**"]
    assert [row[1] for row in body[:-1]] == [c.metric for c in TABLE_5_COLUMNS]
    titles = [ablation.title for ablation in TABLE_5.values()]
    assert header[2::2] == [f"{title}, ours (dev)" for title in titles]
    assert set(header[3::2]) == {"paper (test)"}
    columns = [dict(zip(tasks, c, strict=True)) for c in zip(*body, strict=True)][2:]
    ours, paper = (dict(zip(TABLE_5, columns[k::2], strict=True)) for k in (0, 1))
    return ours, paper


def test_table_5_has_each_score_in_its_place_beside_the_papers():
    ours, paper = parsed(
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
    ours, paper = parsed(
        ablations_table([run("cola", matthews=40), run("rte", accuracy=61)])
    )
    assert ours["full"]["**Average**"] == "50.5 (2)"
    assert paper["full"]["**Average**"] == "50.7 (2)"  # (45.4 + 56.0) / 2
    assert ours["lstm"]["**Average**"] == paper["lstm"]["**Average**"] == "-"


def test_all_tasks_have_the_papers_own_average():
    everything = [
        run(column.task, **{column.metric: 50.0}) for column in TABLE_5_COLUMNS
    ]
    ours, paper = parsed(ablations_table(everything))
    assert (ours["full"]["**Average**"], paper["full"]["**Average**"]) == (
        "50.0 (8)",
        "74.7 (8)",
    )


@pytest.mark.parametrize(
    ("halves", "shown"),
    [({"m": 80, "mm": 70}, "75.0"), ({"m": 80}, "80.0"), ({"accuracy": 66}, "66.0")],
)
def test_mnli_is_the_mean_of_the_halves_that_were_scored(halves, shown):
    ours, _ = parsed(ablations_table([run("mnli", **halves)]))
    assert ours["full"]["MNLI"] == shown


def test_table_5_says_what_ours_started_from():
    text = ablations_table([run("rte", accuracy=50), run("rte", accuracy=40, **LSTM)])
    assert text.rstrip().endswith(
        "Ours start from the Transformer of runs/pretrain and the LSTM of runs/lstm."
    )
    ours, _ = parsed(ablations_table([]))
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
        ours, _ = parsed(ablations_table(runs))
        assert (ours["full"]["RTE"], ours["no_pretraining"]["RTE"]) == ("60.0", "50.0")
        assert ours["no_aux_lm"]["RTE"] == ours["lstm"]["RTE"] == "-"


def test_table_5_takes_the_lambda_of_most_runs():
    weight = {"head__aux_lm_weight": 0.3}
    runs = [run("rte", s, accuracy=s, **weight) for s in (1, 2)]
    ours, _ = parsed(ablations_table([run("rte", accuracy=90), *runs]))
    assert ours["full"]["RTE"] == "1.5 (1.0 to 2.0)"


def test_a_seed_that_was_run_twice_counts_once():
    runs = [run("rte", accuracy=60), run("rte", accuracy=60, eval__batch_size=8)]
    ours, _ = parsed(ablations_table([*runs, run("rte", 1, accuracy=70)]))
    assert ours["full"]["RTE"] == "65.0 (60.0 to 70.0)"


def layers(task, number, seed=0, **values):
    return run(task, seed, transfer_layers=str(number), **values)


def test_layer_transfer_has_a_curve_for_each_task_with_its_spread():
    race, mnli = comparisons.layer_transfer_curves(
        [
            layers("race", 0, 0, accuracy=30, train=50),
            layers("race", 0, 1, accuracy=32, train=54),
            run("race", accuracy=40),  # all layers are two
            run("race", accuracy=20, **NONE),
            layers("mnli", 1, m=70, mm=60),
            layers("mnli", 0, m=65, mm=60),
        ]
    )
    assert (race.title, race.metric) == ("RACE", "accuracy")
    assert race.dev == {0: Spread(31, 30, 32), 2: Spread(40, 40, 40)}
    assert race.train == {0: Spread(52, 50, 54)}
    assert mnli.title == "MNLI-m" and list(mnli.dev) == [0, 1]
    assert mnli.dev[0] == Spread(65, 65, 65) and not mnli.train


def test_a_task_with_one_number_of_layers_has_no_curve():
    runs = [run("rte", seed, accuracy=60) for seed in (0, 1)]
    assert (
        comparisons.layer_transfer_curves([*runs, run("rte", accuracy=1, **NONE)]) == []
    )
    assert comparisons.layer_transfer_curves([]) == []


def weighed(weight, size=0, seed=0, **values):
    overrides = {"head__aux_lm_weight": weight, "data__max_train_examples": size}
    return run("rte", seed, train_examples=min(size or 90, 90), **overrides, **values)


def test_lambda_has_a_curve_for_each_number_of_examples_that_there_were():
    full, small = comparisons.aux_weight_curves(
        [
            weighed(0.5, accuracy=60),
            weighed(0.0, accuracy=55),
            weighed(0.0, seed=1, accuracy=57),
            weighed(0.0, 200, accuracy=1),  # all of them once more
            weighed(1.0, 200, accuracy=70),
            weighed(0.0, 20, accuracy=45),
            weighed(0.5, 20, accuracy=40),
            weighed(0.5, 30, accuracy=10),
            run("rte", accuracy=30, head__aux_lm_weight=0.25, **NONE),
        ]
    )
    assert (full.train_examples, small.train_examples) == (90, 20)
    assert list(full.dev) == [0.0, 0.5, 1.0]
    assert full.dev[0.0] == pytest.approx((56, 55, 57))
    assert full.dev[1.0] == pytest.approx((70, 70, 70))
    assert small.dev == {0.0: Spread(45, 45, 45), 0.5: Spread(40, 40, 40)}
    assert (small.title, small.metric) == ("RTE", "accuracy")


def test_a_task_with_one_lambda_has_no_curve():
    assert comparisons.aux_weight_curves([run("rte", accuracy=60)]) == []
    assert comparisons.aux_weight_curves([]) == []


def test_a_task_of_ones_own_is_shown_by_its_first_metric():
    runs = [
        dataclasses.replace(each.config, tasks=("mine",))
        for each in (layers("rte", 0, f1=1), layers("rte", 1, f1=1))
    ]
    found = [
        Finished(
            epath.Path("run"), config, {"dev": {"n": 1, "f1": s}, "train_examples": 9}
        )
        for config, s in zip(runs, (0.2, 0.3), strict=True)
    ]
    (curve,) = comparisons.layer_transfer_curves(found)
    assert (curve.title, curve.metric) == ("mine", "f1")
    assert statistics.fmean(curve.dev[1]) == pytest.approx(30)
