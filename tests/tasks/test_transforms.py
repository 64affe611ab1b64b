"""Figure 1's sequences by hand, where they are cut, targets and predictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_tokenizer import VOCAB_SIZE, Numbers
from tiny_tasks import changed

from gpt1_jax.data.tokenizers import special_tokens
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example
from gpt1_jax.tasks.transforms import (
    encode_examples,
    num_outputs,
    output_names,
    read_outputs,
    targets,
)

few = settings(max_examples=60)
START, DELIMITER, EXTRACT = VOCAB_SIZE, VOCAB_SIZE + 1, VOCAB_SIZE + 2
REGRESSION = changed(TASKS["stsb"], "target", score_loss="regression")
SINGLE, PAIR, SIMILARITY = TASKS["sst2"], TASKS["rte"], TASKS["mrpc"]
STORY, COPA, RACE, STSB = (TASKS[n] for n in ("story_cloze", "copa", "race", "stsb"))
BOOLQ = TASKS["boolq"]


def words(first, count):
    """Text of the ids first, first + 1, .."""
    return " ".join(map(str, range(first, first + count)))


def encode(task, *text, choices=(), label=0, max_seq_len=512):
    """The sequences of one example."""
    example = Example(text, tuple(choices), label, "", "", "file.tsv:7")
    encoded = encode_examples(task, [example], Numbers(), max_seq_len)
    cuts = encoded.starts[1:-1]
    return [ids.tolist() for ids in np.split(encoded.tokens, cuts)]


def ids(first, count):
    return list(range(first, first + count))


# --- Figure 1 -------------------------------------------------------------------


def test_special_tokens_follow_the_vocabulary():
    assert special_tokens(40478) == (40478, 40479, 40480)


def test_single_text():
    assert encode(SINGLE, "5 6 7") == [[START, 5, 6, 7, EXTRACT]]


def test_pair_has_the_delimiter_between():
    assert encode(PAIR, "5 6", "7") == [[START, 5, 6, DELIMITER, 7, EXTRACT]]


def test_similarity_is_in_both_orders():
    assert encode(SIMILARITY, "5 6", "7") == [
        [START, 5, 6, DELIMITER, 7, EXTRACT],
        [START, 7, DELIMITER, 5, 6, EXTRACT],
    ]


def test_choices_share_the_context():
    assert encode(STORY, "5 6", choices=["7", "8 9"]) == [
        [START, 5, 6, DELIMITER, 7, EXTRACT],
        [START, 5, 6, DELIMITER, 8, 9, EXTRACT],
    ]


def test_question_follows_the_context_without_a_delimiter():
    assert encode(RACE, "5 6", "7", choices=["1", "2", "3", "4 4"]) == [
        [START, 5, 6, 7, DELIMITER, 1, EXTRACT],
        [START, 5, 6, 7, DELIMITER, 2, EXTRACT],
        [START, 5, 6, 7, DELIMITER, 3, EXTRACT],
        [START, 5, 6, 7, DELIMITER, 4, 4, EXTRACT],
    ]
    assert encode(COPA, "5", "7", choices=["1", "2"])[1] == [
        *(START, 5, 7, DELIMITER, 2, EXTRACT)
    ]


def test_texts_are_cleaned_as_the_corpus_is():
    """Line breaks stay: RACE's passages have them."""
    read = []

    class Reader(Numbers):
        def encode(self, text):
            read.append(text)
            return [1]

    made = [Example((" so\u00adft\x00\thy\r\n\n\nphen",), (), 0, "", "", "")]
    encode_examples(SINGLE, made, Reader(), 512)
    assert read == ["soft hy\nphen"]


def test_several_examples_keep_their_order():
    examples = [
        Example((text,), (), label, "", "", "") for text, label in (("5", 1), ("6", 0))
    ]
    encoded = encode_examples(SINGLE, examples, Numbers(), 512)
    assert encoded.tokens.tolist() == [START, 5, EXTRACT, START, 6, EXTRACT]
    assert encoded.tokens.dtype == np.int32
    assert encoded.targets.tolist() == [[0.0, 1.0], [1.0, 0.0]]


# --- what is cut ----------------------------------------------------------------


def test_single_text_keeps_its_first_510_tokens():
    for count in (509, 510, 511, 600):
        (sequence,) = encode(SINGLE, words(1, count))
        assert sequence == [START, *ids(1, min(count, 510)), EXTRACT]


@pytest.mark.parametrize(
    ("task", "choices"),
    [(PAIR, 0), (SIMILARITY, 0), (STORY, 2)],
    ids=["pair", "similarity", "story_cloze"],
)
def test_two_texts_keep_254_tokens_each(task, choices):
    """Each its head: 511 tokens at most, as in the released code."""
    for one, other in ((254, 254), (255, 300), (900, 10), (3, 900)):
        first, second = words(1, one), words(1000, other)
        if choices:
            sequences = encode(task, first, choices=[second] * choices)
        else:
            sequences = encode(task, first, second)
        head, tail = ids(1, min(one, 254)), ids(1000, min(other, 254))
        assert sequences[0] == [START, *head, DELIMITER, *tail, EXTRACT]
        assert len(sequences[0]) <= 511
        if task is SIMILARITY:
            assert sequences[1] == [START, *tail, DELIMITER, *head, EXTRACT]


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        (255, 255, (255, 254)),
        (20, 900, (20, 489)),
        (900, 20, (489, 20)),
        (900, 900, (255, 254)),
        (900, 254, (255, 254)),
    ],
)
def test_the_longer_text_is_cut_first_in_some_pairs(one, other, kept):
    """As `transformers` does with `truncation=True`; 512 tokens at most."""
    sequence, *_ = encode(BOOLQ, words(1, one), words(1000, other))
    parts = (ids(1, kept[0]), ids(1000, kept[1]))
    assert sequence == [START, *parts[0], DELIMITER, *parts[1], EXTRACT]


def test_texts_are_made_of_columns_as_the_task_formats_them():
    """A brace in a text is a brace."""
    task = TASKS["wsc"]
    example = Example(("{it}", "Ann", "Ann has it."), (), 0, "", "", "")
    reads = ('Does "{it}" refer to "Ann" in this passage?', "Ann has it.")
    assert task.inputs.format_text(example) == reads
    formats = ("{span1_text} 5 {span2_text}", "{text}")
    made = changed(task, "inputs", formats=formats)
    encoded = encode(made, "3", "4", "6")
    assert encoded[0] == [START, 4, 5, 3, DELIMITER, 6, EXTRACT]


def test_context_gives_way_to_question_and_choice():
    """Which stay whole; a longer choice leaves the context less."""
    choices = [words(1000, size) for size in (1, 20, 300, 489)]
    sequences = encode(RACE, words(1, 600), words(1600, 20), choices=choices)
    for sequence, size, room in zip(
        sequences, (1, 20, 300, 489), (488, 469, 189, 0), strict=True
    ):
        rest = [*ids(1600, 20), DELIMITER, *ids(1000, size), EXTRACT]
        assert sequence == [START, *ids(1, room), *rest]
        assert len(sequence) == 512


def test_question_and_choice_without_room_are_refused():
    """One token more than fits: the extract token would go."""
    question, fitting, long = words(10, 8), words(20, 5), words(20, 6)
    fits = encode(RACE, "1", question, choices=[fitting] * 4, max_seq_len=16)
    assert fits[0] == [START, *ids(10, 8), DELIMITER, *ids(20, 5), EXTRACT]
    message = "file.tsv:7: question and choice take 8 and 6 tokens; .* the 16 the model"
    with pytest.raises(UserError, match=message):
        encode(RACE, "1", question, choices=["1", "2", "3", long], max_seq_len=16)
    made = Example(("1", question), ("1", "2", "3", long), 0, "", "", "")
    kept = encode_examples(RACE, [made], Numbers(), 16, drop_long=True)
    assert (list(kept.examples), len(kept), kept.num_dropped) == ([], 0, 1)


@pytest.mark.parametrize(
    ("task", "sizes", "cut"),
    [
        (SINGLE, (15,), True),
        (PAIR, (6, 6), False),
        (PAIR, (7, 1), True),
        (PAIR, (1, 7), True),
        (SIMILARITY, (6, 7), True),
        (BOOLQ, (1, 12), False),
        (BOOLQ, (1, 13), True),
        (STORY, (6, 1, 7), True),
        (COPA, (5, 4, 4, 4), False),
        (COPA, (5, 4, 4, 5), True),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_examples_that_are_cut_are_counted(task, sizes, cut):
    texts = [words(1, size) for size in sizes]
    number = len(task.inputs.text)
    made = Example(tuple(texts[:number]), tuple(texts[number:]), 0, "", "", "")
    short = made._replace(
        text=tuple("1" for _ in made.text), choices=tuple("1" for _ in made.choices)
    )
    encoded = encode_examples(task, [short, made, short, made], Numbers(), 16)
    assert encoded.cut.tolist() == [False, cut] * 2
    kept = encode_examples(task, [short, made], Numbers(), 16, drop_long=True)
    assert kept.examples == ([short] if cut else [short, made])
    assert (len(kept), kept.num_dropped, kept.cut.any()) == (2 - cut, cut, False)


@pytest.mark.parametrize("max_seq_len", [0, 1, 5])
def test_too_short_sequences_are_refused(max_seq_len):
    with pytest.raises(ValueError, match=f"Sequences of {max_seq_len} tokens"):
        encode(SINGLE, "5 6 7", max_seq_len=max_seq_len)
    shortest = encode(PAIR, "5 6", "7 8", max_seq_len=6)[0]
    assert shortest == [START, 5, DELIMITER, 7, EXTRACT]


# --- targets --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "score_loss", "expected"),
    [
        (SINGLE, "soft_labels", SINGLE.target.labels),
        (RACE, "soft_labels", ("A", "B", "C", "D")),
        (STSB, "soft_labels", ("0", "1", "2", "3", "4", "5")),
        (STSB, "regression", ()),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_outputs_are_labels_or_whole_scores(task, score_loss, expected):
    other = changed(task, "target", score_loss=score_loss)
    assert output_names(other) == expected
    assert num_outputs(other) == (len(expected) or 1)


@pytest.mark.parametrize(
    ("change", "labels", "expected"),
    [
        ({}, [2, None, 0], [[0, 0, 1], [0, 0, 0], [1, 0, 0]]),
        ({"multilabel": True}, [(0, 2), (), None], [[1, 0, 1], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_each_label_is_a_target_and_a_missing_one_is_none(change, labels, expected):
    rows = targets(changed(TASKS["mnli"], "target", **change), labels)
    assert rows.tolist() == expected
    assert rows.dtype == np.float32


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (3.8, [0, 0, 0, 0.2, 0.8, 0]),
        (5.0, [0, 0, 0, 0, 0, 1]),
        (0.25, [0.75, 0.25, 0, 0, 0, 0]),
        (None, [0] * 6),
    ],
)
def test_score_is_shared_by_two_classes(score, expected):
    rows = targets(STSB, [score])
    np.testing.assert_allclose(rows, [expected], atol=1e-6)


def test_soft_labels_start_at_the_lowest_score():
    task = changed(STSB, "target", score_range=(1.0, 3.0))
    assert targets(task, [1.0, 2.5]).tolist() == [[1, 0, 0], [0, 0.5, 0.5]]
    scores, _ = read_outputs(task, np.zeros((1, 3)))
    assert scores.tolist() == [2.0]


def test_regression_learns_the_score_itself():
    rows = targets(REGRESSION, [3.5, None, 0.25])
    assert rows.tolist() == [[3.5], [0.0], [0.25]]


# --- predictions ----------------------------------------------------------------


@pytest.mark.parametrize("score", [0.0, 0.25, 3.8, 5.0])
def test_outputs_that_match_a_soft_label_predict_its_score(score):
    with np.errstate(divide="ignore"):
        logits = np.log(targets(STSB, [score]))
    scores, probabilities = read_outputs(STSB, logits)
    np.testing.assert_allclose(scores, [score], atol=1e-6)
    np.testing.assert_allclose(probabilities, targets(STSB, [score]), atol=1e-6)


def test_regression_predicts_its_output():
    scores, probabilities = read_outputs(REGRESSION, np.array([[3.1], [-2.0]]))
    assert scores.tolist() == [3.1, -2.0]
    assert probabilities.shape == (2, 0)


def test_several_labels_are_those_with_a_probability_of_a_half():
    task = changed(TASKS["mnli"], "target", multilabel=True)
    logits = np.float32([[0.0, -0.1, np.log(3)], [-900.0, 900.0, -1.0]])
    labels, probabilities = read_outputs(task, logits)
    assert labels.tolist() == [[True, False, True], [False, True, False]]
    assert probabilities[0, [0, 2]].tolist() == pytest.approx([0.5, 0.75])
    assert probabilities[1].tolist() == pytest.approx([0, 1, 1 / (1 + np.e)])


@few
@given(
    logits=st.lists(
        st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=1
    )
)
def test_labels_are_the_largest_outputs(logits):
    logits = np.asarray(logits, np.float32)
    labels, probabilities = read_outputs(TASKS["mnli"], logits)
    np.testing.assert_array_equal(labels, logits.argmax(1))
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-12)
    assert probabilities.dtype == np.float64
    exact = np.exp(logits.astype(np.float64) - np.logaddexp.reduce(logits, 1)[:, None])
    np.testing.assert_allclose(probabilities, exact, atol=1e-4)
