"""The paper's tables and figures in a report."""

import pytest
from made_up_runs import write_finished, write_zero_shot, zero_shot_scores

from gpt1_jax.report import analyses, commands
from gpt1_jax.report.commands import Models
from gpt1_jax.report.comparisons import AuxWeightCurve, LayerCurve, Spread
from gpt1_jax.report.gather import gather
from gpt1_jax.report.page import Picture, Text


def text_of(blocks):
    return "\n\n".join(b.markdown for b in blocks if isinstance(b, Text))


def pictures(blocks):
    return [block.name for block in blocks if isinstance(block, Picture)]


@pytest.fixture
def add(tmp_path):
    """A function that adds a finished run and returns what there is."""

    def make(*arguments, **values):
        folder = tmp_path / "runs" / str(len(list(tmp_path.glob("runs/*"))))
        write_finished(folder, *arguments, **values)
        return gather([str(tmp_path / "runs")])

    return make


def test_tables_show_the_spread_over_seeds_beside_the_paper(add):
    for seed, score in enumerate((0.75, 0.8, 0.7)):
        add("sst2", score, seed)
    text = text_of(analyses.tables_2_to_4(add("sst2", 0.6, transfer_layers="none")))
    assert "### From runs/pretrain/small, a Transformer at step 8" in text
    row = "| SST-2 | accuracy | 40 | 75.0 (70.0 to 80.0) | 60.0 | 50.0 | 91.3 | 84.0 |"
    assert row in text
    assert "**Missing:** MNLI, SNLI," in text and "SST-2," not in text
    assert commands.finetune(Models("runs/pretrain/small")) in text


def test_each_source_has_tables_of_its_own(add):
    add("cola", 0.1)
    found = add("cola", 0.2, init_from="runs/pretrain/large")
    for section in (analyses.tables_2_to_4, analyses.table_5):
        text = text_of(section(found))
        assert "### From runs/pretrain/small" in text
        assert "### From runs/pretrain/large" in text
    assert "Models are not mixed" in text
    text = text_of(analyses.tables_2_to_4(found))
    assert text.count("Ours is measured on the dev splits") == 1


def test_table_5_names_the_lines_that_are_missing(add):
    found = add("cola", 0.1)
    text = text_of(analyses.table_5(found))
    assert "without pre-training, without the auxiliary objective, with an LSTM" in text
    assert "Models are not mixed" not in text


def test_layers_transferred_are_drawn_and_tabled(add):
    for layers in "012":
        found = add("rte", 0.5 + int(layers) / 10, transfer_layers=layers)
    blocks = analyses.layer_transfer(found)
    assert pictures(blocks) == ["layer_transfer"]
    assert "50.0 | 60.0 | 70.0 |" in text_of(blocks)
    assert "RACE (dev) rises from about 40 to 60" in text_of(blocks)
    for layers in "01":
        other = {"init_from": "runs/pretrain/large", "transfer_layers": layers}
        found = add("rte", 0.5, **other)
    names = pictures(analyses.layer_transfer(found))
    assert names == ["layer_transfer", "layer_transfer_2"]


def test_weights_are_drawn_and_tabled(add):
    for weight in (0.0, 0.5):
        found = add("rte", 0.5 + weight / 5, head__aux_lm_weight=weight)
    blocks = analyses.aux_lm_weight(found)
    assert pictures(blocks) == ["aux_lm_weight"]
    assert "50.0 | 60.0 |" in text_of(blocks)
    assert "74.7 with the auxiliary objective and 75.0 without" in text_of(blocks)


def test_curves_without_runs_say_so_beside_the_paper(add):
    found = add("copa", 0.5)
    for section, command, paper in (
        (analyses.layer_transfer, commands.layer_transfer, "from about 40 to 60"),
        (analyses.aux_lm_weight, commands.aux_lm_weight, "75.0 without"),
        (analyses.over_updates, commands.zero_shot, "0.68 in sentiment"),
    ):
        text = text_of(section(found))
        assert "**Missing:**" in text and command(found.models) in text
        assert paper in text
        assert pictures(section(found)) == []


def test_each_zero_shot_evaluation_has_its_figure_and_table(tmp_path):
    write_zero_shot(tmp_path / "a")
    write_zero_shot(tmp_path / "b", scores=(0.6,))
    blocks = analyses.over_updates(gather([str(tmp_path)]))
    assert pictures(blocks) == ["zero_shot", "zero_shot_2"]
    text = text_of(blocks)
    assert "50.0 ± 1.0 | 75.0 ± 1.0 |" in text and "60.0 ± 1.0 |" in text
    assert "### Of runs/pretrain/small" in text


def test_runs_of_one_evaluation_are_both_named(tmp_path):
    tasks = {"sst2": zero_shot_scores("sst2", 0.5)}
    runs = [
        {"init_from": name, "kind": kind, "checkpoints": [{"step": 1, "tasks": tasks}]}
        for name, kind in (("gpt", "transformer"), ("lstm", "lstm"))
    ]
    write_zero_shot(tmp_path / "a", runs=runs)
    text = text_of(analyses.over_updates(gather([str(tmp_path)])))
    assert "### Of gpt and lstm" in text


def test_curves_are_tabled_with_their_spread():
    spreads = {0: Spread(50.0, 50.0, 50.0), 2: Spread(60.0, 55.5, 62.0)}
    curve = LayerCurve("RACE", "accuracy", spreads, {2: Spread(90.0, 90.0, 90.0)})
    first, second = analyses._layers_table([curve]).splitlines()[2:4]
    assert first == "| RACE, accuracy | dev | 50.0 | 60.0 (55.5 to 62.0) |"
    assert second == "| RACE, accuracy | training | - | 90.0 |"
    weights = AuxWeightCurve("RTE", "accuracy", 1000, {0.5: spreads[2]})
    (row,) = analyses._weights_table([weights]).splitlines()[2:3]
    assert row == "| RTE, accuracy | 1,000 | 60.0 (55.5 to 62.0) |"
