"""The commands that make what a report may lack."""


def _command(file: str, *flags: str) -> str:
    parts = (f"python -m gpt1_jax.main --config=configs/{file}", *flags)
    return " \\\n    ".join(parts)


_SOURCE = "--config.init_from=runs/pretrain/quickstart"
_SEEDS = "--config.seeds=0,1,2"

PRETRAIN = _command("pretrain.py:quickstart")
FINETUNE = _command("finetune.py:all", _SOURCE, _SEEDS)
ABLATIONS = _command(
    "finetune.py:ablations",
    _SOURCE,
    "--config.suite.lstm_init_from=runs/pretrain/lstm",
    _SEEDS,
)
LAYER_TRANSFER = _command("finetune.py:layer_transfer", _SOURCE, _SEEDS)
AUX_LM_WEIGHT = _command("finetune.py:aux_lm_weight", _SOURCE, _SEEDS)
ZERO_SHOT = _command(
    "zero_shot.py",
    _SOURCE,
    "--config.baseline_init_from=runs/pretrain/lstm",
    "--config.step=kept",
)
