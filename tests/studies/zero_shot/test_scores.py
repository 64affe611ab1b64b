"""Zero-shot scores: by hand from a model's logits, and of models made to be right."""

import shutil

import jax
import numpy as np
import pytest
from made_up_tokenizer import Characters
from tiny_models import all_logits, drawn_params
from tiny_tasks import rows, write_lines, write_task

from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.inference.scoring import Scorer, TokenScores
from gpt1_jax.studies.answers import AnswersTask
from gpt1_jax.studies.zero_shot.config import ZeroShotDataConfig
from gpt1_jax.studies.zero_shot.scores import score_answers
from gpt1_jax.studies.zero_shot.tasks import (
    ZERO_SHOT,
    load_answers,
    select_zero_shot_tasks,
)
from gpt1_jax.tasks import metrics
from gpt1_jax.tasks.paper_tasks import TASKS

TOKENIZER = Characters()
COUNTS = {"cola": 8, "sst2": 6, "race": 3, "dpr": 4}
COUNTS |= {"story_cloze": 3, "copa": 3, "wsc273": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up examples of all tasks."""
    folder = tmp_path_factory.mktemp("tasks")
    for task, count in COUNTS.items():
        split = "dev" if ZERO_SHOT[task].splits[0] == "dev" else "test"
        write_task(folder, task, **{"train": 10, "dev": 0, split: count},
                   labelled_test=True)  # fmt: skip
    return folder


def load(folder, *names, max_examples=0):
    data = ZeroShotDataConfig("jsonl", str(folder), max_examples)
    tasks = select_zero_shot_tasks(names)
    return [load_answers(task, data, TOKENIZER, 96) for task in tasks]


def scorer_of(preference):
    """A made-up model: the log-probability of each token of a text it is asked for."""

    def score(params, windows):
        found = []
        for window in windows:
            scored = window.ids[window.num_context :]
            read = TOKENIZER.decode(window.ids[: window.num_context])
            value = preference(read, TOKENIZER.decode(scored))
            log_probs = np.full(len(scored), value, np.float32)
            found.append(TokenScores(log_probs, log_probs, log_probs))
        return found

    return score


def test_scores_are_those_of_the_plain_formula(folder, tiny_model_config):
    """Each heuristic from the logits of whole sequences, one at a time."""
    model = tiny_model_config(
        vocab_size=TOKENIZER.vocab_size + 3, num_layers=1, max_seq_len=96
    )
    params = jax.tree.map(lambda leaf: 4 * leaf, drawn_params(model))
    tasks = load(folder, "cola", "sst2", "race", "dpr", "copa")

    def plain(answer):
        ids = answer.ids
        padded = np.zeros((1, 96), np.int32)
        padded[0, : len(ids)] = ids
        logits = np.asarray(all_logits(model, params, padded), np.float64)[0, :, :256]
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        places = range(answer.num_context, len(ids))
        return [log_probs[place - 1, ids[place]] for place in places]

    scorer = Scorer(model, TOKENIZER.vocab_size)
    for task in tasks:
        predicted, _, found = score_answers(task, scorer, params, seed=0)
        name = task.task.task.name
        values = [plain(answer) for answer in task.windows]
        labels = [example.label for example in task.examples]
        assert found["n"] == len(labels) == COUNTS[name]
        if name == "cola":
            means = np.array([np.mean(each) for each in values])
            predictions = (means >= found["threshold"] - 1e-5).astype(int)
            train = [np.mean(plain(a)) for a in task.threshold_on.windows]
            gaps = np.abs(np.array(train) - found["threshold"])
            assert gaps.min() < 1e-5
            assert found["auc"] == metrics.auc(means, np.asarray(labels))
        else:
            combine = np.sum if name == "sst2" else np.mean
            rows = np.reshape([combine(each) for each in values], (len(labels), -1))
            predictions = rows.argmax(axis=1)
            assert found["accuracy"] == np.mean(predictions == labels)
        np.testing.assert_array_equal(predicted, predictions)


def test_a_sentence_at_the_threshold_is_acceptable(folder):
    """The model likes "jjjj", where the label is 1."""
    (task,) = load(folder, "cola")
    scorer = scorer_of(lambda read, scored: -1.0 if "jjjj" in scored else -2.0)
    _, _, scores = score_answers(task, scorer, None, seed=0)
    assert scores["auc"] == scores["matthews"] == 1.0 and scores["threshold"] == -1.0


@pytest.mark.parametrize(
    ("name", "preference"),
    [
        ("sst2", lambda read, text: ("jjjj" in read) == ("positive" in text)),
        ("race", lambda read, text: "jjjj" in text),
        ("copa", lambda read, text: "jjjj" in text),
        ("story_cloze", lambda read, text: "jjjj" in text),
    ],
)
def test_right_answers_win(folder, name, preference):
    (task,) = load(folder, name)
    _, _, scores = score_answers(task, scorer_of(preference), None, seed=0)
    assert scores["accuracy"] == 1.0
    assert scores["split"] == "dev" and scores["num_cut"] == 0


def test_examples_may_have_different_numbers_of_candidates(tmp_path):
    def row(label, *candidates):
        text = {"sentence": "a and b saw it.", "pronoun": "it", "label": label}
        return {**text, "candidates": candidates}

    made = [row(0, "a", "b"), row(2, "a", "b", "c"), row(1, "a", "c")]
    write_lines(tmp_path / "dpr" / "test.jsonl", made)
    (task,) = load(tmp_path, "dpr")

    def preference(read, scored):
        return 1.0 if read.rstrip().endswith("c") else 0.0

    predictions, log_probs, scores = score_answers(
        task, scorer_of(preference), None, seed=0
    )
    assert np.isinf(log_probs).tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert predictions.tolist() == [0, 2, 1]
    assert scores["accuracy"] == 1.0
    assert scores["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)
    assert np.shape(scores["confusion"]) == (3, 3)


def test_cola_needs_both_labels_of_its_training_split(folder, tmp_path):
    (task,) = load(folder, "cola", max_examples=5)
    assert len(task.examples) == len(task.threshold_on.examples) == 5
    write_task(tmp_path, "cola", train=0, dev=4)
    with pytest.raises(MissingData, match=r"no train data of CoLA"):
        load(tmp_path, "cola")
    examples = [{**row, "label": 1} for row in rows("cola", 4, seed=0)]
    write_lines(tmp_path / "cola" / "train.jsonl", examples)
    with pytest.raises(UserError, match="All 4 examples of cola:train have the same"):
        load(tmp_path, "cola")


@pytest.mark.parametrize("changed", ["train", "dev"])
def test_the_content_digest_tells_examples_from_any_others(folder, tmp_path, changed):
    shutil.copytree(folder / "cola", tmp_path / "cola")
    path = tmp_path / "cola" / f"{changed}.jsonl"
    text, digests = path.read_text(), []
    for other in (text, text, text.replace(": 1", ": 0", 1), text.replace("jjjj", "j")):
        path.write_text(other)
        (task,) = load(tmp_path, "cola")
        digests.append(task.content_digest())
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_the_content_digest_tells_context_from_what_is_scored(folder):
    data, found = ZeroShotDataConfig("jsonl", str(folder), 0), set()
    for context, scored in (("a b", " c d"), ("a b c", " d"), ("", "a b c d")):
        task = AnswersTask(TASKS["sst2"], context=context, scored=scored)
        found.add(load_answers(task, data, TOKENIZER, 96).content_digest())
    assert len(found) == 3
