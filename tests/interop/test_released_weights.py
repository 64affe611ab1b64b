"""OpenAI's released weights, where GPT1_OPENAI_MODEL names their folder."""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from other_formats import assert_same_params
from tiny_models import PAPER
from tiny_run import load_config

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.interop import names, openai
from gpt1_jax.interop.names import Sizes
from gpt1_jax.jobs import convert

pytestmark = pytest.mark.skipif(
    not os.environ.get("GPT1_OPENAI_MODEL"), reason="GPT1_OPENAI_MODEL names no folder"
)

# The continuation of "the president is" that transformers' tests hold for its GPT-1.
PROMPT = [481, 4735, 544]
GREEDY = [246, 963, 870, 762, 239, 244, 40477, 244, 249, 719, 881, 487, 544]
GREEDY += [240, 244, 603, 481]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The weights as a run folder."""
    folder = str(tmp_path_factory.mktemp("released") / "run")
    source = os.environ["GPT1_OPENAI_MODEL"]
    config = load_config("run", file="convert", init_from=source)
    convert.run(config_lib.load(config.to_dict()), folder)
    return gpt1_jax.load(folder)


def test_they_come_back_bit_for_bit(tmp_path):
    sizes, params = openai.read_shards(epath.Path(os.environ["GPT1_OPENAI_MODEL"]))
    assert sizes == Sizes(**PAPER)
    assert all(np.isfinite(a).all() for a in names.flatten_params(params).values())
    openai.write_shards(epath.Path(tmp_path), sizes, params)
    assert_same_params(openai.read_shards(epath.Path(tmp_path))[1], params)


def test_greedy_text_is_the_known_one(model):
    prompt = model.tokenizer.decode(PROMPT)
    assert model.encode(prompt) == PROMPT
    text = model.generate(prompt, max_new_tokens=len(GREEDY))
    assert text == model.tokenizer.decode(GREEDY)


@pytest.mark.skipif(
    not os.environ.get("GPT1_TASK_DATA"),
    reason="GPT1_TASK_DATA names no folder of tasks as JSON lines",
)
def test_the_right_ending_of_a_story_has_the_lower_perplexity(model):
    """Without fine-tuning (sec. 5); by chance, half of 400 stories, give or take 10."""
    path = Path(os.environ["GPT1_TASK_DATA"]) / "story_cloze" / "dev.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()[:400]
    stories = [json.loads(line) for line in lines]
    right, wrong = [], []
    for story in stories:
        losses = [mean_loss(model, story["context"], e) for e in story["endings"]]
        right.append(losses.pop(story["label"]))
        wrong += losses
    perplexities = [float(np.exp(np.mean(losses))) for losses in (right, wrong)]
    print("perplexity of right and wrong endings:", perplexities)
    assert perplexities[0] < perplexities[1]
    assert np.mean(np.less(right, wrong)) > 0.55


def mean_loss(model, context, ending):
    """Nats for each token of an ending."""
    start, ids = len(model.encode(context)), model.encode(f"{context} {ending}")
    scores = model.logits(f"{context} {ending}")[start - 1 : -1]
    log_probs = jax.nn.log_softmax(scores)
    return -float(np.mean(log_probs[np.arange(len(scores)), ids[start:]]))
