"""The numbers of a model's dropout sites, which their masks depend on."""

import jax

EMBED_SITE = 0
EMBED_POSITION_SITE = 2**32 - 1  # only for embed_dropout_on="lookups"

# Sites in a block of the Transformer, and the only one in the layer of an LSTM.
ATTN_PROBS, ATTN_OUTPUT, MLP_OUTPUT = 1, 2, 3
LSTM_OUTPUT = 1


def block_site(layer: int | jax.Array, place: int) -> int | jax.Array:
    """The dropout site of one place in one layer; `layer` may be traced."""
    return 3 * layer + place
