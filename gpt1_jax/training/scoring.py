"""Predictions of a fine-tuned model over whole splits, and their scores."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from scipy import special

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.batching import EncodedExamples, EvalBatches
from gpt1_jax.model import heads
from gpt1_jax.model.heads import Head
from gpt1_jax.parallel import processes
from gpt1_jax.parallel.mesh import batch_sharding, replicated, to_global_batch
from gpt1_jax.tasks import metrics as task_metrics
from gpt1_jax.tasks.loading import Split
from gpt1_jax.tasks.task import Task
from gpt1_jax.tasks.transforms import read_outputs
from gpt1_jax.training.loop import StopSignal
from gpt1_jax.training.state import TrainState


class Predictor:
    """Applies a fine-tuned model to encoded examples.

    Args:
      model: of the decoder.
      head: of the task.
      mesh: of the run.
      batch_size: examples over all devices, a multiple of their number.
      buckets: lengths to pad to.
      max_seq_len: the longest sequence.
    """

    def __init__(
        self,
        model: ModelConfig,
        head: Head,
        mesh: jax.sharding.Mesh,
        batch_size: int,
        buckets: Sequence[int],
        max_seq_len: int,
    ):
        self._mesh, self._batch_size = mesh, batch_size
        self._buckets, self._max_seq_len = buckets, max_seq_len
        self._num_outputs = head.num_outputs
        self._step = _jitted_step(model, head, mesh)

    def __call__(self, params: Any, examples: EncodedExamples) -> np.ndarray:
        """Logits [examples, K] float32."""
        logits = np.zeros((len(examples), self._num_outputs), np.float32)
        for rows, outputs in self.parts(params, examples):
            logits[rows] = outputs
        return logits

    def parts(
        self, params: Any, examples: EncodedExamples
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Numbers and logits of some examples at a time, in no particular order."""
        batches = EvalBatches(
            examples,
            self._batch_size,
            processes.host_rows(self._batch_size),
            self._buckets,
            self._max_seq_len,
        )
        pending: list[tuple[np.ndarray, jax.Array]] = []  # the batch before
        for index in range(len(batches)):
            rows, batch = batches[index]
            tokens = to_global_batch(batch.tokens, self._mesh)
            pending.append((rows, self._step(params, tokens)))
            if len(pending) > 1:
                yield _on_host(*pending.pop(0))
        for part in pending:
            yield _on_host(*part)


@functools.lru_cache(maxsize=1)  # the next seed's run compiles nothing
def _jitted_step(
    model: ModelConfig, head: Head, mesh: jax.sharding.Mesh
) -> Callable[[Any, jax.Array], jax.Array]:
    def predict_step(params: Any, tokens: jax.Array) -> jax.Array:
        return heads.apply(model, head, params, tokens)[0]

    everywhere = replicated(mesh)
    return jax.jit(
        predict_step,
        in_shardings=(everywhere, batch_sharding(mesh)),
        out_shardings=everywhere,
    )


def _on_host(rows: np.ndarray, outputs: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    return rows, jax.device_get(outputs)[: len(rows)]


def loss(logits: np.ndarray, targets: np.ndarray) -> float:
    """`classification_loss` on the host, in float64."""
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
    """Scores a state on the development split, as the training loop asks for it."""

    def __init__(
        self,
        task: Task,
        split: Split,
        score_loss: str,
        predictor: Predictor,
        say: Callable[[str], None],
    ):
        self._task, self._split, self._score_loss = task, split, score_loss
        self._predict, self._say = predictor, say

    def __call__(self, state: TrainState, stop: StopSignal) -> Mapping[str, Any] | None:
        """`valid_loss`, nats an example, and `valid_METRIC` of each of the task's.

        None if a stop signal came in between.
        """
        examples = self._split.encoded
        logits = np.zeros((len(examples), examples.targets.shape[1]), np.float32)
        for rows, outputs in self._predict.parts(state.params, examples):
            if stop.received:
                return None
            logits[rows] = outputs
        predictions, _ = read_outputs(self._task, logits, self._score_loss)
        scores = score(self._task, self._split, predictions)
        values = {f"valid_{name}": scores[name] for name in self._task.metrics}
        dev_loss = loss(logits, examples.targets)
        shown = "  ".join(f"{n} {scores[n]:.4f}" for n in self._task.metrics)
        self._say(f"step {int(state.step):>6}  dev {shown}  loss {dev_loss:.4f}")
        return {"valid_loss": dev_loss, **values}
