"""Fine-tuning with transformers, as its users do."""

import argparse

import torch
from finetune_step import NUM_SPECIALS, TASKS
from harness import Trainer
from recipe import pretrain_config
from torch_peers import (
    device_kind,
    device_name,
    make_optimizer,
    peak_bytes,
    synchronize,
)

from gpt1_jax.tasks.batches import Batch


def build_transformers(flags: argparse.Namespace, dtype: str) -> Trainer:
    """`OpenAIGPTForSequenceClassification` with the paper's sizes."""
    from transformers import OpenAIGPTConfig, OpenAIGPTForSequenceClassification

    torch.manual_seed(0)
    task, kind = TASKS[flags.task], device_kind()
    settings = pretrain_config(flags, dtype)
    sizes = settings.model_config(flags.vocab_size)
    config = OpenAIGPTConfig(
        vocab_size=flags.vocab_size + NUM_SPECIALS,
        n_positions=sizes.max_seq_len,
        n_layer=sizes.num_layers,
        n_head=sizes.num_heads,
        n_embd=sizes.embed_dim,
        num_labels=1 if task.num_seqs > 1 else task.num_outputs,
        pad_token_id=0,
    )
    model = OpenAIGPTForSequenceClassification(config).to(kind).train()
    optimizer = make_optimizer(list(model.parameters()), settings.optimizer)

    def put(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = batch.tokens.reshape(-1, batch.tokens.shape[-1])
        labels = batch.targets.argmax(axis=1)
        return (
            torch.from_numpy(tokens).long().to(kind),
            torch.from_numpy(labels).to(kind),
        )

    def update(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        tokens, labels = batch
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(input_ids=tokens).logits.reshape(len(labels), -1)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        clip = settings.optimizer.clip_norm
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss.detach()

    return Trainer(
        put=put,
        step=update,
        wait=synchronize,
        device=device_name(),
        peak_bytes=peak_bytes,
    )
