"""Which forms of attention and LayerNorm a run takes, with made-up kernels."""

import contextlib
import dataclasses
import json
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from etils import epath
from tiny_run import stop_after

from gpt1_jax.jobs import pretrain
from gpt1_jax.kernels import attention_tpu, choice, layer_norm_gpu
from gpt1_jax.kernels.check import Check
from gpt1_jax.ops.attention import causal_attention
from gpt1_jax.ops.layer_norm import residual_layer_norm
from gpt1_jax.parallel.processes import EXIT_AGAIN
from gpt1_jax.runs import forms
from gpt1_jax.runs.checkpoint_files import read_metadata
from gpt1_jax.runs.forms import choose_forms, form_names, say_forms
from gpt1_jax.runs.records import SESSIONS_FILE, read_sessions
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.runs.signals import Stopped

USUAL = {"attention": "blocked", "layer_norm": "plain"}
FUSED = {"attention": "fused", "layer_norm": "fused"}
CHIP = jax.devices()[0].device_kind


@pytest.fixture
def model(tiny_model_config):
    """A model that leaves the choice to the run."""
    return tiny_model_config(attention_form="auto", layer_norm_form="auto")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of verdicts, empty at first."""
    monkeypatch.setattr(choice, "compilation_cache", lambda _: str(tmp_path))
    return tmp_path / "forms"


@pytest.fixture
def made_up(monkeypatch):
    """Gives this machine kernels that are known to be faster; returns what sets them.

    They are checked only if attention is given: that compiles five programs.
    """
    kernels, check = {"layer_norm": residual_layer_norm}, Check.why_not

    def use(attention=None):
        kernels["attention"] = attention or causal_attention
        right = check if attention else lambda self, form: ""
        monkeypatch.setattr(Check, "why_not", right)

    monkeypatch.setattr(choice, "find_kernels", lambda name, *_: (kernels[name], ""))
    monkeypatch.setattr(choice, "FASTER", {name: (CHIP,) for name in USUAL})
    monkeypatch.setattr(forms, "_may_have_kernels", lambda: True)
    use()
    return use


def choose(model, before=None, seq_len=8):
    return choose_forms(model, seq_len, training=True, before=before)


def test_right_kernels_are_used_where_they_are_known_to_be_faster(
    model, made_up, cache, capsys, monkeypatch
):
    chosen, found = choose(model)
    assert (chosen.attention_form, chosen.layer_norm_form) == ("fused", "fused")
    say_forms(found)
    assert capsys.readouterr().out == "Attention: fused; LayerNorm: fused\n"
    files = list(cache.glob("*.json"))
    assert len(files) == 2
    held = json.loads(files[0].read_text())
    assert (held["device"], held["jax"]) == (CHIP, jax.__version__)
    monkeypatch.setattr(Check, "why_not", lambda *_: pytest.fail("checked again"))
    assert choose(model)[1] == found


def test_where_nobody_knows_xlas_code_is_used(model, made_up, cache, monkeypatch):
    monkeypatch.setattr(choice, "FASTER", {name: ("NVIDIA H100",) for name in USUAL})
    chosen, found = choose(model)
    assert (chosen.attention_form, chosen.layer_norm_form) == ("blocked", "plain")
    why = f"fused is left out: it is not known to be faster on {CHIP}"
    assert found["attention"] == {"form": "blocked", "why": why}
    assert not cache.exists(), "nor is it checked"
    named = dataclasses.replace(model, attention_form="plain", layer_norm_form="fused")
    chosen, found = choose(named)
    assert chosen == named and not cache.exists(), "nor are those with a name"
    assert found == {"attention": {"form": "plain"}, "layer_norm": {"form": "fused"}}
    assert form_names(choose(model, FUSED)[1]) == FUSED, "a run goes on with them"


def test_other_sizes_and_the_pass_forward_are_checked_anew(model, made_up, cache):
    choose(model)
    choose(model, seq_len=6)
    choose(dataclasses.replace(model, dtype="bfloat16"))
    assert scoring_model(model).attention_form == "fused"
    held = [json.loads(file.read_text()) for file in cache.glob("attention-*.json")]
    checked = sorted((each["training"], each["dropout"]) for each in held)
    assert checked == [(False, 0), *[(True, 0.1)] * 3]


def wrong(query, *rest):
    return causal_attention(query, *rest) * 1.01


def that_does_not_compile(*_):
    raise NotImplementedError("no such instruction: wgmma\nand much more")


@pytest.mark.parametrize(
    ("attention", "why"),
    [
        (wrong, "the output has .* times the error of XLA's own$"),
        (that_does_not_compile, "NotImplementedError: no such .*: wgmma$"),
    ],
)
def test_wrong_kernels_are_left_out_in_one_line(
    model, made_up, cache, capsys, monkeypatch, attention, why
):
    made_up(attention=attention)
    chosen, found = choose(model)
    assert chosen.attention_form == found["attention"]["form"] == "blocked"
    say_forms(found)
    line, _ = capsys.readouterr().out.splitlines()
    assert re.match(f"Attention: blocked; fused is left out: {why}", line)
    monkeypatch.setattr(Check, "why_not", lambda *_: pytest.fail("checked again"))
    assert choose(model)[1] == found, "and it is remembered"


@pytest.mark.parametrize("form", ["auto", "fused"])
def test_attention_of_another_rule_has_no_kernels(model, monkeypatch, form):
    """Not even those that a run has used so far, or that are named."""
    monkeypatch.setattr(choice, "is_causal", lambda seq_len: False)
    monkeypatch.setattr(forms, "_may_have_kernels", lambda: True)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    model = dataclasses.replace(model, attention_form=form)
    for before in (None, FUSED):
        found = choose(model, before)[1]["attention"]
        assert found["form"] == "blocked"
        assert "`may_attend` of gpt1_jax.ops.attention is not" in found["why"]
    with pytest.warns(UserWarning, match="Attention without kernels: it is causal"):
        assert choice.kernels_here("attention", (2, 128, 4, 64), "float32") is None


def test_a_run_goes_on_with_its_forms_or_says_why_not(model, made_up):
    for before in (USUAL, {**USUAL, "attention": "plain"}):
        assert form_names(choose(model, before)[1]) == before
    made_up(attention=that_does_not_compile)
    _, found = choose(model, FUSED)
    assert found["attention"]["form"] == "blocked"
    assert "this run used fused so far" in found["attention"]["why"]
    assert found["layer_norm"]["form"] == "fused"
    named = dataclasses.replace(model, attention_form="plain")
    _, found = choose(named, FUSED)
    assert found["attention"] == {
        "form": "plain",
        "why": "this run used fused so far, and goes on equal up to rounding",
    }


@pytest.mark.parametrize(
    ("backend", "name", "shape", "found"),
    [
        ("tpu", "attention", (2, 9, 4, 64), attention_tpu.attention),
        ("gpu", "layer_norm", (2, 9, 64), layer_norm_gpu.residual_layer_norm),
        ("gpu", "layer_norm", (2, 9, 33), "LayerNorm without kernels: half of 33"),
        ("tpu", "layer_norm", (2, 9, 64), "LayerNorm .* there are none for a TPU"),
    ],
    ids=["tpu", "gpu", "another size", "another accelerator"],
)
def test_kernels_are_those_of_the_accelerator(monkeypatch, backend, name, shape, found):
    """Where there are none, a warning says why; an unexpected one is an error."""
    device = SimpleNamespace(compute_capability="9.0", device_kind="H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    there = callable(found)
    warns = (
        contextlib.nullcontext() if there else pytest.warns(UserWarning, match=found)
    )
    with warns:
        kernels = choice.kernels_here(name, shape, jnp.float32)
    assert kernels is (found if there else None)


@pytest.mark.parametrize("damage", ["{", '{"why_not": 3}'])
def test_a_damaged_memory_is_made_anew(model, made_up, cache, damage):
    _, found = choose(model)
    files = {file: file.read_text() for file in cache.glob("*.json")}
    for file in files:
        file.write_text(damage)
    assert choose(model)[1] == found
    assert {file: file.read_text() for file in files} == files


def test_a_folder_that_cannot_be_written_is_done_without(model, made_up, cache):
    cache.parent.joinpath("forms").write_text("a file")
    assert form_names(choose(model)[1]) == FUSED


NO_MEMORY = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), NO_MEMORY], ids=repr)
def test_what_may_have_been_an_accident_is_not_remembered(model, made_up, cache, error):
    """Another program may have taken the memory for a while."""

    def failing(*_):
        raise error

    made_up(attention=failing)
    with contextlib.suppress(KeyboardInterrupt):
        _, found = choose(model)
        assert "RESOURCE_EXHAUSTED" in found["attention"]["why"]
    assert not list(cache.glob("attention-*.json"))


def test_a_run_records_its_forms_and_resumes_with_them(
    tiny_config, tmp_path, monkeypatch, capsys
):
    """With made-up kernels, which the machine it resumes on does not have."""
    config, folder = tiny_config(), tmp_path / "run"
    called = []

    def attention(*arguments):
        called.append(arguments[0].shape)
        return causal_attention(*arguments)

    def found(name, *sizes):
        of_attention = name == "attention"
        return (attention, "") if of_attention else (None, "there are none here")

    with monkeypatch.context() as patch:
        patch.setattr(choice, "find_kernels", found)
        patch.setattr(choice, "FASTER", {"attention": (CHIP,)})
        patch.setattr(forms, "_may_have_kernels", lambda: True)
        stop_after(patch, 4)
        with pytest.raises(Stopped):
            pretrain.run(config, str(folder))
    assert called[0] == (4, 16, 2, 8), "checked with a few sequences"
    assert called[-1] == (1, 16, 2, 8), "used with one of 8 on each device"
    said = "Attention: fused\nLayerNorm: plain; fused is left out: there are none h"
    assert said in capsys.readouterr().out
    recorded = {"attention": "fused", "layer_norm": "plain"}
    assert read_metadata(epath.Path(folder), 4)["forms"] == recorded
    pretrain.run(config, str(folder))
    why = "there are none for a CPU; this run used fused so far, and goes on equal up"
    assert f"blocked; fused is left out: {why}" in capsys.readouterr().out
    used = [session["forms"] for session in read_sessions(folder / SESSIONS_FILE)]
    assert [each["attention"]["form"] for each in used] == ["fused", "blocked"]
    assert read_metadata(epath.Path(folder), 12)["forms"]["attention"] == "blocked"


def test_a_kernel_that_hangs_or_ends_the_process_is_not_checked_again(
    model, made_up, cache, monkeypatch
):
    """While it is checked its file says so, and a watchdog ends what hangs."""
    model = dataclasses.replace(model, layer_norm_form="plain")
    watched, held = [], {}

    @contextlib.contextmanager
    def watchdog(seconds, line, code, traces):
        watched.append((line.partition(" did not")[0], seconds, code))
        yield

    def end(self, form):
        held.update((file, file.read_text()) for file in cache.glob("attention-*.json"))
        return ""

    monkeypatch.setattr(choice, "Watchdog", watchdog)
    monkeypatch.setattr(Check, "why_not", end)
    choose(model)
    stuck = "stuck: the check of the kernels for Attention", 180, EXIT_AGAIN
    assert watched == [stuck]
    ((file, content),) = held.items()
    file.write_text(content)  # as the end of the process leaves it
    monkeypatch.setattr(Check, "why_not", lambda *_: pytest.fail("checked again"))
    found = choose(model)[1]["attention"]
    assert found["form"] == "blocked"
    assert "it hung or ended the process that checked it on 20" in found["why"]
    assert f"(delete {file} to check it again)" in found["why"]


def test_all_processes_use_what_the_main_one_chose(model, monkeypatch):
    chosen = {"attention": {"form": "fused"}, "layer_norm": {"form": "plain"}}
    monkeypatch.setattr(forms, "is_main_process", lambda: False)
    monkeypatch.setattr(forms, "_choose", lambda *_: pytest.fail("chosen here too"))
    monkeypatch.setattr(forms, "gather", lambda own: [json.dumps(chosen), own])
    assert choose(model)[1] == chosen
