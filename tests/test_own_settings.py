"""Results do not depend on the settings of JAX in somebody's own process."""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_run import (
    SETTINGS,
    assert_same_run,
    load_config,
    longer_overrides,
    set_globally,
)

import gpt1_jax
from gpt1_jax.model.interventions import add, mean
from gpt1_jax.ops.settings import own_settings

ALL_SETTINGS = {**SETTINGS, "jax_disable_jit": True}
TEXT = "the abcd of efgh and a"
CALLS = {
    "load": lambda model, _: gpt1_jax.load(str(model.run.folder)).params,
    "forward": lambda model, _: model.forward(
        [TEXT, "ab"],
        ["h_0/out", "h_0/attn/probs"],
        {
            "h_0/attn/heads": mean(heads=1, words=[0, -1]),
            "h_0/mlp/out": add(np.ones(16), positions=[[3], [-1]]),
        },
    ),
    "mean_activations": lambda model, _: model.mean_activations([TEXT], ["h_0/out"]),
    "logits": lambda model, _: model.logits(TEXT),
    "next_tokens": lambda model, _: model.next_tokens(TEXT, 3),
    "log_probs": lambda model, _: model.log_probs([TEXT, TEXT * 9], "ab "),
    "hidden_states": lambda model, _: model.hidden_states(TEXT),
    "features": lambda model, _: model.features(TEXT * 9, 1),
    "attention": lambda model, _: model.attention(TEXT),
    "generate": lambda model, _: model.generate(
        [TEXT, "ab"],
        seed=3,
        do_sample=True,
        max_new_tokens=50,  # more than the cache holds at first, and the context
        temperature=0.9,
        top_p=0.9,
        min_p=0.001,
        repetition_penalty=1.1,
    ),
    "surprisal": lambda model, _: model.surprisal([TEXT, "ab cd\nef"]),
    "predict": lambda _, tuned: tuned.predict([TEXT, "ab"]),
}


@pytest.fixture(scope="module")
def models(pretrained, finetuned):
    return [gpt1_jax.load(str(folder)) for folder in (pretrained, finetuned)]


@pytest.mark.parametrize("call", CALLS)
def test_answers_are_those_without_settings(call, models, monkeypatch):
    """The same values of the same types, bit for bit."""
    expected = CALLS[call](*models)
    if call == "generate":  # JAX would not trace again for another kind of keys
        config = dataclasses.replace(models[0].config, embed_dropout=0.2)
        monkeypatch.setattr(models[0], "config", config)
    with set_globally(ALL_SETTINGS):
        found = CALLS[call](*models)
    found, expected = map(jax.tree.leaves_with_path, (found, expected))
    for (place, one), (other_place, other) in zip(found, expected, strict=True):
        assert place == other_place and type(one) is type(other)
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.slow
def test_runs_are_those_without_settings(
    pretrained, finetune_base, finetuned, corpus_dir, tmp_path
):
    pretraining = load_config(**longer_overrides(corpus_dir))
    finetuning = load_config("sst2", file="finetune", **finetune_base)
    for config in (pretraining, finetuning):
        config.train.matmul_precision = "highest"  # the same on a CPU
    with set_globally(ALL_SETTINGS):
        before = dict(jax.config.values)
        gpt1_jax.pretrain(pretraining, tmp_path / "one")
        gpt1_jax.finetune(finetuning, tmp_path / "two")
        assert jax.config.values == before
    for name, other in (("one", pretrained), ("two", finetuned)):
        assert_same_run(tmp_path / name, other, 12)


def test_the_callers_settings_are_put_back():
    """After an error, in the caller's own thread and in none but its own."""
    # Of the guard, the process's value is only kept for each direction.
    names = [*ALL_SETTINGS, "jax_transfer_guard_device_to_host"]

    def values():
        return [jax.config.values[name] for name in names]

    @own_settings()
    def inside():
        return values()

    own, elsewhere = inside(), []
    with set_globally(ALL_SETTINGS):
        theirs = values()
        with pytest.raises(RuntimeError), own_settings(), own_settings():
            assert values() == inside() == own
            thread = threading.Thread(target=lambda: elsewhere.append(values()))
            thread.start()
            thread.join()
            raise RuntimeError
        assert values() == theirs and elsewhere == [theirs]
        assert all(one != other for one, other in zip(theirs, own, strict=True))


def test_nothing_is_compiled_again_for_them():
    traced = []
    double = jax.jit(lambda x: traced.append(x) or x + x)
    double(jnp.float32(1))
    with own_settings():
        double(jnp.float32(1))
    with set_globally(ALL_SETTINGS), own_settings():
        double(np.float32(1))
    assert len(traced) == 1
