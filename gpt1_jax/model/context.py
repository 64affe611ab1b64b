"""What a forward pass is given besides parameters and tokens."""

from typing import NamedTuple

import jax

from gpt1_jax.ops.dropout import Noise
from gpt1_jax.ops.packing import Packing


class Context(NamedTuple):
    """How to run a forward pass; by default without dropout, on whole sequences."""

    noise: Noise | None = None  # for this training step; None is no dropout
    packing: Packing | None = None  # leaves out the padding behind sequences

    def token_rows(self) -> jax.Array | None:
        """[S, R], each packed token's row for dropout; None without packing or noise.

        Rows are numbered as in the padded batch, so the masks are the same.
        """
        if self.noise is None or self.packing is None:
            return None
        return self.packing.rows(self.noise.rows)
