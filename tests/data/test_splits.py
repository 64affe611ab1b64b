"""Which documents are held out, by size and by number."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data.documents import Document
from gpt1_jax.data.splits import hold_out, is_near, shared_texts

few = settings(deadline=None, max_examples=200)


def documents(sizes, first=0):
    return [
        Document(f"book{number}.txt", "", size, lambda: iter(()))
        for number, size in enumerate(sizes, first)
    ]


def share(held, everything):
    return sum(d.num_bytes for d in held) / sum(d.num_bytes for d in everything)


sizes_of_documents = st.lists(st.integers(1, 10_000), min_size=1, max_size=60)


@few
@given(
    sizes=sizes_of_documents,
    fraction=st.floats(0.001, 0.999),
    rule=st.sampled_from(["size", "documents"]),
)
@example(sizes=[5, 5], fraction=0.99, rule="size")
def test_hold_out_divides_the_documents_in_order(sizes, fraction, rule):
    everything = documents(sizes)
    train, valid = hold_out(everything, fraction, rule)
    assert sorted([*train, *valid], key=everything.index) == everything
    assert [d for d in everything if d in train] == train
    assert [d for d in everything if d in valid] == valid
    assert train
    if rule == "size" and valid:
        assert is_near(share(valid, everything), fraction)


@few
@given(sizes=st.lists(st.integers(900, 1100), min_size=200, max_size=300))
def test_hold_out_by_size_is_exact_where_documents_are_many(sizes):
    everything = documents(sizes)
    _, valid = hold_out(everything, 0.02, "size")
    assert share(valid, everything) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize(
    ("sizes", "fraction"),
    [([67_000, 102_000], 0.02), ([134_804, 37], 0.02), ([10] * 10, 0.02), ([9], 0.1)],
)
def test_hold_out_no_whole_documents_where_none_are_the_share(sizes, fraction):
    everything = documents(sizes)
    assert hold_out(everything, fraction, "size") == (everything, [])


def test_hold_out_by_documents_is_the_rule_of_earlier_versions():
    """The names are those that version 0.1.0 chose."""
    train, valid = hold_out(documents([1] * 8 + [10**9, 1]), 0.3, "documents")
    assert [d.name for d in valid] == ["book2.txt", "book4.txt", "book5.txt"]
    assert len(train) == 7


@pytest.mark.parametrize(
    ("fraction", "number"), [(0.001, 1), (0.2, 2), (0.26, 3), (0.99, 9)]
)
def test_hold_out_by_documents_rounds(fraction, number):
    _, valid = hold_out(documents(range(1, 11)), fraction, "documents")
    assert len(valid) == number


def test_hold_out_changes_little_when_a_document_is_added():
    before = hold_out(documents([1000] * 100), 0.1, "size")[1]
    after = hold_out(documents([1000] * 101), 0.1, "size")[1]
    assert len({d.name for d in before} & {d.name for d in after}) >= 9


def test_hold_out_depends_on_the_last_part_of_the_name_alone():
    moved = [d._replace(name=f"/elsewhere/{d.name}") for d in documents(range(1, 40))]
    one, other = (hold_out(d, 0.1, "size")[1] for d in (moved, documents(range(1, 40))))
    assert [d.name for d in one] == [f"/elsewhere/{d.name}" for d in other]


def test_shared_texts_are_pairs_of_names():
    everything = documents([1, 1, 1, 1])
    digests = {"book0.txt": "a", "book1.txt": "b", "book2.txt": "a"}  # 3 is blank
    pairs = shared_texts(everything[:2], everything[2:], digests)
    assert pairs == [("book2.txt", "book0.txt")]
