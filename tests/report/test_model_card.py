"""The card of a pre-trained model."""

import shutil

import pytest
from etils import epath
from made_up_runs import RECORDS, SESSION, write_pretrained

from gpt1_jax.report.model_card import model_card
from gpt1_jax.runs.pretrained import read_pretrained


@pytest.fixture
def make_card(tmp_path):
    """A function from values of the configuration to a card."""

    def make(records=RECORDS, sessions=(SESSION,), **overrides):
        shutil.rmtree(tmp_path / "small", ignore_errors=True)
        write_pretrained(tmp_path / "small", records, sessions, **overrides)
        return model_card(read_pretrained(epath.Path(tmp_path / "small")))

    return make


def test_a_card_says_what_the_model_is_and_read(make_card):
    text = make_card(data__source="text", data__train="books/*.txt")
    for part in (
        "Transformer decoder: 4 layers, 256 wide, 3,319,808 parameters; 4 heads, ",
        "MLP 1,024 wide; 128 tokens of context; matrix products in float32",
        "SentencePiece, 500 entries",
        r"text files: books/\*.txt; 4,096 training tokens",
        "8 updates of 8 sequences (1,024 tokens), seed 0, from random weights",
        "8 updates, 8,192 tokens; epochs: 2.00",
        "Adam as OpenAI released it, learning rate 0.001, schedule cosine after a "
        "warmup of 2 updates, weight decay 0.01, gradients clipped to norm 1",
        "8 x TPU v5e (Linux x86_64, 112 cores)",
        "gpt1_jax 1.0.0, jax 0.10.2",
        "5.125 nats per token, perplexity 168.17, 10.500 bits per word (update 8)",
        "```text\nit was a\nsecond line\n```",
    ):
        assert part in text


def test_what_is_not_recorded_is_said_to_be(make_card):
    card = make_card(saved=())
    assert card.startswith("**No checkpoint:** nothing is saved in this folder")
    assert "| **read by its records** | 8 updates, 8,192 tokens" in card
    text = make_card(records=RECORDS[:1], sessions=())
    assert "No checkpoint" not in text
    assert "epochs: not recorded" in text and "| **hardware** | not recorded |" in text
    assert "| **versions** | not recorded |" in text
    assert "| **validation** | not yet evaluated |" in text and "sample" not in text
    assert "documentation found on the machine |" in text
    # As `model.save` writes them: the configuration is that of another run.
    text = make_card(records=(), sessions=())
    assert "| **training** | not recorded: these parameters were saved from a" in text
    assert "updates" not in text and "documentation" not in text


def test_a_card_says_that_a_run_has_ended_early(make_card):
    """As the loss of update 8 is not lower than that of update 4."""
    records = [{"step": step, "valid_loss": 3.0} for step in (4, 8)]
    text = make_card(records=records, train__num_steps=50, eval__patience=1)
    assert "| **read** | ended early: 8 of 50 updates, " in text
    text = make_card(records=records, train__num_steps=50, eval__patience=2)
    assert "| **read** | **unfinished:** 8 of 50 updates, " in text
    limits = {"eval__max_batches": 3, "eval__batch_size": 32}
    text = make_card(records=records, **limits)
    assert "nats per token (update 8, the first 12,288 tokens at most)" in text


def test_a_card_names_the_origin_of_a_run(make_card):
    text = make_card(init_from="runs/*it*", step="newest")
    assert r"from the weights of runs/\*it\*, its newest step" in text
    own = {**SESSION, "first_step": 6}
    more = {"init_from": "a", "step": "1200", "init_optimizer": True}
    text = make_card(sessions=(own,), **more)
    assert "from the weights and optimizer of a, step 1,200" in text
    assert "8 updates, the first 6 of them in the run before" in text
    assert "epochs: 0.50" in text, "2 updates of 1,024 of 4,096 tokens"
