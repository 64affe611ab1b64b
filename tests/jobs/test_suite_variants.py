"""Suites that compare variants: what is run, resumed, shared and shown."""

import json

import pytest
from tiny_tasks import finetune_config

from gpt1_jax.finetuning import initial_state
from gpt1_jax.jobs import finetune

ONE_EPOCH = {"train__num_epochs": 1.0, "eval__first_epoch_steps": ()}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.usefixtures("real_figures")
def test_each_number_of_layers_is_a_run_of_its_own(finetune_base, tmp_path):
    """With no and one layer transferred, and some training examples scored."""
    values = {"eval__train_examples": 10, "suite__compare": "layer_transfer"}
    config = finetune_config("sst2", finetune_base, **ONE_EPOCH, **values)
    finetune.run(config, str(tmp_path))
    everything = json.loads((tmp_path / "all_results.json").read_text())["sst2"]
    for number in (0, 1):
        folder = tmp_path / "sst2" / f"layers{number}-seed0"
        config = config_of(folder)
        assert config["transfer_layers"] == str(number)
        assert config["suite"]["compare"] == ""
        (result,) = everything[f"layers{number}"]
        assert result == json.loads((folder / "results.json").read_text())
        assert result["variant"] == f"layers{number}"
        assert result["train"]["n"] == 10 and "accuracy" in result["train"]
        assert not (folder / "predictions" / "train.jsonl").exists()
    table = (tmp_path / "results.md").read_text()
    assert "| layers0 |" in table and "SST-2, accuracy (train)" in table
    assert (tmp_path / "plots" / "layer_transfer.png").stat().st_size


@pytest.mark.slow
def test_runs_share_a_program_while_only_start_and_seed_differ(
    finetune_base, pretrained, pretrained_lstm, tmp_path, monkeypatch, capsys
):
    """All of Table 5. Checkpoints are kept, as asked."""
    make, open_run = finetune.make_finetune_step, initial_state.open_run
    traces, opened = [], []

    def counted(*arguments):
        step = make(*arguments)

        def traced(*state_batch_seed):
            traces.append(1)
            return step(*state_batch_seed)

        return traced

    def noted(folder, step):
        opened.append(folder)
        return open_run(folder, step)

    monkeypatch.setattr(finetune, "make_finetune_step", counted)
    monkeypatch.setattr(initial_state, "open_run", noted)
    lstm = str(pretrained_lstm)
    suite = {"suite__compare": "ablations", "suite__lstm_init_from": lstm}
    suite["suite__keep_checkpoints"] = True
    folder = tmp_path / "run"
    config = finetune_config("rte", finetune_base, **ONE_EPOCH, **suite)
    finetune.run(config, str(folder))
    assert opened == [lstm]  # the other one was open
    assert len(traces) == 3  # full with no_pretraining, no_aux_lm, lstm
    names = ["full", "no_pretraining", "no_aux_lm", "lstm"]
    assert list(json.loads((folder / "all_results.json").read_text())["rte"]) == names
    found = [config_of(folder / "rte" / f"{name}-seed0") for name in names]
    assert [each["transfer_layers"] for each in found] == ["all", "none", "all", "all"]
    assert [each["head"]["aux_lm_weight"] for each in found] == [0.5, 0.5, 0, 0.5]
    assert len(list(folder.rglob("checkpoints/4/manifest.json"))) == 4
    assert [each["init_from"] for each in found] == [*3 * [str(pretrained)], lstm]
    table = (folder / "results.md").read_text()
    assert "| no pre-training, ours (dev) |" in table
    assert "| no_pretraining |" in table and "| lstm |" in table
    assert "Table 5's LSTM is left out" not in capsys.readouterr().out
    assert not (folder / "plots").exists()  # tables alone


def test_sizes_beyond_the_data_are_run_once_and_said(
    finetune_base, tmp_path, carried_out, capsys
):
    config = finetune_config(
        "sst2",
        finetune_base,
        suite__compare="aux_lm_weight",
        suite__aux_lm_weights=(0, 0.5),
        suite__train_sizes=(16, 32, 500, 0),  # there are 32
        figure=".svg",
    )
    for _ in range(2):
        finetune.run(config, str(tmp_path))
        assert carried_out == [
            f"sst2/lambda{weight}-{size}-seed0"
            for size in ("all", "size16")
            for weight in ("0", "0.5")
        ]
        said = capsys.readouterr().out
        assert said.count("would repeat") == 4
        assert "no more than 500 training examples" in said
    plots = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert plots == ["aux_lm_weight.csv", "aux_lm_weight.svg"]
    assert "| lambda0.5-size16 |" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        (
            {"suite__compare": "train_sizes", "suite__train_sizes": (7, 0)},
            "RTE, size7: .* holds 7 examples, fewer than one",
        ),
        ({"suite__lstm_init_from": "PRETRAINED"}, "a transformer, not an LSTM"),
        ({"suite__lstm_init_from": "no/such"}, "no/such is not a run folder"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused_before_any_run(
    finetune_base, pretrained, tmp_path, carried_out, suite, message
):
    given = {"suite__compare": "ablations", **suite}
    if "PRETRAINED" in given.values():
        given["suite__lstm_init_from"] = str(pretrained)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        finetune.run(
            finetune_config("rte", finetune_base, **given), str(tmp_path / "r")
        )
    assert not carried_out and not (tmp_path / "r").exists()
