"""Which forms of attention and LayerNorm a run computes with, without kernels."""

import dataclasses
import sys

import pytest

from gpt1_jax.runs import forms
from gpt1_jax.runs.forms import choose_forms, saved_forms, say_forms

FUSED = {"attention": "fused", "layer_norm": "fused"}


@pytest.fixture
def model(tiny_model_config):
    """A model that leaves the choice to the run."""
    return tiny_model_config(attention_form="auto", layer_norm_form="auto")


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch):
    """As in an installation without the package of the kernels."""
    monkeypatch.setitem(sys.modules, "gpt1_jax.kernels.choice", None)


OUT = "fused is left out: there is no gpt1_jax.kernels"
ON = "; this run used fused so far, and goes on equal up to rounding"
PLAIN = {"attention": "plain", "layer_norm": "plain"}
MIXED = {"attention": "fused", "layer_norm": "plain"}


@pytest.mark.parametrize(
    ("accelerator", "values", "before", "said"),
    [
        (False, {}, None, "Attention: blocked; LayerNorm: plain\n"),
        (True, {}, None, f"Attention: blocked; {OUT}\nLayerNorm: plain; {OUT}\n"),
        (False, {}, MIXED, f"Attention: blocked; {OUT}{ON}\nLayerNorm: plain\n"),
        # A run goes on with its forms even where kernels might be faster.
        (True, {}, PLAIN, "Attention: plain; LayerNorm: plain\n"),
        (True, {"kind": "lstm"}, None, ""),
    ],
)
def test_a_run_without_kernels_says_what_it_takes_instead(
    model, monkeypatch, capsys, accelerator, values, before, said
):
    monkeypatch.setattr(forms, "_may_have_kernels", lambda: accelerator)
    model = dataclasses.replace(model, **values)
    chosen, found = choose_forms(model, 8, training=True, before=before)
    attention = "plain" if before == PLAIN else "blocked"
    taken = {"attention_form": attention, "layer_norm_form": "plain"}
    assert chosen == dataclasses.replace(model, **taken)
    for name, form in forms.form_names(found).items():
        assert taken[f"{name}_form"] == form
    say_forms(found)
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("metadata", "forms"),
    [
        ({}, {}),
        ({"forms": FUSED, "config": {"model": {"attention_form": "auto"}}}, FUSED),
        ({"config": 3, "forms": [1]}, {}),
    ],
)
def test_saved_forms_are_those_of_the_checkpoint(metadata, forms):
    assert saved_forms(metadata) == forms
