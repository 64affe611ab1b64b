"""Answers to lm_eval equal those of its own class on the run's export."""

import copy
import random

import pytest
from tiny_run import job_config

from gpt1_jax.jobs import convert

for package in ("lm_eval", "torch", "transformers", "accelerate"):
    pytest.importorskip(package, reason=f"{package} is not installed")

TOLERANCE = 1e-4  # nats
WORDS = ("abcd", "the", "of.", "Efgh,", "and", '"Jj', "ab-cd", "9", "été", "a\n")


@pytest.fixture(scope="module")
def exported(pretrained, tmp_path_factory):
    config = job_config("convert", "huggingface", init_from=str(pretrained))
    folder = tmp_path_factory.mktemp("exported") / "folder"
    convert.run(config, str(folder))
    return folder


@pytest.fixture(scope="module")
def ours(pretrained):
    from gpt1_jax.eval_harness import RunLM

    return RunLM(str(pretrained))


@pytest.fixture(scope="module")
def peer(exported, ours):
    """lm_eval's class, told what the export lacks: a prefix and an end token."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported)
    tokenizer.eos_token = "<unk>"
    newline = ours._tokenizer.newline_id
    return HFLM(
        str(exported), tokenizer=tokenizer, device="cpu", prefix_token_id=newline
    )


def requests(*arguments):
    from lm_eval.api.instance import Instance

    return [Instance("", {}, each, number) for number, each in enumerate(arguments)]


def made_up_texts(count, longest, seed=0):
    rng = random.Random(seed)
    return [
        " ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)
    ]


def assert_same_log_likelihoods(ours, peer, *arguments):
    asked = requests(*arguments)
    found = ours.loglikelihood(asked)
    expected = peer.loglikelihood(asked, disable_tqdm=True)
    assert len(found) == len(expected) > 0
    for (log_prob, greedy), (other, also) in zip(found, expected, strict=True):
        assert log_prob == pytest.approx(other, abs=TOLERANCE)
        assert greedy == also


@pytest.mark.parametrize("border", [" ", "\n", "\n\n", ".\n ", "\t"])
def test_log_likelihoods_after_a_context_are_equal(ours, peer, border):
    contexts, texts = made_up_texts(12, 12), made_up_texts(12, 3, seed=1)
    before = [
        (context + border, text) for context, text in zip(contexts, texts, strict=True)
    ]
    behind = [(context.rstrip(), " " + text) for context, text in before]
    assert_same_log_likelihoods(ours, peer, *before, *behind)


def test_log_likelihoods_without_a_context_are_equal(ours, peer):
    texts = [*made_up_texts(12, 8), "\nabcd the"]
    assert_same_log_likelihoods(ours, peer, *[("", text) for text in texts])


@pytest.mark.parametrize("length", [36, 37, 38, 60])
def test_texts_are_cut_at_the_same_token(ours, peer, length):
    assert_same_log_likelihoods(ours, peer, (" ".join(["a"] * length), " b c d"))


def test_rolling_log_likelihoods_are_equal(ours, peer):
    texts = [*made_up_texts(4, 10), *made_up_texts(4, 90), "a " * 40, "a " * 41]
    asked = requests(*[(text,) for text in texts])
    found = ours.loglikelihood_rolling(asked)
    expected = peer.loglikelihood_rolling(asked, disable_tqdm=True)
    assert found == pytest.approx(expected, abs=10 * TOLERANCE)


@pytest.mark.parametrize(
    "arguments",
    [
        {"until": ["."], "max_gen_toks": 12},
        {"until": ["e", "\n"], "max_gen_toks": 20},
        {"until": [], "max_gen_toks": 30},
        {"until": "a", "max_gen_toks": 5, "do_sample": False, "temperature": 0.7},
    ],
)
def test_greedy_continuations_are_equal(ours, peer, arguments):
    texts = made_up_texts(12, 20)
    asked = requests(*[(text, copy.deepcopy(arguments)) for text in texts])
    found = ours.generate_until(asked)
    expected = peer.generate_until(asked, disable_tqdm=True)
    pairs = zip(found, expected, strict=True)
    # Bytes that are no UTF-8 are decoded to other replacement signs.
    valid = [pair for pair in pairs if "\ufffd" not in pair[0] + pair[1]]
    assert len(valid) > 5 and len(set(valid)) > 2
    assert [one for one, _ in valid] == [other for _, other in valid]
