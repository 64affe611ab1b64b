"""Training and validation windows: coverage, order, hosts, resuming."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data.windows import (
    TrainWindows,
    ValidWindows,
    check_long_enough,
    read_ahead,
    windows_per_epoch,
)
from gpt1_jax.errors import UserError

few = settings(max_examples=10)
SEQ_LEN = 8


class Reader:
    """As a `TokenReader`, of a split whose token i is the number i."""

    def __init__(self, num_tokens: int):
        self._tokens = np.arange(num_tokens, dtype=np.uint16)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, length: int) -> np.ndarray:
        return self._tokens[start : start + length]


def train_windows(reader: Reader, **overrides) -> TrainWindows:
    values = dict(
        seq_len=SEQ_LEN, batch_size=4, rows=slice(None), num_steps=1000, seed=0
    )
    return TrainWindows(reader, **{**values, **overrides})


def epochs_of(reader: Reader, count: int, **overrides) -> list[np.ndarray]:
    """The windows of the first epochs, [windows, T] each."""
    size = windows_per_epoch(len(reader), SEQ_LEN)
    windows = train_windows(reader, batch_size=size, **overrides)
    return [windows[step] for step in range(count)]


@few
@given(num_tokens=st.integers(2 * SEQ_LEN - 1, 150), seed=st.integers(0, 2**32 - 1))
@example(num_tokens=2 * SEQ_LEN - 1, seed=0)
@example(num_tokens=13 * SEQ_LEN - 1, seed=1)
def test_train_windows_epoch_lays_every_window_once(num_tokens, seed):
    """Contiguous, side by side from an offset below T, each exactly once."""
    for epoch in epochs_of(Reader(num_tokens), 3, seed=seed):
        assert epoch.shape == (windows_per_epoch(num_tokens, SEQ_LEN), SEQ_LEN)
        in_order = epoch[np.argsort(epoch[:, 0])].ravel()
        offset = in_order[0]
        assert 0 <= offset < SEQ_LEN
        np.testing.assert_array_equal(in_order, offset + np.arange(in_order.size))
        assert in_order.size > num_tokens - 2 * SEQ_LEN + 1


def test_train_windows_offsets_take_every_value():
    """So that no token is always first, and none never seen."""
    epochs = epochs_of(Reader(2 * SEQ_LEN - 1), 100)
    assert {int(epoch.min()) for epoch in epochs} == set(range(SEQ_LEN))


def test_train_windows_orders_are_of_seed_and_epoch():
    """Another in each epoch; and seed s + 1 is not seed s an epoch later."""
    reader = Reader(20 * SEQ_LEN)
    orders = [
        tuple(np.argsort(epoch[:, 0]))
        for seed in (0, 1, 2**31 + 1)
        for epoch in epochs_of(reader, 4, seed=seed)
    ]
    assert len(set(orders)) == 12


def test_train_windows_order_is_shuffled():
    (epoch,) = epochs_of(Reader(200 * SEQ_LEN), 1)
    starts = epoch[:, 0]
    assert abs(np.corrcoef(starts, np.arange(len(starts)))[0, 1]) < 0.3
    assert np.count_nonzero(np.diff(starts) == SEQ_LEN) < 10


@few
@given(step=st.integers(0, 500), seed=st.integers(0, 2**32 - 1))
def test_train_windows_are_a_function_of_seed_and_step(step, seed):
    used, fresh = (train_windows(Reader(300), seed=seed) for _ in range(2))
    for other in (step + 3, 0, step // 2):
        _ = used[other]
    np.testing.assert_array_equal(used[step], fresh[step])
    assert fresh[step].dtype == np.int32
    assert fresh[step].shape == (4, SEQ_LEN)


@pytest.mark.parametrize("batch_size", [3, 25])
def test_train_windows_batches_are_one_stream(batch_size):
    """Batches that straddle epochs lose and repeat nothing."""
    reader = Reader(101)
    stream = np.concatenate(epochs_of(reader, 5))
    windows = train_windows(reader, batch_size=batch_size)
    for step in range(len(stream) // batch_size):
        expected = stream[step * batch_size : (step + 1) * batch_size]
        np.testing.assert_array_equal(windows[step], expected)


@pytest.mark.parametrize("hosts", [2, 4])
def test_windows_of_all_hosts_are_the_global_batch(hosts):
    size = 8 // hosts
    rows = [slice(start, start + size) for start in range(0, 8, size)]
    reader = Reader(300)
    whole = train_windows(reader, batch_size=8)
    parts = [train_windows(reader, batch_size=8, rows=each) for each in rows]
    for step in (0, 1, 17):
        together = np.concatenate([part[step] for part in parts])
        np.testing.assert_array_equal(together, whole[step])
    whole = ValidWindows(reader, SEQ_LEN, 8, slice(None))
    parts = [ValidWindows(reader, SEQ_LEN, 8, each) for each in rows]
    assert {len(part) for part in parts} == {len(whole)} == {6}
    for index in range(6):
        tokens, lengths = zip(*(part[index] for part in parts), strict=True)
        np.testing.assert_array_equal(np.concatenate(tokens), whole[index][0])
        np.testing.assert_array_equal(np.concatenate(lengths), whole[index][1])


@few
@given(
    num_tokens=st.integers(2, 200),
    seq_len=st.integers(2, 20),
    batch_size=st.integers(1, 9),
)
@example(num_tokens=2, seq_len=20, batch_size=9)
@example(num_tokens=15, seq_len=8, batch_size=2)  # two whole windows
@example(num_tokens=16, seq_len=8, batch_size=2)  # and one of two tokens
def test_valid_windows_predict_every_token_once(num_tokens, seq_len, batch_size):
    windows = ValidWindows(Reader(num_tokens), seq_len, batch_size, slice(None))
    predicted = []
    for index in range(len(windows)):
        tokens, lengths = windows[index]
        assert tokens.shape == (batch_size, seq_len)
        assert tokens.dtype == lengths.dtype == np.int32
        assert lengths.max() >= 2  # no batch of padding alone
        for row, length in zip(tokens, lengths, strict=True):
            assert length == 0 or 2 <= length <= seq_len
            np.testing.assert_array_equal(np.diff(row[:length]), 1)
            assert not row[length:].any()
            predicted += row[1:length].tolist()
    assert predicted == list(range(1, num_tokens))


@pytest.mark.parametrize(
    ("split", "seq_len", "needed"), [("train", 512, 1023), ("valid", 512, 2)]
)
def test_check_long_enough_asks_for_a_window_or_a_prediction(split, seq_len, needed):
    check_long_enough(split, needed, seq_len)
    message = (
        f"{split} split holds {needed - 1} tokens; with config.model.max_seq_len="
        f"{seq_len} it needs at least {needed}"
    )
    with pytest.raises(UserError, match=message):
        check_long_enough(split, needed - 1, seq_len)


@pytest.mark.parametrize("first_step", [0, 5, 20])
def test_read_ahead_from_a_step_equals_skipping_to_it(first_step):
    """Its state is the next step, whatever has been read ahead."""
    windows = train_windows(Reader(300), num_steps=20)
    iterator = read_ahead(windows, first_step)
    for step in range(first_step, len(windows)):
        assert iterator.get_state()["next_index"] == step
        np.testing.assert_array_equal(next(iterator), windows[step])
    assert not list(iterator)
    assert next(read_ahead([(1, 2)], 0)) == (1, 2)  # the type of a batch is kept
