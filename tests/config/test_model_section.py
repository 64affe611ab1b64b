import pytest
from tiny_run import load_config

from gpt1_jax.config import load


def section(preset="paper", **overrides):
    overrides = {f"model__{key}": value for key, value in overrides.items()}
    return load(load_config(preset, **overrides).to_dict()).model_config(40478)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"kind": "gru"}, ["model.kind='gru'", "transformer, lstm"]),
        ({"embed_dim": 100, "num_heads": 12}, ["embed_dim=100", "108"]),
        ({"num_layers": 0}, ["num_layers=0", "positive"]),
        ({"max_seq_len": 1}, ["max_seq_len=1", "at least 2"]),
        ({"max_seq_len": 2**31}, ["max_seq_len=2147483648", "at most 2,147,483,647"]),
        ({"embed_dim": 2**63}, ["embed_dim=9223372036854775808", "at most"]),
        ({"attn_dropout": 1.0}, ["attn_dropout=1.0", "[0, 1)"]),
        ({"dtype": "float16"}, ["model.dtype='float16'", "bfloat16"]),
        ({"layer_loop": "while"}, ["layer_loop='while'", "scan"]),
        ({"embed_dropout_on": "x"}, ["embed_dropout_on='x'", "matrix"]),
        ({"softmax_rows": "x"}, ["softmax_rows='x'", "tokens+positions"]),
        ({"kind": "lstm", "lstm_units": 0}, ["lstm_units=0", "positive"]),
        ({"kind": "lstm", "embed_dim": 0}, ["embed_dim=0", "positive"]),
        (
            {"kind": "lstm", "softmax_rows": "tokens+positions"},
            ["no position embeddings", "--config.model.softmax_rows=tokens"],
        ),
    ],
)
def test_impossible_values_are_refused_by_name(overrides, parts):
    with pytest.raises(ValueError) as error:
        section(**overrides)
    for part in parts:
        assert part in str(error.value)


def test_an_lstm_is_chosen_by_its_kind_alone():
    """The sizes of a Transformer's layers stay as they are, and do not matter."""
    model = section(kind="lstm")
    assert (model.lstm_units, model.depth) == (2048, 1)
    assert section(kind="lstm", num_layers=0, num_heads=5, mlp_dim=0).depth == 1
    assert section().depth == 12


def test_small_presets_keep_the_papers_ratio_of_units_to_width():
    for preset in ("babylm", "small", "quickstart"):
        model = section(preset)
        ratio = model.lstm_units / model.embed_dim
        assert ratio == pytest.approx(2048 / 768, rel=0.01), preset


def test_layers_are_named_with_what_decides_their_number_of_parameters():
    assert (section().layers, section().main_size) == ("12 layers", "num_layers")
    lstm = section(kind="lstm")
    assert (lstm.layers, lstm.main_size) == (
        "LSTM layer of 2,048 units",
        "lstm_units",
    )
