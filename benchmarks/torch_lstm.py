"""The paper's LSTM in PyTorch: the peer that `train_step.py` measures."""

import argparse

import torch
import torch.nn.functional as F
from harness import Trainer
from recipe import pretrain_config
from torch import nn
from torch_peers import train


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


def build(flags: argparse.Namespace, dtype: str, *, compiled: bool) -> Trainer:
    """Trains the model above."""
    torch.manual_seed(0)
    config = pretrain_config(flags, dtype, "lstm")
    sizes = config.model_config(flags.vocab_size)
    model = LSTM(
        flags.vocab_size, sizes.embed_dim, sizes.lstm_units, sizes.resid_dropout
    )
    call = torch.compile(model) if compiled else model
    return train(model, call, flags, dtype)
