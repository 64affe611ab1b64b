import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.runs.checkpoint_files import abstract_state, difference, state_bytes
from gpt1_jax.training.state import TrainState


def test_difference_names_the_first_array_that_is_not_as_wanted():
    found = {"a": np.zeros(3), "b": [np.zeros((2, 4)), np.zeros(())]}
    assert difference(found, found) is None
    wider = {"a": np.zeros(3), "b": [np.zeros((2, 5)), np.zeros(())]}
    assert difference(found, wider) == "b/0 of shape (2, 4), not (2, 5)"
    assert difference(found, {"a": np.zeros(3)}) == "b/0 of shape (2, 4), not None"
    assert difference({}, {"a": np.zeros(3)}) == "a of shape None, not (3,)"


def test_difference_compares_a_state_with_its_names_on_disk():
    state = TrainState(0, {"w": jnp.ones(2)}, ((), jnp.ones(3)), 0, 0)
    state = jax.tree.map(jnp.asarray, state)
    saved = {**state._asdict(), "opt_state": [None, np.zeros(3)]}
    assert difference(saved, state) is None


def test_abstract_state_is_placed():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    placed = abstract_state({"w": jnp.ones((2, 3))}, {"w": sharding})["w"]
    assert (placed.shape, placed.dtype) == ((2, 3), jnp.float32)
    assert placed.sharding == sharding


def test_the_size_of_a_state_is_known_from_its_shapes():
    state = {
        "w": jnp.ones((2, 3)),
        "step": jnp.int32(0),
        "half": jnp.ones(5, "bfloat16"),
    }
    assert (
        state_bytes(state) == state_bytes(jax.eval_shape(lambda: state)) == 24 + 4 + 10
    )
