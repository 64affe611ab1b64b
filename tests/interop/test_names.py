"""The table of names: it covers the model, and counts what OpenAI released."""

import jax
import pytest
from tiny_models import KIND, PAPER, WAYS, flat_params

from gpt1_jax.config import ModelConfig
from gpt1_jax.interop import names
from gpt1_jax.interop.names import Sizes
from gpt1_jax.model.language_model import init_params


@pytest.fixture(scope="module")
def table():
    return names.tensors(Sizes(**PAPER))


def test_the_table_holds_the_model_parameter_by_parameter(table):
    model = ModelConfig(**PAPER, **KIND, **WAYS)
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    found = {name: leaf.shape for name, leaf in flat_params(shapes).items()}
    assert {tensor.name: tensor.shape for tensor in table} == found


def test_the_order_is_that_of_the_released_shards(table):
    assert [tensor.name for tensor in table[:2]] == ["wpe", "wte"]
    assert [tensor.name.removeprefix("h_0/") for tensor in table[2:14]] == [
        "attn/c_attn/kernel",
        "attn/c_attn/bias",
        "attn/c_proj/kernel",
        "attn/c_proj/bias",
        "ln_1/scale",
        "ln_1/bias",
        "mlp/c_fc/kernel",
        "mlp/c_fc/bias",
        "mlp/c_proj/kernel",
        "mlp/c_proj/bias",
        "ln_2/scale",
        "ln_2/bias",
    ]
    assert len(table) == 146 and table[-1].name == "h_11/ln_2/bias"
    assert [tensor.openai_shape for tensor in table[:4]] == [
        (512, 768),
        (40478, 768),
        (1, 768, 2304),
        (2304,),
    ]


def test_hugging_face_names_are_those_of_its_model(table):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from torch_models import torch_names

    ours = {tuple(tensor.name.split("/")): tensor.hugging_face for tensor in table}
    theirs = torch_names(12)
    prefix = "transformer."
    assert ours == {path: name.removeprefix(prefix) for path, name in theirs.items()}
