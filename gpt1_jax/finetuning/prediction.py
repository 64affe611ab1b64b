"""Labels new examples with a fine-tuned model."""

from collections.abc import Sequence

import numpy as np

from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.scores import Predictor, make_head
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.tasks.batches import padded_lengths
from gpt1_jax.tasks.examples import describe_long_examples
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import encode_examples, read_outputs


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
