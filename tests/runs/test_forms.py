"""Which forms of attention and LayerNorm a run computes with, without kernels."""

import dataclasses
import sys

import pytest

from gpt1_jax.runs import forms
from gpt1_jax.runs.forms import choose_forms, saved_forms, say_forms

USUAL = {"attention": "blocked", "layer_norm": "plain"}
FUSED = {"attention": "fused", "layer_norm": "fused"}
LEFT_OUT = "fused is left out: there is no gpt1_jax.kernels"


@pytest.fixture
def model(tiny_model_config):
    """A model that leaves the choice to the run."""
    return tiny_model_config(attention_form="auto", layer_norm_form="auto")


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch):
    """As in an installation without the package of the kernels."""
    monkeypatch.setitem(sys.modules, "gpt1_jax.kernels.choice", None)


def choose(model, before=None):
    return choose_forms(model, 8, training=True, before=before)


def test_on_a_cpu_auto_is_what_xla_makes(model, capsys):
    chosen, found = choose(model)
    assert found == {name: {"form": form} for name, form in USUAL.items()}
    assert chosen == dataclasses.replace(
        model, attention_form="blocked", layer_norm_form="plain"
    )
    say_forms(found)
    assert capsys.readouterr().out == "Attention: blocked; LayerNorm: plain\n"


def test_on_an_accelerator_a_line_says_that_there_are_no_kernels(
    model, monkeypatch, capsys
):
    monkeypatch.setattr(forms, "_may_have_kernels", lambda: True)
    chosen, found = choose(model)
    assert (chosen.attention_form, chosen.layer_norm_form) == ("blocked", "plain")
    say_forms(found)
    assert capsys.readouterr().out == (
        f"Attention: blocked; {LEFT_OUT}\nLayerNorm: plain; {LEFT_OUT}\n"
    )


def test_named_kernels_that_are_not_there_are_left_out(model):
    named = dataclasses.replace(model, attention_form="fused")
    chosen, found = choose(named)
    assert chosen.attention_form == found["attention"]["form"] == "blocked"
    assert found["attention"]["why"] == LEFT_OUT
    assert "why" not in found["layer_norm"]


def test_a_run_by_kernels_goes_on_without_them_and_says_so(model):
    _, found = choose(model, FUSED)
    assert found["attention"] == {
        "form": "blocked",
        "why": f"{LEFT_OUT}; this run used fused so far, and goes on equal up to "
        "rounding",
    }


def test_a_run_goes_on_with_its_forms(model, monkeypatch):
    """Even where kernels might be faster."""
    monkeypatch.setattr(forms, "_may_have_kernels", lambda: True)
    before = {"attention": "plain", "layer_norm": "plain"}
    chosen, found = choose(model, before)
    assert found == {name: {"form": "plain"} for name in before}
    assert (chosen.attention_form, chosen.layer_norm_form) == ("plain", "plain")


def test_another_fault_of_the_kernels_is_not_taken_for_their_absence(
    model, monkeypatch
):
    monkeypatch.setattr(forms, "_WHY_NOT", "no_such_package:why_not")
    named = dataclasses.replace(model, attention_form="fused")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        choose(named)


def test_an_lstm_has_no_forms(model, monkeypatch, capsys):
    monkeypatch.setattr(forms, "_may_have_kernels", lambda: True)
    _, found = choose(dataclasses.replace(model, kind="lstm"))
    assert not found
    say_forms(found)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("metadata", "forms"),
    [
        ({}, {}),
        ({"forms": FUSED, "config": {"model": {"attention_form": "auto"}}}, FUSED),
        ({"config": {"model": {"attention_form": "blocked"}}}, {}),
        ({"config": 3, "forms": [1]}, {}),
    ],
)
def test_saved_forms_are_those_of_the_checkpoint(metadata, forms):
    assert saved_forms(metadata) == forms
