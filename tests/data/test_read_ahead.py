"""Batches read ahead on threads."""

import numpy as np
import pytest

from gpt1_jax.data.read_ahead import read_ahead


class Squares:
    """Twelve batches that tell their step."""

    def __len__(self):
        return 12

    def __getitem__(self, step):
        return np.full(3, step**2)


@pytest.mark.parametrize("first_step", [0, 1, 5, 12])
def test_read_ahead_from_a_step_equals_skipping_to_it(first_step):
    found = [batch.tolist() for batch in read_ahead(Squares(), first_step)]
    assert found == [[step**2] * 3 for step in range(first_step, 12)]


def test_read_ahead_state_is_the_next_step():
    iterator = read_ahead(Squares(), 3)
    for step in range(3, 8):
        assert iterator.get_state()["next_index"] == step
        assert next(iterator)[0] == step**2


def test_read_ahead_keeps_the_type_of_a_batch(made_up_tuple=(1, 2)):
    iterator = read_ahead([made_up_tuple], 0)
    assert next(iterator) == made_up_tuple
