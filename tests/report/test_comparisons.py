"""Comparisons of fine-tuned runs: Table 5, layers transferred, lambda."""

import dataclasses

import pytest
from made_up_runs import finished_run

from gpt1_jax.report.comparisons import COMPARISONS
from gpt1_jax.report.paper import PAPER, TABLE_5, TABLE_5_TASKS

TABLE, LAYERS, SIZES_OF_DATA, WEIGHTS = COMPARISONS.values()


def run(task, seed=0, *, train_examples=100, train=None, kind="transformer", **values):
    """A finished run; the scores, in points, are those that are no configuration."""
    overrides = {k: v for k, v in values.items() if "_" in k}
    dev = {k: v / 100 for k, v in values.items() if k not in overrides}
    halves = {"matched": dev.pop("m", None), "mismatched": dev.pop("mm", None)}
    subsets = {k: {"accuracy": v} for k, v in halves.items() if v is not None}
    if subsets:
        dev |= {"accuracy": 0.123, "subsets": subsets}
    result = {"dev": dev, "train_examples": train_examples}
    if train is not None:
        result["train"] = {"accuracy": train / 100}
    return finished_run(task, result, kind, seeds=(seed,), **overrides)


METRICS = {line.task: line.metric for line in PAPER}
NONE = {"transfer_layers": "none"}
NO_AUX = {"head__aux_lm_weight": 0.0}
LSTM = {"kind": "lstm", "init_from": "runs/lstm"}


def ablations(*runs):
    """Our lines and the paper's of Table 5, as dictionaries by task."""
    text = TABLE.table(TABLE.scores(runs))
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
    ours, paper = ablations(
        run("cola", matthews=40.0, accuracy=80),
        run("rte", 0, accuracy=60.0),
        run("rte", 1, accuracy=64.04),
        run("rte", 2, accuracy=61.0),
        run("rte", accuracy=50.0, **NONE),
        run("mrpc", f1=81.0, accuracy=70, **NO_AUX),
        run("stsb", pearson=70.0, spearman=1, **LSTM),
        run("snli", accuracy=99.0),
    )
    assert ours["full"]["CoLA"] == "40.0"
    assert ours["full"]["RTE"] == "61.0 (60.0 to 64.0)"
    assert ours["full"]["MRPC"] == "-"
    assert ours["no_pretraining"]["RTE"] == "50.0"
    assert ours["no_aux_lm"]["MRPC"] == "81.0"
    assert ours["lstm"]["STS-B"] == "70.0" and ours["lstm"]["RTE"] == "-"
    assert paper["lstm"]["STS-B"] == "71.8" and paper["full"]["RTE"] == "56.0"


def test_an_lstm_beside_a_transformer_of_one_layer_has_its_score():
    """They have the same layers, lambda and seed."""
    small = run("rte", accuracy=60)
    model = dataclasses.replace(small.config.model, num_layers=1)
    small = small._replace(config=dataclasses.replace(small.config, model=model))
    ours, _ = ablations(small, run("rte", accuracy=40, **LSTM))
    assert (ours["full"]["RTE"], ours["lstm"]["RTE"]) == ("60.0", "40.0")


def test_averages_are_over_the_tasks_that_both_have():
    ours, paper = ablations(run("cola", matthews=40), run("rte", accuracy=61))
    assert ours["full"]["**Average**"] == "50.5 (2)"
    assert paper["full"]["**Average**"] == "50.7 (2)"  # (45.4 + 56.0) / 2
    assert ours["lstm"]["**Average**"] == paper["lstm"]["**Average**"] == "-"
    everything = [run(task, **{METRICS[task]: 50.0}) for task in TABLE_5_TASKS]
    ours, paper = ablations(*everything)
    assert ours["full"]["**Average**"] == "50.0 (8)"
    assert paper["full"]["**Average**"] == "74.7 (8)", "as printed"


@pytest.mark.parametrize(
    ("halves", "text"), [({"m": 80, "mm": 70}, "75.0"), ({"m": 80}, "80.0")]
)
def test_mnli_is_the_mean_of_the_halves_that_were_scored(halves, text):
    ours, _ = ablations(run("mnli", **halves))
    assert ours["full"]["MNLI"] == text


def test_table_5_names_the_origins_and_says_which_settings_it_lacks():
    runs = [run("rte", accuracy=50), run("rte", accuracy=40, **LSTM)]
    scores = TABLE.scores(runs)
    assert TABLE.lacking(scores) == ["no pre-training", "no auxiliary LM"]
    origins = "the Transformer of runs/pretrain and the LSTM of runs/lstm."
    assert TABLE.table(scores).endswith(f"Ours start from {origins}")
    scratch = TABLE.scores([run("rte", accuracy=50, **NONE)])
    assert "start from" not in TABLE.table(scratch)


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
        ours, _ = ablations(*runs)
        assert (ours["full"]["RTE"], ours["no_pretraining"]["RTE"]) == ("60.0", "50.0")
        assert ours["no_aux_lm"]["RTE"] == ours["lstm"]["RTE"] == "-"


def test_table_5_takes_the_lambda_of_most_runs_and_each_seed_once():
    weight = {"head__aux_lm_weight": 0.3}
    runs = [run("rte", s, accuracy=s, **weight) for s in (1, 2)]
    again = run("rte", 1, accuracy=1, eval__batch_size=8, **weight)
    ours, _ = ablations(run("rte", accuracy=90), *runs, again)
    assert ours["full"]["RTE"] == "1.5 (1.0 to 2.0)"


def layers(task, number, seed=0, **values):
    return run(task, seed, transfer_layers=str(number), **values)


def lines_of(comparison, runs):
    """The header and the lines of a comparison's table."""
    text = comparison.table(comparison.scores(runs)).split("\n\n")[0]
    header, _, *lines = text.splitlines()
    return [header, *lines]


def test_layer_transfer_has_scores_of_each_task_over_seeds():
    runs = [
        layers("race", 0, 0, accuracy=30, train=50),
        layers("race", 0, 1, accuracy=32, train=54),
        run("race", accuracy=40),  # all layers are two
        run("race", 1, accuracy=40),
        run("race", accuracy=20, **NONE),
        layers("mnli", 1, m=70, mm=60),
        layers("mnli", 0, m=65, mm=60),
    ]
    assert lines_of(LAYERS, runs) == [
        "| task | metric | split | layers: 0 | layers: 1 | layers: 2 |",
        "| RACE | accuracy | dev | 31.0 (30.0 to 32.0) | - | 40.0 (40.0 to 40.0) |",
        "| RACE | accuracy | training | 52.0 (50.0 to 54.0) | - | - |",
        "| MNLI-m | accuracy | dev | 65.0 | 70.0 | - |",
    ]


def test_a_task_with_one_number_of_layers_is_not_compared():
    runs = [run("rte", seed, accuracy=60) for seed in (0, 1)]
    assert LAYERS.scores([*runs, run("rte", accuracy=1, **NONE)]).empty
    assert LAYERS.scores([]).empty and WEIGHTS.scores(runs).empty


def weighed(weight, size=0, seed=0, **values):
    overrides = {"head__aux_lm_weight": weight, "data__max_train_examples": size}
    return run("rte", seed, train_examples=min(size or 90, 90), **overrides, **values)


def test_lambda_has_scores_for_each_training_set_size():
    runs = [
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
    assert lines_of(WEIGHTS, runs) == [
        "| task | metric | training examples | lambda: 0 | lambda: 0.5 | lambda: 1 |",
        "| RTE | accuracy | 90 | 56.0 (55.0 to 57.0) | 60.0 | 70.0 |",
        "| RTE | accuracy | 20 | 45.0 | 40.0 | - |",
    ]


def test_a_learning_curve_has_the_scores_of_each_split_over_training_examples():
    """Of runs that differ in nothing else, and of the training split if it is there."""
    runs = [
        *(weighed(0.5, seed=seed, accuracy=60 + seed, train=90) for seed in (0, 1)),
        weighed(0.5, 20, accuracy=40),
        weighed(0.5, 50, accuracy=50, train=99),
        weighed(0.0, 20, accuracy=1),
        run("sst2", accuracy=30),
    ]
    tested = runs[2].result | {"test": {"n": 3, "accuracy": 0.3}}
    runs[2] = runs[2]._replace(result=tested)
    assert lines_of(SIZES_OF_DATA, runs) == [
        "| task | metric | split | 20 examples | 50 examples | 90 examples |",
        "| RTE | accuracy | dev | 40.0 | 50.0 | 60.5 (60.0 to 61.0) |",
        "| RTE | accuracy | training | - | 99.0 | 90.0 (90.0 to 90.0) |",
    ]
    (axes,) = SIZES_OF_DATA.draw(SIZES_OF_DATA.scores(runs)).axes
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "training examples"
    assert axes.get_xticks().tolist() == [20, 50, 90]
    assert not axes.get_xticks(minor=True).size
    dev = axes.lines[0]
    assert dev.get_xdata() == pytest.approx([20, 50, 90], rel=0.02)
    assert dev.get_ydata().tolist() == [40, 50, 60.5]
