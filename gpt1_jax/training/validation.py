"""Validation over the whole held-out split, and a sample of generated text."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import EvalConfig, ModelConfig
from gpt1_jax.data import windows
from gpt1_jax.data.shards import Corpus, open_split
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.inference.generate import make_sampler
from gpt1_jax.model import transformer
from gpt1_jax.parallel import mesh as parallel
from gpt1_jax.training.loop import StopSignal
from gpt1_jax.training.losses import next_token_nll
from gpt1_jax.training.state import TrainState


def eval_step(
    model: ModelConfig, params: Any, tokens: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Summed loss of a validation batch, without dropout.

    Args:
      model: sizes.
      params: of the model.
      tokens: [B, T] int32.
      lengths: [B] int32, real tokens in each sequence; the rest does not count.

    Returns:
      The sum of nats over predicted tokens, and the number of these.
    """
    output = transformer.apply(model, params, tokens)
    nll = next_token_nll(*output, tokens, jnp.dtype(model.dtype))
    counted = jnp.arange(tokens.shape[1]) < lengths[:, None] - 1  # [B, T]
    return jnp.where(counted, nll, 0.0).sum(), counted.sum()


@dataclasses.dataclass(frozen=True)
class Validation:
    """Validation over the whole held-out split, and a sample of generated text."""

    model: ModelConfig
    config: EvalConfig
    corpus: Corpus
    tokenizer: Tokenizer
    mesh: jax.sharding.Mesh
    seed: int
    say: Callable[[str], None]

    def __post_init__(self):
        if len(self._prompt()) >= self.model.max_seq_len:
            raise ValueError(
                f"config.eval.sample_prompt takes {len(self._prompt())} tokens; with "
                f"config.model.max_seq_len={self.model.max_seq_len} there is no room "
                "to continue it. Shorten the prompt."
            )
        every = parallel.replicated(self.mesh)
        split = parallel.batch_sharding(self.mesh)
        step = jax.jit(
            lambda params, tokens, lengths: eval_step(
                self.model, params, tokens, lengths
            ),
            in_shardings=(every, split, split),
            out_shardings=every,
        )
        sampler = make_sampler(
            self.model, self.config.sample_temperature, self.config.sample_top_k
        )
        object.__setattr__(self, "_step", step)
        object.__setattr__(self, "_sample", sampler)

    def __call__(self, state: TrainState, stop: StopSignal) -> Mapping[str, Any] | None:
        """Metrics of a state; None if a stop signal came in between.

        `valid_loss` is in nats per token. Bits and perplexity per word, the measure
        that compares across tokenizers, spread the loss of all tokens over the words
        of the text before tokenisation.
        """
        loss = self.validation_loss(state.params, stop)
        if loss is None:
            return None
        tokens_per_word = self.corpus.valid.tokens / max(1, self.corpus.valid.words)
        metrics = {
            "valid_loss": loss,
            "valid_perplexity": math.exp(min(loss, 700.0)),
            "valid_nats_per_word": loss * tokens_per_word,
            "valid_bits_per_word": loss * tokens_per_word / math.log(2),
        }
        self.say(
            f"step {int(state.step):>6}  validation loss {loss:.4f}  perplexity "
            f"{metrics['valid_perplexity']:.2f}  bits per word "
            f"{metrics['valid_bits_per_word']:.3f}"
        )
        if self.config.sample_tokens:
            text = self.sample(state)
            metrics["sample"] = text
            self.say("  | " + text.replace("\n", "\n  | "))
        return metrics

    def validation_loss(self, params: Any, stop: StopSignal) -> float | None:
        """Mean nats per token over the whole validation split."""
        batches = windows.ValidWindows(
            open_split(self.corpus, "valid"),
            self.model.max_seq_len,
            self.config.batch_size,
            parallel.host_rows(self.config.batch_size),
        )
        total, count = 0.0, 0
        for index in range(len(batches)):
            if stop.received:
                return None
            batch = [parallel.to_global_batch(x, self.mesh) for x in batches[index]]
            nll, predicted = jax.device_get(self._step(params, *batch))
            total, count = total + float(nll), count + int(predicted)
        return total / count

    def sample(self, state: TrainState) -> str:
        """A continuation of the prompt; the same for the same state and seed."""
        prompt = self._prompt()
        length = min(len(prompt) + self.config.sample_tokens, self.model.max_seq_len)
        tokens = np.zeros((1, length), np.int32)
        tokens[0, : len(prompt)] = prompt
        key = jax.random.fold_in(jax.random.key(self.seed), 2**32 - 1)
        sampled = self._sample(state.params, tokens, len(prompt), key)
        return self.tokenizer.decode(np.asarray(sampled)[0].tolist()).strip("\n")

    def _prompt(self) -> list[int]:
        """The prompt's ids after a newline: the model has no start token."""
        return [
            self.tokenizer.newline_id,
            *self.tokenizer.encode(self.config.sample_prompt),
        ]
