"""The commands that make what a report may lack."""

import shlex
from typing import NamedTuple

_SEEDS = "--config.seeds=0,1,2"
_NEW_LINE = " \\\n    "


class Models(NamedTuple):
    """Folders of the pre-trained runs that commands start from, one of each kind."""

    transformer: str = "runs/pretrain/quickstart"
    lstm: str = "runs/pretrain/lstm"


def pretrain() -> str:
    """Pre-trains a model, whatever there is."""
    return _command("pretrain.py:quickstart")


def finetune(models: Models) -> str:
    """Fine-tunes on all tasks (Tables 2 to 4)."""
    return _command("finetune.py:all", _start(models), _SEEDS)


def ablations(models: Models) -> str:
    """Fine-tunes Table 5."""
    lstm = f"--config.suite.lstm_init_from={models.lstm}"
    return _command("finetune.py:ablations", _start(models), lstm, _SEEDS)


def layer_transfer(models: Models) -> str:
    """Fine-tunes Figure 2, left."""
    return _command("finetune.py:layer_transfer", _start(models), _SEEDS)


def aux_lm_weight(models: Models) -> str:
    """Fine-tunes with several weights of the auxiliary objective."""
    return _command("finetune.py:aux_lm_weight", _start(models), _SEEDS)


def zero_shot(models: Models) -> str:
    """Evaluates Figure 2, right."""
    lstm = f"--config.baseline_init_from={models.lstm}"
    return _command("zero_shot.py", _start(models), lstm, "--config.step=milestones")


def _start(models: Models) -> str:
    return f"--config.init_from={models.transformer}"


def _command(file: str, *flags: str) -> str:
    quoted = map(shlex.quote, (f"--config=configs/{file}", *flags))
    return f"python -m gpt1_jax.main {_NEW_LINE.join(quoted)}"
