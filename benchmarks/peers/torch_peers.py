"""The models in PyTorch that ours are measured beside.

`GPT` is written for speed: one product for q, k and v, fused attention, logits only
where a token is predicted. `build_transformers` takes Hugging Face's model as it is.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.harness import Trainer
from benchmarks.paper_model import pretrain_config
from benchmarks.peers.finetune_step import NUM_SPECIALS, TASKS
from gpt1_jax.finetuning.steps import Batch


class Block(nn.Module):
    """n = LN(x + Attention(x)), LN(n + MLP(n)) on [N, T, D]."""

    def __init__(self, embed_dim: int, num_heads: int, mlp_dim: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.c_attn = nn.Linear(embed_dim, 3 * embed_dim)
        self.attn_proj = nn.Linear(embed_dim, embed_dim)
        self.ln_1 = nn.LayerNorm(embed_dim, eps=1e-5)
        self.c_fc = nn.Linear(embed_dim, mlp_dim)
        self.mlp_proj = nn.Linear(mlp_dim, embed_dim)
        self.ln_2 = nn.LayerNorm(embed_dim, eps=1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = F.dropout(self.attend(x), self.dropout, self.training)
        x = self.ln_1(x + attended)
        mlp = self.mlp_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return self.ln_2(x + F.dropout(mlp, self.dropout, self.training))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (  # [N, H, T, K]
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        rate = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(
            query, key, value, dropout_p=rate, is_causal=True
        )
        return self.attn_proj(attended.transpose(1, 2).flatten(2))


class GPT(nn.Module):
    """[N, T] ids to the loss, mean nats of the T - 1 tokens after the first."""

    def __init__(
        self,
        vocab_size: int,
        max_seq_len: int,
        num_layers: int,
        num_heads: int,
        embed_dim: int,
        mlp_dim: int,
        dropout: float,
    ):
        super().__init__()
        self.dropout = dropout
        self.wte = nn.Embedding(vocab_size, embed_dim)
        self.wpe = nn.Embedding(max_seq_len, embed_dim)
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, mlp_dim, dropout) for _ in range(num_layers)
        )
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(x[:, :-1], self.wte.weight)  # [N, T - 1, V]
        labels = tokens[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def make_gpt(flags: argparse.Namespace) -> GPT:
    """The `GPT` above with the configuration's sizes."""
    torch.manual_seed(0)
    sizes = pretrain_config(flags, "float32").model.with_vocab_size(flags.vocab_size)
    return GPT(
        flags.vocab_size,
        sizes.max_seq_len,
        sizes.num_layers,
        sizes.num_heads,
        sizes.embed_dim,
        sizes.mlp_dim,
        sizes.resid_dropout,  # the others have the same rate
    )


def compiled(model: nn.Module, mode: str | None) -> Callable[..., Any]:
    """The model under `torch.compile` in this mode; as it is without one."""
    return torch.compile(model, mode=mode) if mode else model


def build_sdpa(flags: argparse.Namespace, dtype: str, *, mode: str | None) -> Trainer:
    """Trains the `GPT` above."""
    model = make_gpt(flags)
    return train(model, compiled(model, mode), flags, dtype)


def build_flash(flags: argparse.Namespace, dtype: str, *, mode: str | None) -> Trainer:
    """Trains it without the attention of cuDNN, which PyTorch may prefer."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    return build_sdpa(flags, dtype, mode=mode)


def build_transformers(
    flags: argparse.Namespace, dtype: str, *, mode: str | None
) -> Trainer:
    """`OpenAIGPTLMHeadModel` with the same sizes; its MLP is 4 D wide."""
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

    torch.manual_seed(0)
    sizes = pretrain_config(flags, dtype).model.with_vocab_size(flags.vocab_size)
    config = OpenAIGPTConfig(
        vocab_size=flags.vocab_size,
        n_positions=sizes.max_seq_len,
        n_layer=sizes.num_layers,
        n_head=sizes.num_heads,
        n_embd=sizes.embed_dim,
    )
    model = OpenAIGPTLMHeadModel(config)
    call = compiled(model, mode)
    return train(
        model, lambda tokens: call(input_ids=tokens, labels=tokens).loss, flags, dtype
    )


def train(
    model: nn.Module,
    loss_fn: Callable[[Any], torch.Tensor],
    flags: argparse.Namespace,
    dtype: str,
    put: Callable[[Any], Any] | None = None,
) -> Trainer:
    """Training steps of `model`; `loss_fn` calls it on what `put` makes of a batch.

    By default that is [N, T] ids.
    """
    kind = device_kind()
    model.to(kind).train()
    settings = pretrain_config(flags, dtype).optimizer
    optimizer = make_optimizer(list(model.parameters()), settings)

    def update(batch: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = loss_fn(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        return loss.detach()

    return Trainer(
        put=put or (lambda tokens: torch.from_numpy(tokens).long().to(kind)),
        step=update,
        wait=synchronize,
        device=device_name(),
        peak_bytes=peak_bytes,
    )


def device_kind() -> str:
    """The device: "cuda", with float32 products in TF32 as in JAX, or "cpu"."""
    if not torch.cuda.is_available():
        return "cpu"
    torch.set_float32_matmul_precision("high")
    return "cuda"


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def synchronize() -> None:
    """Waits until a GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_bytes() -> int | None:
    """Most GPU memory in use so far."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def make_optimizer(
    parameters: Sequence[torch.Tensor], settings: Any
) -> torch.optim.Optimizer:
    """Fused AdamW with the rates of an `OptimizerConfig`; vectors do not decay."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.b1, settings.b2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )


class LSTM(nn.Module):
    """[N, T] ids to the loss, mean nats of the T - 1 tokens after the first."""

    def __init__(self, vocab_size: int, embed_dim: int, num_units: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.wte = nn.Embedding(vocab_size, embed_dim)
        self.lstm = nn.LSTM(embed_dim, num_units, batch_first=True)
        self.projection = nn.Linear(num_units, embed_dim)
        for parameter in self.parameters():
            if parameter.ndim > 1:  # [out, in], or the embedding
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            else:
                nn.init.zeros_(parameter)
        nn.init.normal_(self.wte.weight, std=0.02)
        with torch.no_grad():  # gates i, f, g, o
            self.lstm.bias_ih_l0[num_units : 2 * num_units].fill_(1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.wte(tokens), self.dropout, self.training)
        outputs, _ = self.lstm(x * self.wte.embedding_dim**0.5)
        hidden = self.projection(F.dropout(outputs, self.dropout, self.training))
        logits = F.linear(hidden[:, :-1], self.wte.weight)  # [N, T - 1, V]
        labels = tokens[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def build_lstm(flags: argparse.Namespace, dtype: str, *, mode: str | None) -> Trainer:
    """Trains the `LSTM` above."""
    if dtype == "bfloat16" and "AVX512" not in torch.backends.cpu.get_cpu_capability():
        torch.backends.mkldnn.set_flags(False)  # oneDNN has no such LSTM for this CPU
    torch.manual_seed(0)
    config = pretrain_config(flags, dtype, "lstm")
    sizes = config.model.with_vocab_size(flags.vocab_size)
    model = LSTM(
        flags.vocab_size, sizes.embed_dim, sizes.lstm_units, sizes.resid_dropout
    )
    return train(model, compiled(model, mode), flags, dtype)


def build_classifier(
    flags: argparse.Namespace,
    dtype: str,
    *,
    aux_lm_weight: float,
    mode: str | None = None,
) -> Trainer:
    """`OpenAIGPTForSequenceClassification` with the paper's sizes.

    The auxiliary language model (eq. 5) shares its states and token embedding, as in
    `OpenAIGPTDoubleHeadsModel`, but has no logits for padding.
    """
    from transformers import OpenAIGPTConfig, OpenAIGPTForSequenceClassification

    torch.manual_seed(0)
    task, kind = TASKS[flags.task], device_kind()
    sizes = pretrain_config(flags, dtype).model.with_vocab_size(flags.vocab_size)
    config = OpenAIGPTConfig(
        vocab_size=flags.vocab_size + NUM_SPECIALS,
        n_positions=sizes.max_seq_len,
        n_layer=sizes.num_layers,
        n_head=sizes.num_heads,
        n_embd=sizes.embed_dim,
        num_labels=1 if task.num_seqs > 1 else task.num_outputs,
        pad_token_id=0,
    )
    model = OpenAIGPTForSequenceClassification(config)
    call = compiled(model, mode)

    def put(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens = batch.tokens.reshape(-1, batch.tokens.shape[-1])
        labels = batch.targets.argmax(axis=1)
        predicted = np.arange(1, tokens.shape[-1]) < batch.lengths.reshape(-1, 1)
        return (
            torch.from_numpy(tokens).long().to(kind),
            torch.from_numpy(labels).to(kind),
            torch.from_numpy(predicted).to(kind),
        )

    def loss(batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        tokens, labels, predicted = batch
        output = call(input_ids=tokens, output_hidden_states=aux_lm_weight > 0)
        logits = output.logits.reshape(len(labels), -1)
        clf_loss = F.cross_entropy(logits.float(), labels)
        if not aux_lm_weight:
            return clf_loss
        states = output.hidden_states[-1][:, :-1][predicted]
        scores = F.linear(states, model.transformer.tokens_embed.weight)
        lm_loss = F.cross_entropy(scores.float(), tokens[:, 1:][predicted])
        return clf_loss + aux_lm_weight * lm_loss

    return train(model, loss, flags, dtype, put)


def build_generator(
    flags: argparse.Namespace, dtype: str, *, architecture: str
) -> Trainer:
    """GPT-1, or a GPT-2 as deep and wide, of random weights."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        OpenAIGPTConfig,
        OpenAIGPTLMHeadModel,
    )

    torch.manual_seed(0)
    sizes = pretrain_config(flags, dtype).model.with_vocab_size(flags.vocab_size)
    shared = dict(
        n_layer=sizes.num_layers, n_head=sizes.num_heads, n_embd=sizes.embed_dim
    )
    if architecture == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**shared))
    else:
        shared |= dict(vocab_size=flags.vocab_size, n_positions=sizes.max_seq_len)
        model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**shared))
    model = model.to(device_kind(), getattr(torch, dtype)).eval()

    def step(batch: tuple[torch.Tensor, int]) -> float:
        prompts, number = batch
        tokens = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            min_new_tokens=number,
            max_new_tokens=number,
            pad_token_id=0,
        )
        return float(tokens[-1, -1])

    def put(batch: tuple[np.ndarray, int]) -> tuple[torch.Tensor, int]:
        prompts, number = batch
        return torch.from_numpy(prompts).long().to(device_kind()), number

    return Trainer(put, step, synchronize, device_name(), peak_bytes)
