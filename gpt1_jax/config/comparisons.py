"""The variants of a run that a fine-tuning suite compares: the paper's analyses.

A variant is a configuration of its own. Nothing that trains knows of comparisons.
"""

import dataclasses
import math
from collections.abc import Mapping

from gpt1_jax.config.sections import require
from gpt1_jax.config.task_sections import SuiteConfig
from gpt1_jax.config.training_jobs import FinetuneConfig

LSTM = "lstm"  # the variant that starts from `suite.lstm_init_from`

_OF_THE_TRANSFORMER = ("full", "no_pretraining", "no_aux_lm")

Variants = Mapping[str, FinetuneConfig]


def variants(config: FinetuneConfig, num_layers: int) -> Variants:
    """The variants that `config.suite.compare` names, in the order they are run.

    Args:
      config: the suite's configuration.
      num_layers: of the model at `config.init_from`.

    Returns:
      The configuration of each variant by its name, which is part of its folders'.
    """
    base = dataclasses.replace(config, suite=_of_one_run(config.suite))
    own = "scratch" if config.transfer_layers == "none" else "pretrained"
    scratch = dataclasses.replace(base, transfer_layers="none")
    match config.suite.compare:
        case "scratch":
            return {own: base, "scratch": scratch}
        case "ablations":
            return _ablations(config, base, scratch)
        case "layer_transfer":
            return {
                f"layers{number}": dataclasses.replace(
                    base, transfer_layers=str(number)
                )
                for number in range(num_layers + 1)
            }
        case "aux_lm_weight":
            return _aux_lm_weights(config.suite, base)
    return {own: base}


def left_out(config: FinetuneConfig) -> str:
    """A line on what is missing from the comparison, or ""."""
    if config.suite.compare != "ablations" or config.suite.lstm_init_from:
        return ""
    return (
        "Table 5's LSTM is left out; for it, name the run folder of a pre-trained LSTM "
        "with --config.suite.lstm_init_from=DIR."
    )


def check_kind(name: str, variant: FinetuneConfig, kind: str) -> None:
    """Refuses a model that would stand in the wrong line of Table 5.

    Args:
      name: the variant's name.
      variant: its configuration.
      kind: that of the model that it starts from, "transformer" or "lstm".

    Raises:
      ValueError: naming the key that holds the other kind.
    """
    require(
        name != LSTM or kind == "lstm",
        f"config.suite.lstm_init_from={variant.init_from!r} is a {kind}, not an LSTM; "
        "name the run folder of one, or leave the key empty.",
    )
    require(
        name not in _OF_THE_TRANSFORMER or kind == "transformer",
        f"config.init_from={variant.init_from!r} is an {kind}, but the ablations of "
        "Table 5 are the Transformer's; name the LSTM with "
        "--config.suite.lstm_init_from.",
    )


def _of_one_run(suite: SuiteConfig) -> SuiteConfig:
    """What is left of the section for one of the suite's runs."""
    return dataclasses.replace(
        suite, compare="", lstm_init_from="", aux_lm_weights=(), train_sizes=()
    )


def _ablations(
    config: FinetuneConfig, base: FinetuneConfig, scratch: FinetuneConfig
) -> dict[str, FinetuneConfig]:
    """The lines of Table 5."""
    own = (base, scratch, _with_aux_lm(base, 0.0))
    found = dict(zip(_OF_THE_TRANSFORMER, own, strict=True))
    if config.suite.lstm_init_from:
        found[LSTM] = dataclasses.replace(base, init_from=config.suite.lstm_init_from)
    return found


def _aux_lm_weights(
    suite: SuiteConfig, base: FinetuneConfig
) -> dict[str, FinetuneConfig]:
    """Each lambda with each number of training examples, the largest first."""
    found = {}
    for size in sorted(suite.train_sizes, key=lambda n: n or math.inf, reverse=True):
        data = dataclasses.replace(base.data, max_train_examples=size)
        for weight in suite.aux_lm_weights:
            name = f"lambda{weight:.12g}-{f'size{size}' if size else 'all'}"
            sized = dataclasses.replace(base, data=data)
            found[name] = _with_aux_lm(sized, float(weight))
    return found


def _with_aux_lm(config: FinetuneConfig, weight: float) -> FinetuneConfig:
    head = dataclasses.replace(config.head, aux_lm_weight=weight)
    return dataclasses.replace(config, head=head)
