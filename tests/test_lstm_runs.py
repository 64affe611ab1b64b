"""The LSTM is a model like the other: every job opens its folder."""

import numpy as np
import pytest
from tiny_models import all_logits
from tiny_run import job_config, stopped_after
from tiny_tasks import finetune_config

import gpt1_jax
from gpt1_jax.jobs import convert, finetune, pretrain
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.records import read_metrics
from gpt1_jax.studies.words import features
from gpt1_jax.studies.words import job as words_job

TEXT = "the abcd of efgh and a"


def test_a_run_that_starts_from_it_is_an_lstm_too(
    tiny_config, pretrained_lstm, tmp_path, capsys
):
    with stopped_after(1):
        pretrain.run(tiny_config(init_from=str(pretrained_lstm)), str(tmp_path))
    assert "Model: LSTM layer of 24 units, 16 wide" in capsys.readouterr().out
    found = open_run(str(tmp_path))
    assert (found.model.kind, found.model.lstm_units) == ("lstm", 24)


def test_it_is_read_in_a_notebook(pretrained_lstm):
    model = gpt1_jax.load(str(pretrained_lstm))
    assert "LSTM layer of 24 units, 16 wide, 12,528 parameters" in repr(model)
    ids = model.tokenizer.encode(TEXT)
    expected = all_logits(model.config, model.params, np.asarray([ids]))[0]
    np.testing.assert_allclose(model.logits(TEXT), expected, atol=1e-5)
    states = model.hidden_states(TEXT)
    assert states.shape == (2, len(ids), 16)
    np.testing.assert_array_equal(states[0], model.params["wte"][np.asarray(ids)])
    scores = states[-1] @ np.asarray(model.params["wte"]).T
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert model.features(TEXT, 1).shape == (6, 16)
    assert len(model.surprisal(TEXT)) == 6
    assert model.generate(TEXT, max_new_tokens=5)
    with pytest.raises(ValueError, match="no attention maps"):
        model.attention(TEXT)


def test_attention_maps_are_refused_before_anything_is_written(
    pretrained_lstm, tmp_path, monkeypatch
):
    (tmp_path / "text.txt").write_text(TEXT)
    places = {"input": str(tmp_path / "text.txt")}
    places["output"] = str(tmp_path / "features.npz")
    values = {"init_from": str(pretrained_lstm), "attention": True, "rows": "last"}
    config = job_config("features", **values, **places)
    monkeypatch.setattr(features, "Reader", None)  # nothing is read
    with pytest.raises(ValueError, match="no attention maps"):
        words_job.run(config, "")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize("target", ["huggingface", "openai"])
def test_no_other_format_has_a_place_for_it(pretrained_lstm, tmp_path, target):
    config = job_config("convert", target, init_from=str(pretrained_lstm))
    with pytest.raises(ValueError, match=r"kind='lstm', for which neither OpenAI's"):
        convert.run(config, str(tmp_path / "made"))
    assert not list(tmp_path.iterdir())


def test_it_is_fine_tuned_and_predicts(finetune_base, pretrained_lstm, tmp_path):
    """With padding removal, the auxiliary loss and its own checkpoints."""
    config = finetune_config(
        "sst2", {**finetune_base, "init_from": str(pretrained_lstm)}
    )
    finetune.run(config, str(tmp_path / "run"))
    trained = open_run(str(tmp_path / "run"))
    assert (trained.model.kind, trained.model.depth) == ("lstm", 1)
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < losses[0] - 1
    assert len(gpt1_jax.load(str(tmp_path / "run")).predict(["bcd aaaa hi"])) == 1
