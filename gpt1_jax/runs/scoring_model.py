"""The model that scores text and examples: its forms are those of a forward pass."""

import functools

from gpt1_jax.config import ModelConfig
from gpt1_jax.runs.console import say
from gpt1_jax.runs.forms import choose_forms, describe_forms


@functools.cache
def scoring_model(model: ModelConfig) -> ModelConfig:
    """The model with the forms for forward passes."""
    chosen, forms = choose_forms(model, model.max_seq_len, training=False)
    explained = {name: found for name, found in forms.items() if found.get("why")}
    for line in describe_forms(explained):
        say(line, beside_output=True)
    return chosen
