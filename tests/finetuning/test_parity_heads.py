"""Heads and their losses against Hugging Face's PyTorch models.

OpenAIGPTDoubleHeadsModel is an independent port of the released code's multiple
choice, but for its language modelling loss: it averages over all tokens of the batch,
where the released code averages each sequence first.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up_batches import made_up_batch
from torch_models import (
    TOLERANCE,
    largest_difference,
    paths_and_leaves,
    perturbed_params,
    torch,
    torch_names,
    transformers,
)

from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head, classification_loss
from gpt1_jax.finetuning.steps import sequence_mean_weights
from gpt1_jax.model import language_model

NUM_CHOICES, SEQ_LEN = 3, 40
SPECIALS = 3
IGNORED = -100  # a label that is none, in PyTorch


@pytest.fixture(scope="module")
def config(tiny_model_config):
    return tiny_model_config(
        vocab_size=208 + SPECIALS,
        num_layers=2,
        num_heads=4,
        embed_dim=64,
        mlp_dim=256,
        max_seq_len=64,
    )


def our_params(config):
    """The decoder's, perturbed as in `test_parity`, and a head that is not small."""
    rng = np.random.default_rng(7)
    kernel = 0.3 * rng.normal(size=(config.embed_dim, 1)).astype(np.float32)
    head = {"kernel": kernel, "bias": np.full(1, 0.5, np.float32)}
    return {"transformer": perturbed_params(config, kernel_scale=5.0), "head": head}


@pytest.fixture(scope="module")
def choices(config):
    """(batch, our logits and decoder's output, their outputs)"""
    params = our_params(config)
    their_config = transformers.OpenAIGPTConfig(
        vocab_size=config.vocab_size - SPECIALS,  # as it was before special tokens
        n_positions=config.max_seq_len,
        n_embd=config.embed_dim,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        attn_implementation="eager",
    )
    model = transformers.OpenAIGPTDoubleHeadsModel(their_config).eval()
    model.resize_token_embeddings(config.vocab_size, mean_resizing=False)
    summary = "multiple_choice_head.summary"
    head_names = {"kernel": f"{summary}.weight", "bias": f"{summary}.bias"}
    theirs, names = dict(model.named_parameters()), torch_names(config.num_layers)
    assert {*names.values(), *head_names.values()} == set(theirs)
    with torch.no_grad():
        for path, leaf in paths_and_leaves(params["transformer"]):
            theirs[names[path]].copy_(torch.tensor(np.asarray(leaf)))
        for ours, name in head_names.items():
            theirs[name].copy_(torch.tensor(params["head"][ours].T))
    assert model.lm_head.weight is model.transformer.tokens_embed.weight
    batch = made_up_batch(config, (4, NUM_CHOICES, SEQ_LEN), NUM_CHOICES)
    padding = np.arange(SEQ_LEN) >= batch.lengths[..., None]
    with torch.no_grad():
        outputs = model(
            torch.tensor(batch.tokens).long(),
            mc_token_ids=torch.tensor(batch.lengths - 1).long(),
            mc_labels=torch.tensor(batch.targets.argmax(1)),
            labels=torch.tensor(np.where(padding, IGNORED, batch.tokens)).long(),
            output_hidden_states=True,
        )
    head = Head(NUM_CHOICES, True, 0.1, extract_token=config.vocab_size - 1)
    apply = jax.jit(heads.apply, static_argnums=(0, 1))
    return batch, apply(config, head, params, jnp.asarray(batch.tokens)), outputs


def test_choices_and_hidden_states_equal_the_torch_model(choices):
    _, (logits, output), theirs = choices
    assert largest_difference(logits, theirs.mc_logits.numpy()) < TOLERANCE
    assert float(logits.std()) > 0.3
    hidden = theirs.hidden_states[-1].reshape(output.hidden.shape).numpy()
    assert largest_difference(output.hidden, hidden) < TOLERANCE


def test_loss_of_the_choices_equals_the_torch_model(choices):
    batch, (logits, _), theirs = choices
    ours = classification_loss(logits, batch.targets)
    assert float(ours) == pytest.approx(theirs.mc_loss.item(), abs=TOLERANCE)


def test_language_modelling_loss_differs_from_the_torch_model_by_its_mean(
    config, choices
):
    """Either rule applied to the other's outputs gives the other's number.

    Theirs: the mean over all tokens of the batch. Ours, the released code's: the mean
    over each sequence, then over sequences. The lengths differ, so the means do.
    """
    batch, (_, output), theirs = choices
    tokens, lengths = batch.tokens.reshape(-1, SEQ_LEN), batch.lengths.ravel()
    weigh = jax.jit(sequence_mean_weights, static_argnums=1)
    per_sequence = np.asarray(weigh(lengths, SEQ_LEN))
    predicted = np.arange(SEQ_LEN) < lengths[:, None] - 1
    per_token = (predicted / predicted.sum()).astype(np.float32)

    @jax.jit
    def our_loss(weights):
        return language_model.next_token_loss(config, output, tokens, weights)

    their_nll = torch.nn.functional.cross_entropy(
        theirs.logits.reshape(*tokens.shape, -1)[:, :-1].transpose(1, 2),
        torch.tensor(tokens)[:, 1:].long(),
        reduction="none",
    ).numpy()
    rows = zip(their_nll, lengths, strict=True)
    their_mean = np.mean([nll[: length - 1].mean() for nll, length in rows])
    their_loss = theirs.loss.item()
    assert float(our_loss(per_token)) == pytest.approx(their_loss, abs=TOLERANCE)
    assert float(our_loss(per_sequence)) == pytest.approx(their_mean, abs=TOLERANCE)
    assert len(set(lengths)) > 3
    assert abs(our_loss(per_sequence) - their_loss) > 100 * TOLERANCE
