"""Validation over the whole held-out split, and a sample of generated text."""

import functools
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
from gpt1_jax.inference.sampling import make_sampler
from gpt1_jax.model import language_model
from gpt1_jax.parallel import processes
from gpt1_jax.parallel.mesh import batch_sharding, replicated, to_global_batch
from gpt1_jax.training.loop import StopSignal
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
    output = language_model.apply(model, params, tokens)
    nll = language_model.next_token_nll(model, output, tokens)
    counted = jnp.arange(tokens.shape[1]) < lengths[:, None] - 1  # [B, T]
    return jnp.where(counted, nll, 0.0).sum(), counted.sum()


class Validation:
    """Validates over the whole held-out split and samples text.

    Args:
      model: sizes.
      config: batch size and sampling.
      corpus: its validation split is used.
      tokenizer: of the corpus.
      mesh: of the run.
      seed: of the samples.
      say: shows text to the user.

    Raises:
      ValueError: if the prompt leaves no room for a sample.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: EvalConfig,
        corpus: Corpus,
        tokenizer: Tokenizer,
        mesh: jax.sharding.Mesh,
        seed: int,
        say: Callable[[str], None],
    ):
        self._model, self._config, self._corpus = model, config, corpus
        self._tokenizer, self._mesh, self._seed = tokenizer, mesh, seed
        self._say = say
        prompt_len = len(self._prompt())
        if prompt_len >= model.max_seq_len:
            raise ValueError(
                f"config.eval.sample_prompt takes {prompt_len} tokens; with "
                f"config.model.max_seq_len={model.max_seq_len} there is no room to "
                "continue it. Shorten the prompt."
            )
        everywhere = replicated(mesh)
        split = batch_sharding(mesh)
        self._step = jax.jit(
            functools.partial(eval_step, model),
            in_shardings=(everywhere, split, split),
            out_shardings=everywhere,
        )
        self._sample = make_sampler(
            model, config.sample_temperature, config.sample_top_k
        )

    def __call__(self, state: TrainState, stop: StopSignal) -> Mapping[str, Any] | None:
        """Metrics of a state; None if a stop signal came in between.

        `valid_loss` is in nats per token, `valid_perplexity` its exponential. Nats and
        bits per word, which compare across tokenizers, spread the loss of all tokens
        over the words of the text before tokenisation.
        """
        loss = self.validation_loss(state.params, stop)
        if loss is None:
            return None
        tokens_per_word = self._corpus.valid.tokens / max(1, self._corpus.valid.words)
        metrics: dict[str, Any] = {
            "valid_loss": loss,
            "valid_perplexity": math.exp(min(loss, 700.0)),
            "valid_nats_per_word": loss * tokens_per_word,
            "valid_bits_per_word": loss * tokens_per_word / math.log(2),
        }
        self._say(
            f"step {int(state.step):>6}  validation loss {loss:.4f}  perplexity "
            f"{metrics['valid_perplexity']:.2f}  bits per word "
            f"{metrics['valid_bits_per_word']:.3f}"
        )
        if self._config.sample_tokens:
            text = self.sample(state)
            metrics["sample"] = text
            self._say("  | " + text.replace("\n", "\n  | "))
        return metrics

    def validation_loss(self, params: Any, stop: StopSignal) -> float | None:
        """Mean nats per token over the whole validation split."""
        batches = windows.ValidWindows(
            open_split(self._corpus, "valid"),
            self._model.max_seq_len,
            self._config.batch_size,
            processes.host_rows(self._config.batch_size),
        )
        sums = np.zeros(2)  # nats, tokens
        pending = []  # of the batch before, so that the devices need not wait
        for index in range(len(batches)):
            if stop.received:
                return None
            batch = [to_global_batch(x, self._mesh) for x in batches[index]]
            pending.append(self._step(params, *batch))
            if len(pending) > 1:
                sums += jax.device_get(pending.pop(0))
        sums += jax.device_get(pending.pop())
        return float(sums[0] / sums[1])

    def sample(self, state: TrainState) -> str:
        """A continuation of the prompt; the same for the same state and seed."""
        prompt = self._prompt()
        length = min(len(prompt) + self._config.sample_tokens, self._model.max_seq_len)
        tokens = np.zeros((1, length), np.int32)
        tokens[0, : len(prompt)] = prompt
        key = jax.random.fold_in(jax.random.key(self._seed), 2**32 - 1)
        sampled = self._sample(state.params, tokens, len(prompt), key)
        return self._tokenizer.decode(np.asarray(sampled)[0].tolist()).strip("\n")

    def _prompt(self) -> list[int]:
        """The prompt's ids after a newline: the model has no start token."""
        return [
            self._tokenizer.newline_id,
            *self._tokenizer.encode(self._config.sample_prompt),
        ]
