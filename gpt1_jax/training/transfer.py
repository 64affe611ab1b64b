"""From a pre-trained run to the parameters that fine-tuning starts from."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from etils import epath

from gpt1_jax.config import ModelConfig, make_model_config
from gpt1_jax.data import tokenizers
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.model import heads
from gpt1_jax.model.heads import Head
from gpt1_jax.model.language_model import Params, init_params
from gpt1_jax.tasks.transforms import NUM_SPECIALS
from gpt1_jax.training import run_folder
from gpt1_jax.training.checkpoint import NEWEST, read_params

_SIZES = ("num_layers", "num_heads", "embed_dim", "mlp_dim", "max_seq_len")


class TrainedRun(NamedTuple):
    """A run folder, as far as another run starts from it."""

    folder: epath.Path
    config: Mapping[str, Any]  # its config.json
    tokenizer: Tokenizer
    step: int
    params: Params  # numpy


def read_run(workdir: str, step: int = NEWEST) -> TrainedRun:
    """Reads configuration, tokenizer and parameters of a run.

    Args:
      workdir: the run folder, local or gs://.
      step: a saved step, or `NEWEST` or `BEST` of `gpt1_jax.training.checkpoint`.

    Raises:
      FileNotFoundError: if there is no run, or no checkpoint of that step.
      ValueError: if the checkpoint is damaged or belongs to another tokenizer.
    """
    folder = run_folder.locate(workdir)
    config_file = folder / run_folder.CONFIG_FILE
    if not config_file.exists():
        raise FileNotFoundError(
            f"{folder} is no run folder: it has no {run_folder.CONFIG_FILE}. Name the "
            "--workdir of a run, for example runs/pretrain/quickstart."
        )
    tokenizer = tokenizers.load(folder / "tokenizer")
    saved = read_params(folder, step)
    if saved.metadata["tokenizer"] != tokenizer.fingerprint:
        raise ValueError(
            f"The tokenizer in {folder / 'tokenizer'} is not the one its checkpoint of "
            f"step {saved.step} was trained with (fingerprints "
            f"{tokenizer.fingerprint[:12]} and {saved.metadata['tokenizer'][:12]}); "
            "put the original one back."
        )
    config = json.loads(config_file.read_text())
    return TrainedRun(folder, config, tokenizer, saved.step, saved.params)


def model_config(run: TrainedRun, overrides: Mapping[str, Any]) -> ModelConfig:
    """The decoder of a fine-tuned model: a run's sizes, three more tokens.

    Args:
      run: to start from.
      overrides: all that is not a size: dropout, dtype, implementations.

    Raises:
      ValueError: if the run was itself fine-tuned, or its parameters have other
        sizes than its configuration says.
    """
    if run.config["job"] != "pretrain":
        raise ValueError(
            f"{run.folder} is a run of the job {run.config['job']!r}; fine-tuning "
            "starts from a pre-trained one."
        )
    vocab_size = run.tokenizer.vocab_size
    sizes = {name: run.config["model"][name] for name in _SIZES}
    values = {**overrides, **sizes}
    _check_sizes(run, make_model_config({**values, "vocab_size": vocab_size}))
    return make_model_config({**values, "vocab_size": vocab_size + NUM_SPECIALS})


def _check_sizes(run: TrainedRun, model: ModelConfig) -> None:
    """Refuses parameters that are not those of the model."""
    expected = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    asked, held = (
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        }
        for params in (expected, run.params)
    )
    for name in sorted(asked.keys() | held.keys()):
        if asked.get(name) != held.get(name):
            raise ValueError(
                f"The checkpoint in {run.folder} holds {name} of shape "
                f"{held.get(name)}; its tokenizer and configuration ask for "
                f"{asked.get(name)}. They do not belong together."
            )


def finetuned_config(run: TrainedRun) -> ModelConfig:
    """The decoder of a fine-tuned run."""
    vocab_size = run.tokenizer.vocab_size + NUM_SPECIALS
    return make_model_config({"vocab_size": vocab_size, **run.config["model"]})


def start_params(
    model: ModelConfig,
    head: Head,
    pretrained: Params,
    transfer_layers: int | None,
    key: jax.Array,
) -> Params:
    """Parameters to start fine-tuning from (sec. 3.2; n_transfer of the released code).

    Args:
      model: of the fine-tuned decoder.
      head: of the task.
      pretrained: of the decoder alone.
      transfer_layers: how many layers, from the first, are copied with the
        embeddings; 0 copies the embeddings of tokens and positions alone, None
        nothing.
      key: of all that is not copied, the three special tokens and the head among it.
    """
    params = heads.init_params(model, head, key)
    if transfer_layers is None:
        return params
    decoder = dict(params["transformer"])
    specials = decoder["wte"][-NUM_SPECIALS:]
    decoder["wte"] = jnp.concatenate([jnp.asarray(pretrained["wte"]), specials])
    decoder["wpe"] = jnp.asarray(pretrained["wpe"])
    for layer in range(transfer_layers):
        decoder[f"h_{layer}"] = jax.tree.map(jnp.asarray, pretrained[f"h_{layer}"])
    return {**params, "transformer": decoder}


def num_transferred(model: ModelConfig, transfer_layers: str) -> int | None:
    """`config.transfer_layers` as `start_params` takes it.

    Raises:
      ValueError: if the model has fewer layers.
    """
    if transfer_layers == "none":
        return None
    number = model.num_layers if transfer_layers == "all" else int(transfer_layers)
    if number > model.num_layers:
        raise ValueError(
            f"config.transfer_layers={transfer_layers}, but the pre-trained model has "
            f"{model.num_layers} layers."
        )
    return number
