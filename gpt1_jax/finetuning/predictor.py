"""Applies a fine-tuned model to examples, and scores a whole split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from scipy import special

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.data.tokenizers import special_tokens
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head
from gpt1_jax.inference.scoring import power_of_two
from gpt1_jax.model import costs
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel.devices import fetched_late, require_memory
from gpt1_jax.parallel.exchange import rows_by_device
from gpt1_jax.parallel.mesh import make_mesh, replicated, to_global_batch
from gpt1_jax.parallel.processes import host_rows
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.tasks.batches import (
    EncodedExamples,
    eval_batches,
    padded_length,
    padded_lengths,
)
from gpt1_jax.tasks.examples import describe_long_examples
from gpt1_jax.tasks.metrics import describe_metric, score_predictions
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import encode_examples, num_outputs, read_outputs


def make_head(task: Task, dropout: float, vocab_size: int) -> Head:
    """The head that a task needs.

    Args:
      task: the task, with its targets and transform.
      dropout: dropout rate of the state at the extract token.
      vocab_size: entries of the tokenizer; the special tokens follow them.
    """
    extract_token = special_tokens(vocab_size).extract
    per_choice = task.inputs.transform == "multiple_choice"
    multilabel = task.target.multilabel
    return Head(num_outputs(task), per_choice, dropout, extract_token, multilabel)


class Predictor:
    """Applies a fine-tuned model to encoded examples.

    Args:
      model: configuration of the language model.
      head: the task's head.
      mesh: the device mesh.
      batch_size: examples over all devices, a multiple of their number. Batches are
        smaller where there are fewer examples.
      seq_lens: the lengths that batches are padded to, from `padded_lengths`.
    """

    def __init__(
        self,
        model: ModelConfig,
        head: Head,
        mesh: jax.sharding.Mesh,
        batch_size: int,
        seq_lens: Sequence[int],
    ):
        self.model, self.head = model, head
        self._mesh, self._seq_lens = mesh, seq_lens
        self._batch_size = batch_size

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
          UserError: naming the key, the least memory it needs and the memory available.
        """
        rows = self._num_rows(len(examples)) // self._mesh.size
        length = padded_length(int(examples.lengths.max()), self._seq_lens)
        require_memory(
            f"{key}={self._batch_size}",
            rows * examples.num_seqs * length * costs.forward_bytes(self.model),
            "Lower it.",
        )

    def _num_rows(self, num_examples: int) -> int:
        """Rows of a batch: few numbers, so few programs."""
        unit = self._mesh.size
        enough = power_of_two(-(-num_examples // unit)) * unit
        return min(self._batch_size, enough)

    def __call__(self, params: Any, examples: EncodedExamples) -> np.ndarray:
        """Logits [examples, K] float32."""
        logits = np.zeros((len(examples), self.head.num_outputs), np.float32)
        for rows, outputs in self.parts(params, examples):
            logits[rows] = outputs
        return logits

    def parts(
        self, params: Any, examples: EncodedExamples
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Indices and logits of a few examples at a time, in no particular order."""
        size = self._num_rows(len(examples))
        batches = eval_batches(examples, size, host_rows(size), self._seq_lens)
        on_devices = (
            (rows, self._step(params, to_global_batch(batch["tokens"], self._mesh)))
            for rows, batch in batches
        )
        for rows, outputs in fetched_late(on_devices):
            yield rows, outputs[: len(rows)]  # without the rows that fill up the batch


def task_of(run: TrainedRun) -> Task:
    """The task that a run was fine-tuned on.

    Raises:
      UserError: if it was not fine-tuned.
    """
    if not isinstance(run.config, FinetuneConfig):
        raise UserError(
            f"{run.folder} is a run of the job {run.config.job!r}; labels need a "
            "fine-tuned one, such as runs/finetune/TASK."
        )
    return find_task(run.config)


def predict_examples(
    run: TrainedRun,
    params: Params,
    task: Task,
    examples: Sequence[Example],
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The labels or scores of examples, and their probabilities.

    Args:
      run: the fine-tuned run.
      params: its parameters, those of the head included.
      task: its task.
      examples: those to label.
      batch_size: how many to compute together; rounded up to fill all devices.

    Returns:
      As `gpt1_jax.tasks.transforms.read_outputs`.

    Raises:
      UserError: if an example is too long, or a batch does not fit in memory.
    """
    if not examples:
        return read_outputs(task, np.zeros((0, num_outputs(task))))
    seq_lens = padded_lengths(run.config.data, run.model.max_seq_len)
    encoded = encode_examples(task, list(examples), run.tokenizer, seq_lens[-1])
    if long := describe_long_examples(task, {"new": encoded}, seq_lens[-1]):
        say(long, beside_output=True)
    mesh = make_mesh()
    unit = mesh.size
    batch_size = -(-batch_size // unit) * unit
    head = make_head(task, 0.0, run.tokenizer.vocab_size)
    model = scoring_model(run.model)
    predict = Predictor(model, head, mesh, batch_size, seq_lens)
    predict.check_memory("config.batch_size", encoded)
    return read_outputs(task, predict(params, encoded))


def mean_loss(
    logits: np.ndarray, targets: np.ndarray, multilabel: bool = False
) -> float:
    """`gpt1_jax.finetuning.heads.classification_loss`, on the host in float64."""
    logits = logits.astype(np.float64)
    if multilabel:
        likelihood = targets * logits + special.log_expit(-logits)
        return float(-likelihood.mean())
    if logits.shape[1] == 1:
        return float(np.square(logits - targets).mean())
    log_probs = special.log_softmax(logits, axis=1)
    return float(-(targets * log_probs).sum(axis=1).mean())


def evaluate_dev(
    task: Task,
    dev: EncodedExamples,
    predict: Predictor,
    say: Callable[[str], None],
    params: Any,
    step: int,
    stopped: Callable[[], bool],
) -> Mapping[str, Any] | None:
    """Scores parameters on the development split, and shows a line of scores.

    Args:
      task: the task, which names the metrics.
      dev: the split.
      predict: applies the model.
      say: shows a line to the user.
      params: the parameters.
      step: their step, to be shown.
      stopped: whether to stop before the end.

    Returns:
      `valid_loss`, per example, in nats or as a squared error for a regression, and
      `valid_METRIC` for each of the task's metrics. None if `stopped()` became true.
    """
    logits = np.zeros(dev.targets.shape, np.float32)
    for rows, outputs in predict.parts(params, dev):
        if stopped():
            return None
        logits[rows] = outputs
    scores = score_predictions(task, dev.examples, *read_outputs(task, logits))
    dev_loss = mean_loss(logits, dev.targets, task.target.multilabel)
    shown = "  ".join(
        f"{describe_metric(task, name)} {scores[name]:.4f}" for name in task.metrics
    )
    say(f"step {step:>6}  dev {shown}  task loss {dev_loss:.4f}")
    return {
        "valid_loss": dev_loss,
        **{f"valid_{name}": scores[name] for name in task.metrics},
    }
