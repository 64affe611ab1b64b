"""Batches of encoded examples: padding, order, hosts, resuming."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_tasks import finetune_config

from gpt1_jax.finetuning.heads import classification_loss
from gpt1_jax.finetuning.steps import Batch, make_batch
from gpt1_jax.tasks.batches import (
    EncodedExamples,
    TrainBatches,
    choose_bands,
    choose_sizes,
    draw_examples,
    eval_batches,
    lengths_by_group,
    padded_length,
    padded_lengths,
    real_indices,
)
from gpt1_jax.tasks.task import Example

few = settings(max_examples=25)
MAX_SEQ_LEN = 24
SEQ_LENS = (4, 8, 16, MAX_SEQ_LEN)
STEPS = 200

lengths_of_examples = st.integers(1, 3).flatmap(
    lambda num_seqs: st.lists(
        st.lists(st.integers(1, MAX_SEQ_LEN), min_size=num_seqs, max_size=num_seqs),
        min_size=1,
        max_size=12,
    )
)


def sequences_of(lengths):
    """Random ids from 1 on, an array for each sequence."""
    rng = np.random.default_rng(0)
    return [[rng.integers(1, 999, size) for size in example] for example in lengths]


def collect(sequences, targets):
    """Examples of these ids, [examples][C], without texts."""
    example = Example((), (), None, "", "", "")
    count = len(sequences)
    return EncodedExamples.collect([example] * count, sequences, targets, [0] * count)


def examples_of(lengths):
    """Examples of the given lengths, [examples][C]; their targets number them."""
    targets = np.arange(len(lengths), dtype=np.float32)[:, None]
    return collect(sequences_of(lengths), targets)


def examples(count):
    """`count` examples of two sequences, of all lengths."""
    lengths = np.random.default_rng(1).integers(1, MAX_SEQ_LEN + 1, (count, 2))
    return examples_of(lengths.tolist())


def numbers(batch):
    """Which examples are in a batch."""
    return batch.targets[:, 0].astype(int).tolist()


def train_batches(encoded, batch_size=4, rows=slice(None), **overrides):
    values = dict(
        batch_size=batch_size,
        rows=slice(*rows.indices(batch_size)),
        seq_lens=SEQ_LENS,
        devices=1,
        parts=1,
        unpadded_sizes=8,
        tokens_to_compile=25,
        num_steps=STEPS,
        seed=0,
    )
    return TrainBatches(examples=encoded, make_batch=make_batch, **values | overrides)


def labelled(count):
    """Examples of three classes, one of them rare."""
    classes = np.random.default_rng(3).choice(3, count, p=(0.7, 0.2, 0.1))
    return collect(sequences_of([[5]] * count), np.eye(3, dtype=np.float32)[classes])


def all_batches(encoded, batch_size=4, rows=slice(None)):
    batches = eval_batches(encoded, batch_size, rows, SEQ_LENS)
    return [(chosen, Batch(**arrays)) for chosen, arrays in batches]


def host_rows(batch_size, hosts):
    size = batch_size // hosts
    return [slice(i * size, (i + 1) * size) for i in range(hosts)]


def assert_same_batch(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def joined(batches):
    """The rows of all hosts in one batch."""
    return jax.tree.map(lambda *rows: np.concatenate(rows), *batches)


def test_batch_is_padded_at_the_end_with_zeros():
    sequences = [[[7, 8, 9], [5]], [[1, 2], [3, 4, 6]]]
    arrays = [[np.asarray(s) for s in example] for example in sequences]
    targets = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    encoded = collect(arrays, targets)
    batch = Batch(**encoded.batch(np.array([1, 0, 1]), 4))
    assert batch.tokens.tolist() == [
        [[1, 2, 0, 0], [3, 4, 6, 0]],
        [[7, 8, 9, 0], [5, 0, 0, 0]],
        [[1, 2, 0, 0], [3, 4, 6, 0]],
    ]
    assert encoded.lengths.tolist() == [[3, 1], [2, 3]]
    assert batch.lengths.tolist() == [[2, 3], [3, 1], [2, 3]]
    assert batch.targets.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    dtypes = (batch.tokens.dtype, batch.lengths.dtype, batch.targets.dtype)
    assert dtypes == (np.int32, np.int32, np.float32)


@few
@given(lengths=lengths_of_examples, data=st.data())
def test_digest_changes_with_any_id_or_target(lengths, data):
    encoded = examples_of(lengths)
    assert examples_of(lengths).digest == encoded.digest
    for name in ("tokens", "targets"):
        changed = getattr(encoded, name).copy()
        changed.flat[data.draw(st.integers(0, changed.size - 1))] += 1
        other = dataclasses.replace(encoded, **{name: changed})
        assert other.digest != encoded.digest


def test_digest_changes_with_the_cut_between_sequences():
    ids, targets = np.arange(5), np.zeros((1, 2), np.float32)
    cuts = [collect([[ids[:k], ids[k:]]], targets) for k in (2, 3)]
    assert cuts[0].tokens.tolist() == cuts[1].tokens.tolist()
    assert cuts[0].digest != cuts[1].digest


@pytest.mark.parametrize("limit", [0, 5, 8, 9])
def test_drawn_examples_keep_what_belongs_to_them(limit):
    """As if they alone had been encoded."""
    sequences = np.array(sequences_of(examples(8).lengths.tolist()), dtype=object)
    texts = [Example((str(i),), (), None, "", "", "") for i in range(8)]
    targets, cut = np.eye(8, dtype=np.float32), np.arange(8) % 3 == 0
    drawn = EncodedExamples.collect(texts, sequences, targets, cut, 7).draw(limit)
    rows = draw_examples(range(8), limit)
    alone = EncodedExamples.collect(
        [texts[i] for i in rows], sequences[rows], targets[rows], cut[rows], 7
    )
    assert drawn.examples == alone.examples
    assert drawn.digest == alone.digest
    assert drawn.cut.tolist() == alone.cut.tolist()
    assert (len(drawn), drawn.num_dropped) == (min(limit or 8, 8), 7)


def test_the_same_examples_are_drawn_in_every_version():
    """Runs that are resumed compare them."""
    assert draw_examples(range(20), 6) == [2, 4, 6, 13, 16, 19]


@pytest.mark.parametrize(
    ("buckets", "model", "max_seq_len", "lengths"),
    [
        ((4, 8, 16), 10, 0, (4, 8, 10)),
        ((8, 10), 10, 0, (8, 10)),
        ((8, 16), 512, 100, (8, 16, 100)),
    ],
)
def test_padding_never_exceeds_what_the_model_reads(
    buckets, model, max_seq_len, lengths
):
    data = {"data__seq_len_buckets": buckets, "data__max_seq_len": max_seq_len}
    config = finetune_config("sst2", {"init_from": "runs/pretrain/tiny"}, **data)
    assert padded_lengths(config.data, model) == lengths
    chosen = [padded_length(length, lengths) for length in (1, *lengths)]
    assert chosen == [lengths[0], *lengths]


# --- training -------------------------------------------------------------------


@few
@given(count=st.integers(4, 30), batch_size=st.integers(1, 4), seed=st.integers(0, 99))
@example(count=8, batch_size=4, seed=0)  # nothing is left out
@example(count=7, batch_size=4, seed=0)
def test_train_batches_repeat_nothing_within_an_epoch(count, batch_size, seed):
    batches = train_batches(examples(count), batch_size=batch_size, seed=seed)
    per_epoch = count // batch_size
    for epoch in range(3):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        drawn = [number for step in steps for number in numbers(batches[step])]
        assert len(drawn) == per_epoch * batch_size
        assert len(set(drawn)) == len(drawn)


def epoch_order(batches, epoch, per_epoch):
    steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
    return tuple(number for step in steps for number in numbers(batches[step]))


def test_train_batches_draw_a_new_order_each_epoch():
    batches = train_batches(examples(22))
    orders = [epoch_order(batches, epoch, 5) for epoch in range(20)]
    assert len(set(orders)) == 20
    assert list(orders[0]) != sorted(orders[0])
    left_out = [frozenset(range(22)) - set(order) for order in orders]
    assert {len(each) for each in left_out} == {2}
    assert len(set(left_out)) > 10, "other examples are left out each time"


def test_train_batches_differ_between_seeds():
    encoded = examples(20)
    orders = {
        epoch_order(train_batches(encoded, seed=seed), epoch, 5)
        for seed in range(5)
        for epoch in range(3)
    }
    assert len(orders) == 15, "nor is seed s + 1 seed s an epoch later"


@few
@given(step=st.integers(0, STEPS - 1), seed=st.integers(0, 2**32 - 1))
def test_train_batches_are_a_function_of_seed_and_step(step, seed):
    encoded = examples(21)
    used, fresh = (train_batches(encoded, seed=seed) for _ in range(2))
    for other in ((step + 7) % STEPS, 0, step // 2):
        _ = used[other]
    assert_same_batch(used[step], fresh[step])
    assert_same_batch(used[step], used[step])
    assert repr(used) == repr(fresh)


def test_train_batches_are_padded_to_the_bucket_of_their_longest():
    encoded = examples_of([[1, size] for size in (1, 3, 4, 5, 9, 16, 17, 24)])
    batches = train_batches(encoded, batch_size=2)
    padded = set()
    for step in range(40):
        batch = batches[step]
        longest = encoded.lengths[numbers(batch)].max()
        assert batch.tokens.shape == (2, 2, padded_length(longest, SEQ_LENS))
        padded.add(batch.tokens.shape[2])
    assert padded == {4, 8, 16, 24}


@pytest.mark.parametrize("hosts", [2, 4])
def test_class_weights_make_the_mean_of_losses_that_of_torch(hosts):
    """Over the batches of all hosts, whatever part of the rows each of them has."""
    torch = pytest.importorskip("torch")
    encoded, weights = labelled(40), np.float32([0.5, 2.0, 7.0])
    options = dict(batch_size=8, seq_lens=(8,), devices=4)
    plain = train_batches(encoded, **options)
    weighted = [
        train_batches(encoded, rows=rows, class_weights=weights, **options)
        for rows in host_rows(8, hosts)
    ]
    criterion = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights))
    rng = np.random.default_rng(0)
    for step in range(15):
        logits = rng.normal(0, 2, (8, 3)).astype(np.float32)
        labels = torch.tensor(plain[step].targets.argmax(1))
        expected = float(criterion(torch.tensor(logits), labels))
        batches = [batch[step] for batch in weighted]
        losses = [
            float(classification_loss(part, batch.targets))
            for part, batch in zip(np.split(logits, hosts), batches, strict=True)
        ]
        assert np.mean(losses) == pytest.approx(expected, rel=1e-5)
        whole = joined(batches)._replace(targets=plain[step].targets)
        assert_same_batch(whole, plain[step])


def test_class_weights_leave_the_examples_as_they_are():
    encoded = labelled(40)
    first = train_batches(encoded, class_weights=np.float32([1, 2, 3]))[0].targets
    assert (first.sum(1) != 1).any() and first.dtype == np.float32
    np.testing.assert_array_equal(encoded.targets, labelled(40).targets)


# --- real tokens ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "parts", "groups", "indices"),
    [
        (2, 1, [[1, 2], [3, 1]], [[0, 3, 4, 6, 6], [0, 1, 2, 3, 6]]),
        (1, 2, [[1, 3], [2, 1]], [[0, 3, 4, 5, 6], [0, 1, 3, 6, 6]]),
    ],
    ids=["devices", "parts"],
)
def test_real_indices_list_the_tokens_of_each_group(devices, parts, groups, indices):
    """A device's rows are contiguous; a part takes every `parts`-th of them."""
    found = lengths_by_group(np.array([[1], [2], [3], [1]]), devices, parts)
    assert found.tolist() == groups
    listed = real_indices(found, seq_len=3, size=5)
    assert listed.tolist() == indices and listed.dtype == np.int32


@few
@given(
    most=st.integers(1, 12),
    tokens=st.sampled_from([10_000, 25_000]),
    seed=st.integers(0, 99),
)
def test_sizes_hold_every_batch_and_more_of_them_compute_less(most, tokens, seed):
    rng = np.random.default_rng(seed)
    seq_lens, real = rng.choice([64, 128], 400), rng.integers(1, 2000, 400)

    def computed(sizes):
        batches = zip(seq_lens, real, strict=True)
        return sum(padded_length(n, sizes[t]) for t, n in batches)

    sizes = choose_sizes(seq_lens, real, 32, most, tokens)
    assert list(sizes) == [64, 128]
    assert sum(map(len, sizes.values())) <= max(most, 2)
    for seq_len, own in sizes.items():
        assert own == sorted(set(own))
        assert not any(size % seq_len for size in own)  # 32 sequences, 1/32 of them
        assert 0 <= own[-1] - real[seq_lens == seq_len].max() < seq_len
    fewer = choose_sizes(seq_lens, real, 32, sum(map(len, sizes.values())) - 1, tokens)
    if fewer != sizes:
        assert computed(sizes) + tokens <= computed(fewer)


@few
@given(count=st.integers(1, 70), longest=st.integers(1, 512), seed=st.integers(0, 99))
def test_bands_hold_the_sequences_and_compute_less(count, longest, seed):
    lengths = np.random.default_rng(seed).integers(1, longest + 1, count)
    lengths = np.sort(lengths)[::-1]
    bands = choose_bands(lengths, longest)
    own = np.repeat([size for _, size in bands], [number for number, _ in bands])
    assert (lengths <= own).all()
    assert own[0] <= longest
    assert list(own) == sorted(own, reverse=True)
    assert len(bands) <= 8
    assert len({size for _, size in bands}) == len(bands)
    assert (own**2).sum() <= own[0] ** 2 * count * (7 / 8) ** (len(bands) - 1)


def test_a_long_sequence_does_not_pad_the_short_ones():
    lengths = np.array([200, 90] + [40] * 14)
    assert choose_bands(lengths, 256) == ((2, 224), (14, 64))


@pytest.mark.parametrize(("devices", "parts", "num_seqs"), [(1, 1, 1), (2, 2, 2)])
def test_sizes_are_those_of_the_whole_run(devices, parts, num_seqs):
    """So a run that is resumed compiles nothing else, and all hosts take the same."""
    lengths = np.random.default_rng(0).integers(1, 21, (400, num_seqs))
    encoded = examples_of(lengths.tolist())
    layout = dict(num_steps=600, devices=devices, parts=parts)
    batches = train_batches(encoded, **layout)
    by_host = [train_batches(encoded, rows=rows, **layout) for rows in host_rows(4, 2)]
    chosen = {
        (t, *layout) for t, own in batches._layouts.items() for layout in own.items()
    }
    found = set()
    for step in range(600):
        batch = batches[step]
        found.add((batch.tokens.shape[-1], batch.real_indices.shape[-1], batch.bands))
        falling = np.sort(lengths_by_group(batch.lengths, devices, parts))[:, ::-1]
        longest = np.repeat(*np.array(batch.bands).T[::-1])
        assert (falling <= longest).all(), "every sequence fits in its band"
        if devices == 2:
            assert_same_batch(joined([host[step] for host in by_host]), batch)
    assert found == chosen
    assert len(found) > len({seq_len for seq_len, _, _ in found})


def test_train_batches_list_real_tokens_unless_told_not_to():
    encoded = examples(10)
    batch = train_batches(encoded)[3]
    flat = batch.tokens.reshape(-1)
    found = batch.real_indices[0][batch.real_indices[0] < len(flat)]
    np.testing.assert_array_equal(flat[found], flat[flat > 0])
    assert train_batches(encoded, unpadded_sizes=0)[3].real_indices is None


# --- evaluation -----------------------------------------------------------------


@few
@given(lengths=lengths_of_examples, batch_size=st.integers(1, 5))
@example(lengths=[[3], [2], [1], [9]], batch_size=4)  # nothing to fill up
@example(lengths=[[3], [2], [1], [9], [4]], batch_size=4)
def test_eval_batches_hold_every_example_once(lengths, batch_size):
    encoded = examples_of(lengths)
    batches = all_batches(encoded, batch_size)
    seen, longest = [], []
    for chosen, batch in batches:
        assert len(batch.tokens) == batch_size
        assert numbers(batch)[: len(chosen)] == chosen.tolist()
        longest += encoded.lengths[chosen].max(axis=1).tolist()
        padded = padded_length(longest[-1], SEQ_LENS)
        assert batch.tokens.shape[2] == padded
        seen += chosen.tolist()
    assert sorted(seen) == list(range(len(lengths)))
    assert longest == sorted(longest), "short ones come first"


def test_eval_batches_fill_the_last_one_with_its_first_row():
    first, last = all_batches(examples_of([[3], [9], [2], [9], [1], [3]]))
    assert first[0].tolist() == [4, 2, 0, 5], "equal ones in their order"
    assert last[0].tolist() == [1, 3]
    assert numbers(last[1]) == [1, 3, 1, 1]


@pytest.mark.parametrize("hosts", [2, 4])
def test_eval_batches_of_all_hosts_are_the_global_batch(hosts):
    encoded = examples(10)
    whole = all_batches(encoded)
    parts = [all_batches(encoded, rows=rows) for rows in host_rows(4, hosts)]
    assert {len(part) for part in parts} == {len(whole)} == {3}
    for index in range(3):
        chosen, expected = whole[index]
        together = [part[index] for part in parts]
        for numbers_of_all, _ in together:
            np.testing.assert_array_equal(numbers_of_all, chosen)
        batches = [batch for _, batch in together]
        assert len({batch.tokens.shape for batch in batches}) == 1
        assert_same_batch(joined(batches), expected)
