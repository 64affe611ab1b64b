"""The settings of JAX that results rely on."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """The settings of JAX that the package computes with, whatever the caller's are.

    Some would change results without a word (the generator of random numbers, how sums
    are rounded without jit), others refuse what the package does (promotion,
    transfers). All of them are JAX's defaults, so that nothing is compiled again for
    them. They hold in the thread that enters, until it leaves.

    It also decorates functions, but not generators: it would end before the first value
    is asked for.

    The caller keeps the precision of products, the devices, and checks for NaNs or
    leaks.
    """
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.default_prng_impl("threefry2x32"),
        jax.threefry_partitionable(True),
        jax.transfer_guard("allow"),
        jax.disable_jit(False),
    ):
        yield
