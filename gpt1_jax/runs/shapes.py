"""Names and shapes of the arrays in a state, saved or to be restored."""

from typing import Any

import jax


def abstract_state(state: Any, sharding: Any) -> Any:
    """Shapes and dtypes of a state, placed by `sharding`, as `restore` takes them.

    Args:
      state: arrays, or their shapes.
      sharding: a tree like `state`, with the sharding of each array.
    """
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, sharding
    )


def num_bytes(state: Any) -> int:
    """The size of a state: arrays, or their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def difference(found: Any, wanted: Any) -> str | None:
    """The first array, by name, that is not as wanted; None if all are.

    Args:
      found: arrays, or anything with their shapes.
      wanted: the same.

    Returns:
      For example "h_0/ln_1/bias of shape None, not (768,)"; None is an array that is
      not there.
    """
    asked, held = (
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (wanted, found)
    )
    for name in sorted(asked.keys() | held.keys()):
        if asked.get(name) != held.get(name):
            return f"{name} of shape {held.get(name)}, not {asked.get(name)}"
    return None
