"""Predictions of a fine-tuned model over whole splits, and their scores."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from scipy import special

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.tokenizers import special_tokens
from gpt1_jax.inference.scoring import power_of_two
from gpt1_jax.model import costs, heads
from gpt1_jax.model.heads import Head
from gpt1_jax.parallel.devices import fetched_late, require_memory
from gpt1_jax.parallel.mesh import (
    data_parallelism,
    replicated,
    rows_by_device,
    tensor_parallelism,
    to_global_batch,
)
from gpt1_jax.parallel.processes import host_rows
from gpt1_jax.tasks import metrics as task_metrics
from gpt1_jax.tasks.batches import BatchRows, EncodedExamples, EvalBatches, Padding
from gpt1_jax.tasks.examples import Split
from gpt1_jax.tasks.task import Task
from gpt1_jax.tasks.transforms import num_outputs, read_outputs


def make_head(task: Task, dropout: float, vocab_size: int) -> Head:
    """The head that a task needs.

    Args:
      task: the task, with its targets and transform.
      dropout: rate on the state at the extract token.
      vocab_size: entries of the tokenizer; the special tokens follow them.
    """
    extract_token = special_tokens(vocab_size).extract
    per_choice = task.transform == "multiple_choice"
    return Head(num_outputs(task), per_choice, dropout, extract_token)


class Predictor:
    """Applies a fine-tuned model to encoded examples.

    Args:
      model: configuration of the language model.
      head: the task's head.
      mesh: the device mesh.
      batch_size: examples over all devices, a multiple of their number. Of fewer
        examples, batches are smaller.
      padding: the lengths that batches are padded to.
    """

    def __init__(
        self,
        model: ModelConfig,
        head: Head,
        mesh: jax.sharding.Mesh,
        batch_size: int,
        padding: Padding,
    ):
        self._model, self._mesh, self._padding = model, mesh, padding
        self._batch_size = batch_size
        self._num_outputs = head.num_outputs

        def predict_step(params: Any, tokens: jax.Array) -> jax.Array:
            return heads.apply(model, head, params, tokens)[0]

        self._step = jax.jit(
            rows_by_device(mesh, predict_step), out_shardings=replicated(mesh)
        )

    def check_memory(self, key: str, examples: EncodedExamples) -> None:
        """Refuses a batch that no device of this machine can hold.

        Args:
          key: the configuration key of the batch size.
          examples: those to predict.

        Raises:
          ValueError: naming the key, what it needs at least and the memory there is.
        """
        rows = self._num_rows(len(examples)) // data_parallelism(self._mesh)
        length = self._padding.padded(int(examples.lengths.max()))
        read = costs.forward_bytes(self._model) // tensor_parallelism(self._mesh)
        require_memory(
            f"{key}={self._batch_size}",
            rows * examples.num_seqs * length * read,
            "Lower it.",
        )

    def _num_rows(self, num_examples: int) -> int:
        """Rows of a batch: few numbers, so few programs."""
        unit = data_parallelism(self._mesh)
        enough = power_of_two(-(-num_examples // unit)) * unit
        return min(self._batch_size, enough)

    def __call__(self, params: Any, examples: EncodedExamples) -> np.ndarray:
        """Logits [examples, K] float32."""
        logits = np.zeros((len(examples), self._num_outputs), np.float32)
        for rows, outputs in self.parts(params, examples):
            logits[rows] = outputs
        return logits

    def parts(
        self, params: Any, examples: EncodedExamples
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Indices and logits of a few examples at a time, in no particular order."""
        for rows, outputs in fetched_late(self._batches(params, examples)):
            yield rows, outputs[: len(rows)]

    def _batches(
        self, params: Any, examples: EncodedExamples
    ) -> Iterator[tuple[np.ndarray, jax.Array]]:
        """Indices of examples, and logits of these and of the batch's filler rows."""
        size = self._num_rows(len(examples))
        own = BatchRows(size, host_rows(size))
        batches = EvalBatches(examples, own, self._padding)
        for index in range(len(batches)):
            rows, batch = batches[index]
            yield rows, self._step(params, to_global_batch(batch.tokens, self._mesh))


def loss(logits: np.ndarray, targets: np.ndarray) -> float:
    """`gpt1_jax.ops.losses.classification_loss` on the host, in float64."""
    logits = logits.astype(np.float64)
    if logits.shape[1] == 1:
        return float(np.square(logits - targets).mean())
    log_probs = special.log_softmax(logits, axis=1)
    return float(-(targets * log_probs).sum(axis=1).mean())


def score(task: Task, split: Split, predictions: np.ndarray) -> dict[str, Any]:
    """The metrics of a split's predictions; see `gpt1_jax.tasks.metrics.evaluate`."""
    labels = [example.label for example in split.examples]
    subsets = [example.subset for example in split.examples]
    return task_metrics.evaluate(task, predictions, labels, subsets)


class DevScores:
    """Scores parameters on the development split, in the form the training loop calls.

    Args:
      task: the task, which names the metrics.
      split: the split to score.
      predictor: applies the model.
      say: shows a line of scores.
    """

    def __init__(
        self,
        task: Task,
        split: Split,
        predictor: Predictor,
        say: Callable[[str], None],
    ):
        self._task, self._split = task, split
        self._predict, self._say = predictor, say

    def __call__(
        self, params: Any, step: int, stopped: Callable[[], bool]
    ) -> Mapping[str, Any] | None:
        """`valid_loss`, per example, and `valid_METRIC` for each of the task's metrics.

        The loss is in nats, or a squared error for a regression. None if `stopped()`
        became true before the end.
        """
        examples = self._split.encoded
        logits = np.zeros(examples.targets.shape, np.float32)
        for rows, outputs in self._predict.parts(params, examples):
            if stopped():
                return None
            logits[rows] = outputs
        predictions, _ = read_outputs(self._task, logits)
        scores = score(self._task, self._split, predictions)
        values = {f"valid_{name}": scores[name] for name in self._task.metrics}
        dev_loss = loss(logits, examples.targets)
        shown = "  ".join(f"{name} {scores[name]:.4f}" for name in self._task.metrics)
        self._say(f"step {step:>6}  dev {shown}  loss {dev_loss:.4f}")
        return {"valid_loss": dev_loss, **values}
