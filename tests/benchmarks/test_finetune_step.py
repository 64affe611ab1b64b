"""The fine-tuning benchmark draws what it says, and its peer trains."""

import numpy as np
import pytest

from benchmarks.peers import finetune_step

TINY = ("--layers=1", "--embed_dim=64", "--vocab_size=97", "--batch=4")


@pytest.mark.parametrize("task", ["sst2", "race"])
def test_examples_end_with_the_extract_token_and_repeat(task):
    flags = finetune_step.parse([*TINY, f"--task={task}", "--distinct=2"])
    batches = finetune_step.draw_examples(flags)
    first, second, again = next(batches), next(batches), next(batches)
    assert first is again and first.tokens.shape != second.tokens.shape
    num_seqs = {"sst2": 1, "race": 4}[task]
    assert first.tokens.shape[:2] == (4, num_seqs)
    ends = np.take_along_axis(first.tokens, first.lengths[..., None] - 1, axis=2)
    assert (ends == 99).all() and (first.tokens == 99).sum() == 4 * num_seqs
    assert first.lengths.max() <= finetune_step.TASKS[task].deciles[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "dtype", "aux_lm_weight"),
    [("sst2", "bfloat16", 0.5), ("race", "float32", 0.0)],
)
def test_the_peer_learns_its_batch(task, dtype, aux_lm_weight):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.peers import torch_peers

    flags = finetune_step.parse([*TINY, f"--task={task}"])
    trainer = torch_peers.build_classifier(flags, dtype, aux_lm_weight=aux_lm_weight)
    batch = trainer.put(next(finetune_step.draw_examples(flags)))
    losses = [float(trainer.step(batch)) for _ in range(50)]
    vocab_size = flags.vocab_size + finetune_step.NUM_SPECIALS
    lm_loss = aux_lm_weight * np.log(vocab_size)
    assert abs(losses[0] - lm_loss - np.log({"sst2": 2, "race": 4}[task])) < 0.3
    fall = np.mean(losses[:5]) - np.mean(losses[-5:])
    assert fall > {"sst2": 0.1, "race": 0.01}[task]  # of long texts it learns slowly
