"""Which forms of attention and LayerNorm made-up kernels get chosen, and remembered."""

import dataclasses
import json
import re
import time
from types import SimpleNamespace

import jax
import pytest
from etils import epath
from joined import addresses, start_script
from tiny_run import stop_after

from gpt1_jax.jobs import pretrain
from gpt1_jax.kernels import choice, find, trials
from gpt1_jax.ops.attention import causal_attention
from gpt1_jax.ops.layer_norm import residual_layer_norm
from gpt1_jax.parallel.processes import EXIT_AGAIN
from gpt1_jax.runs import forms
from gpt1_jax.runs.checkpoint_files import read_metadata
from gpt1_jax.runs.forms import (
    Workload,
    choose_forms,
    form_names,
    say_forms,
)
from gpt1_jax.runs.records import SESSIONS_FILE, read_sessions
from gpt1_jax.runs.scoring_model import scoring_model
from gpt1_jax.runs.signals import Stopped

WORKLOAD = Workload(num_seqs=2, seq_len=8, training=True)
USUAL = {"attention": "blocked", "layer_norm": "plain"}
FUSED = {"attention": "fused", "layer_norm": "fused"}


@pytest.fixture
def model(tiny_model_config):
    """A model that leaves the choice to the run."""
    return tiny_model_config(attention_form="auto", layer_norm_form="auto")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of what was found, empty at first."""
    monkeypatch.setattr(choice, "compilation_cache", lambda _: str(tmp_path))
    return tmp_path / "forms"


@pytest.fixture
def made_up(monkeypatch):
    """Gives this machine kernels; returns what sets them and their times.

    They are checked only if attention is given: that compiles five programs.
    """

    def found(modules, *sizes):
        if "attention_gpu" in modules.values():
            return SimpleNamespace(attention=calls["attention"]), ""
        return SimpleNamespace(residual_layer_norm=calls["layer_norm"]), ""

    def use(attention=None, ms=(2.0, 1.0)):
        calls.update(attention=attention or causal_attention)
        times = tuple(each / 1e3 for each in ms)
        monkeypatch.setattr(trials.Trial, "seconds", lambda self, form: times)
        if attention:
            monkeypatch.setattr(trials.Trial, "check", check)
        else:  # they are right
            monkeypatch.setattr(trials.Trial, "check", lambda self, form: None)

    calls, check = {"layer_norm": residual_layer_norm}, trials.Trial.check
    monkeypatch.setattr(find, "find_kernels", found)
    monkeypatch.setattr(forms, "_may_have_kernels", lambda: True)
    use()
    return use


def test_right_and_faster_kernels_are_used_and_remembered(
    model, made_up, cache, capsys, monkeypatch
):
    made_up(attention=causal_attention)
    chosen, found = choose_forms(model, WORKLOAD)
    assert (chosen.attention_form, chosen.layer_norm_form) == ("fused", "fused")
    assert found["attention"]["ms"] == {"blocked": 2.0, "fused": 1.0}
    say_forms(found)
    assert capsys.readouterr().out == (
        "Attention: fused, 1 ms (blocked 2 ms)\nLayerNorm: fused, 1 ms (plain 2 ms)\n"
    )
    files = list(cache.glob("*.json"))
    assert len(files) == 2
    held = json.loads(files[0].read_text())
    assert held["device"] == jax.devices()[0].device_kind
    assert held["jax"] == jax.__version__
    monkeypatch.setattr(trials.Trial, "check", lambda *_: pytest.fail("tried again"))
    assert choose_forms(model, WORKLOAD)[1] == found


def test_other_sizes_are_tried_anew(model, made_up, cache):
    choose_forms(model, WORKLOAD)
    choose_forms(model, WORKLOAD._replace(seq_len=6))
    choose_forms(dataclasses.replace(model, dtype="bfloat16"), WORKLOAD)
    assert len(list(cache.glob("attention-*.json"))) == 3


def wrong(query, *rest):
    return causal_attention(query, *rest) * 1.01


def that_does_not_compile(*_):
    raise NotImplementedError("no such instruction: wgmma\nand much more")


@pytest.mark.parametrize(
    ("attention", "ms", "why"),
    [
        (wrong, (2, 1), "the output has .* times the error of XLA's own"),
        (None, (1, 2), "it is slower"),
        (that_does_not_compile, (2, 1), "NotImplementedError: no such .*: wgmma$"),
    ],
)
def test_others_are_left_out_in_one_line(
    model, made_up, cache, capsys, attention, ms, why
):
    made_up(attention=attention, ms=ms)
    chosen, found = choose_forms(model, WORKLOAD)
    assert chosen.attention_form == "blocked"
    assert found["attention"]["form"] == "blocked"
    say_forms(found)
    line, _ = capsys.readouterr().out.splitlines()
    assert line.startswith("Attention: blocked")
    assert re.search(f"; fused is left out: {why}", line)
    assert choose_forms(model, WORKLOAD)[1] == found, "and it is remembered"


def test_on_a_tpu_kernels_are_compared_with_the_formula(
    model, made_up, monkeypatch, capsys
):
    """Blocks take too long to compile; they are a little faster than the formula."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    made_up(ms=(1.0, 0.79))
    _, found = choose_forms(model, WORKLOAD)
    assert found["attention"] == {"form": "fused", "ms": {"plain": 1.0, "fused": 0.79}}
    made_up(ms=(1.0, 0.81))
    _, found = choose_forms(model, WORKLOAD._replace(seq_len=6))
    assert found["attention"]["form"] == "blocked"
    say_forms(found)
    line = "Attention: blocked (plain 1 ms, fused 0.81 ms); fused is left out: it is"
    assert capsys.readouterr().out.startswith(f"{line} slower\n")


def test_named_forms_are_used_untried(model, made_up, cache):
    named = dataclasses.replace(model, attention_form="plain", layer_norm_form="fused")
    chosen, found = choose_forms(named, WORKLOAD)
    assert chosen == named
    assert found == {"attention": {"form": "plain"}, "layer_norm": {"form": "fused"}}
    assert not cache.exists()


def test_named_kernels_that_are_not_there_are_left_out(model):
    named = dataclasses.replace(model, attention_form="fused")
    chosen, found = choose_forms(named, WORKLOAD)
    assert chosen.attention_form == found["attention"]["form"] == "blocked"
    assert found["attention"]["why"] == "fused is left out: there are none for a CPU"


def test_a_run_goes_on_with_its_forms(model, made_up):
    assert form_names(choose_forms(model, WORKLOAD, USUAL)[1]) == USUAL
    made_up(ms=(1, 2))  # slower today
    assert form_names(choose_forms(model, WORKLOAD, FUSED)[1]) == FUSED
    assert form_names(choose_forms(model, WORKLOAD, {})[1]) == USUAL
    plain = {**USUAL, "attention": "plain"}
    assert form_names(choose_forms(model, WORKLOAD, plain)[1]) == plain


def test_a_run_that_cannot_go_on_with_its_forms_says_so(model, made_up):
    made_up(attention=wrong)
    _, found = choose_forms(model, WORKLOAD, FUSED)
    assert found["attention"]["form"] == "blocked"
    assert "this run used fused so far" in found["attention"]["why"]
    assert found["layer_norm"]["form"] == "fused"
    named = dataclasses.replace(model, attention_form="plain")
    _, found = choose_forms(named, WORKLOAD, FUSED)
    assert found["attention"] == {
        "form": "plain",
        "why": "this run used fused so far, and goes on equal up to rounding",
    }


def test_a_run_from_an_accelerator_goes_on_on_a_cpu(model, capsys):
    _, found = choose_forms(model, WORKLOAD, FUSED)
    assert form_names(found) == USUAL
    say_forms(found)
    first = "Attention: blocked; fused is left out: there are none for a CPU; this run"
    assert capsys.readouterr().out.startswith(first)


def test_scoring_tries_the_pass_forward(model, made_up, cache):
    assert scoring_model(model, 32).attention_form == "fused"
    held = json.loads(next(cache.glob("attention-*.json")).read_text())
    assert held["training"] is False and held["dropout"] == 0
    assert held["shapes"][0][0] == 32 // model.max_seq_len


@pytest.mark.parametrize("damage", ["{", "[]", '{"found": 3}', '{"found": {}}'])
def test_a_damaged_memory_is_made_anew(model, made_up, cache, damage):
    _, found = choose_forms(model, WORKLOAD)
    files = {file: file.read_text() for file in cache.glob("*.json")}
    for file in files:
        file.write_text(damage)
    assert choose_forms(model, WORKLOAD)[1] == found
    assert {file: file.read_text() for file in files} == files


def test_a_folder_that_cannot_be_written_is_done_without(model, made_up, cache):
    cache.parent.joinpath("forms").write_text("a file")
    assert form_names(choose_forms(model, WORKLOAD)[1]) == FUSED


def test_a_lack_of_memory_is_not_remembered(model, made_up, cache):
    """Another program may have taken it for a while."""

    def without_memory(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    made_up(attention=without_memory)
    _, found = choose_forms(model, WORKLOAD)
    assert "RESOURCE_EXHAUSTED" in found["attention"]["why"]
    made_up()
    assert form_names(choose_forms(model, WORKLOAD)[1]) == FUSED


def test_an_interrupted_trial_leaves_no_trace(model, made_up, cache):
    def interrupted(*_):
        raise KeyboardInterrupt

    made_up(attention=interrupted)
    with pytest.raises(KeyboardInterrupt):
        choose_forms(model, WORKLOAD)
    assert not list(cache.glob("*.json"))


def test_a_run_records_its_forms_and_resumes_with_them(
    tiny_config, tmp_path, monkeypatch, capsys
):
    """With made-up kernels, which the machine it resumes on does not have."""
    config, folder = tiny_config(train__num_steps=8), tmp_path / "run"
    called = []

    def attention(*arguments):
        called.append(arguments[0].shape)
        return causal_attention(*arguments)

    def found(modules, *sizes):
        if "attention_gpu" in modules.values():
            return SimpleNamespace(attention=attention), ""
        return None, "there are none here"

    with monkeypatch.context() as patch:
        patch.setattr(find, "find_kernels", found)
        patch.setattr(forms, "_may_have_kernels", lambda: True)
        patch.setattr(trials.Trial, "seconds", lambda *_: (0.002, 0.001))
        stop_after(patch, 4)
        with pytest.raises(Stopped):
            pretrain.run(config, str(folder))
    assert called[0] == (1, 16, 2, 8), "tried with one of 8 sequences a device"
    said = (
        "\nAttention: fused, 1 ms (blocked 2 ms)\n"
        "LayerNorm: plain; fused is left out: there are none here\nstep"
    )
    assert said in capsys.readouterr().out
    assert read_metadata(epath.Path(folder), 4)["forms"] == {
        "attention": "fused",
        "layer_norm": "plain",
    }
    pretrain.run(config, str(folder))
    assert (
        "Attention: blocked; fused is left out: there are none for a CPU; this run "
        "used fused so far, and goes on equal up to rounding"
    ) in capsys.readouterr().out
    used = [session["forms"] for session in read_sessions(folder / SESSIONS_FILE)]
    assert used[0]["attention"]["ms"] == {"blocked": 2.0, "fused": 1.0}
    assert [each["attention"]["form"] for each in used] == ["fused", "blocked"]
    assert read_metadata(epath.Path(folder), 8)["forms"]["attention"] == "blocked"


TRY = """
import dataclasses, os, sys, time
from types import SimpleNamespace
import jax
from gpt1_jax.config import load
from gpt1_jax.kernels import choice, find, trials
from gpt1_jax.ops.attention import causal_attention
from gpt1_jax.parallel import join
from gpt1_jax.runs import forms

cache, what = sys.argv[1:]
jax.config.update("jax_compilation_cache_dir", cache)
choice._STUCK_SECONDS = 20.0

def attention(*arguments):
    if what == "hangs":
        time.sleep(100)
    if what == "ends":
        os._exit(139)
    return causal_attention(*arguments)

def found(modules, *sizes):
    if "attention_gpu" in modules.values():
        return SimpleNamespace(attention=attention), ""
    return None, "there are none"

find.find_kernels = found
forms._may_have_kernels = lambda: True
mine = "JAX_PROCESS_ID" in os.environ and int(os.environ["JAX_PROCESS_ID"])
# By its own watch, each process would choose another form.
trials.Trial.seconds = lambda *_: (1.0, 2.0) if mine else (2.0, 1.0)
if "JAX_PROCESS_ID" in os.environ:
    join.initialize_processes("on", join.Waits())
import tiny
model, found = forms.choose_forms(tiny.MODEL, forms.Workload(2, 8, True))
forms.say_forms(found)
print("chosen:", model.attention_form, flush=True)
"""


@pytest.fixture
def try_it(tmp_path, model):
    """Starts a process that tries a kernel, which does as it is told."""
    made = f"from gpt1_jax.config import ModelConfig\nMODEL = {model!r}\n"
    (tmp_path / "tiny.py").write_text(made)
    script = f"import sys; sys.path.append({str(tmp_path)!r})\n{TRY}"

    def start(what="works", **variables):
        return start_script(script, tmp_path, what, **variables)

    return start


@pytest.mark.slow
@pytest.mark.parametrize(("what", "code"), [("hangs", EXIT_AGAIN), ("ends", 139)])
def test_a_kernel_that_hangs_or_ends_the_process_is_not_tried_again(
    try_it, cache, what, code
):
    start = time.monotonic()
    process = try_it(what)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == code, text
    assert ("gpt1_jax: stuck: the kernels for Attention" in text) == (what == "hangs")
    assert time.monotonic() - start < 90
    process = try_it("works")
    text, _ = process.communicate(timeout=60)
    assert "chosen: blocked" in text
    (file,) = cache.glob("attention-*.json")
    assert "it hung or ended the process that tried it on 20" in text
    assert f"(delete {file} to try it again)" in text
    file.unlink()
    text, _ = try_it("works").communicate(timeout=60)
    assert "chosen: fused" in text


@pytest.mark.slow
def test_all_processes_use_what_the_main_one_chose(try_it):
    joined = [try_it(**variables) for variables in addresses()]
    texts = [process.communicate(timeout=120)[0] for process in joined]
    assert all("chosen: fused" in text for text in texts), texts
