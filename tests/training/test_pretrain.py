import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from collectives import collectives
from tiny_run import assert_same_run, metrics_without_times, saved_state

from gpt1_jax.data import corpus as corpora
from gpt1_jax.data.shards import open_split
from gpt1_jax.model import costs, language_model
from gpt1_jax.model.context import Context
from gpt1_jax.parallel.mesh import batch_sharding, make_mesh, replicated
from gpt1_jax.training import loop, pretrain, run_folder, setup
from gpt1_jax.training.optimizer import skip_nonfinite
from gpt1_jax.training.records import read_metrics
from gpt1_jax.training.state import init_state
from gpt1_jax.training.validation import Validation


def make_step(model, *, accumulation_steps=1):
    """An unjitted step with a plain optimizer, and a state before it."""
    schedule = optax.constant_schedule(0.1)
    optimizer = skip_nonfinite(optax.sgd(schedule))
    step = pretrain.make_pretrain_step(
        model, optimizer, schedule, seed=5, accumulation_steps=accumulation_steps
    )
    params = language_model.init_params(model, jax.random.key(1))
    return step, init_state(params, optimizer)


def tokens_for(model, batch_size=8):
    shape = (batch_size, model.max_seq_len)
    return jax.random.randint(jax.random.key(2), shape, 0, model.vocab_size)


def losses_of(step, state, tokens, steps=4):
    losses = []
    for _ in range(steps):
        state, metrics = step(state, tokens)
        losses.append(metrics["loss"].item())
    return np.asarray(losses), state


def assert_close_trees(one, other, atol=2e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), one, other)


def test_step_loss_is_the_mean_over_predicted_tokens(tiny_model_config):
    model = tiny_model_config(embed_dropout=0.0, attn_dropout=0.0, resid_dropout=0.0)
    step, state = make_step(model)
    tokens = tokens_for(model)
    output = language_model.apply(model, state.params, tokens)
    nll = language_model.next_token_nll(model, output, tokens)
    expected = np.asarray(nll)[:, :-1].mean()
    np.testing.assert_allclose(step(state, tokens)[1]["loss"], expected, rtol=1e-6)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_step_lowers_for_accelerators(tiny_model_config, platform):
    """Ahead of time, without one: their products write what they read, bfloat16."""
    model = tiny_model_config(dtype="bfloat16", mlp_dim=64)
    step, state = make_step(model)
    tokens = tokens_for(model, 4)
    traced = jax.jit(step).trace(state, tokens)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    to_bfloat16 = [line for line in products if line.endswith("xbf16>")]
    assert len(to_bfloat16) > len(products) / 2
    assert "tensor<128x32xbf16>" in text, "97 softmax rows are filled up to 128"
    on_cpu = jax.jit(step).lower(state, tokens).as_text()
    assert "tensor<128x32xbf16>" not in on_cpu


@pytest.mark.parametrize(
    "ways", [{}, {"loss_chunk": 5}, {"dtype": "bfloat16"}], ids=str
)
def test_eight_devices_train_as_one_does(tiny_model_config, ways):
    model = tiny_model_config(**ways)
    tokens = tokens_for(model)
    results = []
    for devices in (jax.devices(), jax.devices()[:1]):
        step, state = make_step(model)
        mesh = make_mesh(devices)
        everywhere, split = replicated(mesh), batch_sharding(mesh)
        jitted = jax.jit(
            step, in_shardings=(everywhere, split), out_shardings=everywhere
        )
        results.append(losses_of(jitted, state, np.asarray(tokens)))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    assert_close_trees(results[0][1].params, results[1][1].params)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "ways",
    [
        {},
        {"attention_impl": "plain", "dtype": "bfloat16"},
        {"layer_loop": "scan", "remat": True, "loss_chunk": 5, "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_devices_exchange_gradients_and_nothing_else(tiny_model_config, ways, parts):
    model = tiny_model_config(**ways)
    step, state = make_step(model, accumulation_steps=parts)
    jitted = setup.jit_step(step, make_mesh())
    assert collectives(jitted, state, tokens_for(model, 16)) == {"all-reduce"}


@pytest.mark.parametrize("parts", [2, 8])
@pytest.mark.parametrize("dropout_on", ["sum", "matrix", "lookups"])
def test_accumulated_parts_equal_the_whole_batch(tiny_model_config, parts, dropout_on):
    model = tiny_model_config(embed_dropout_on=dropout_on)
    tokens = tokens_for(model)
    whole, state = make_step(model)
    in_parts, _ = make_step(model, accumulation_steps=parts)
    expected, expected_state = losses_of(jax.jit(whole), state, tokens)
    actual, actual_state = losses_of(jax.jit(in_parts), state, tokens)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert_close_trees(actual_state.params, expected_state.params)


@pytest.mark.parametrize(
    ("memory_sequences", "parts"), [(1000, 1), (8.5, 1), (4.5, 2), (1.5, 8), (0.1, 8)]
)
def test_the_batch_is_cut_as_memory_asks(
    tiny_config, tiny_model_config, monkeypatch, memory_sequences, parts
):
    model = tiny_model_config()
    needed = costs.train_activation_bytes(model)
    memory = memory_sequences * needed / setup._MEMORY_SHARE
    monkeypatch.setattr(setup.devices, "memory_bytes", lambda: int(memory))
    mesh = make_mesh(jax.devices()[:1])
    chosen = setup.accumulation_steps(tiny_config().train, model, mesh)
    assert chosen == parts
    given = tiny_config(train__accumulation_steps=4)
    assert setup.accumulation_steps(given.train, model, mesh) == 4


def test_dropout_draws_anew_each_step_from_seed_and_step_alone(tiny_model_config):
    step, state = make_step(tiny_model_config())
    step = jax.jit(step)
    tokens = tokens_for(tiny_model_config())
    same = step(state, tokens)[1]["loss"].item()
    assert step(state, tokens)[1]["loss"].item() == same
    later = state._replace(step=jnp.int32(1))
    assert step(later, tokens)[1]["loss"].item() != same


def test_the_step_is_compiled_once(tiny_config, tmp_path, monkeypatch):
    traces = []
    original = language_model.apply

    def counted(model, params, tokens, context=Context()):
        if context.noise is not None:
            traces.append(tokens.shape)
        return original(model, params, tokens, context)

    monkeypatch.setattr(language_model, "apply", counted)
    pretrain.run(tiny_config(), str(tmp_path))
    assert len(traces) == 1


def test_a_run_learns_and_writes_its_folder(tiny_config, tmp_path, capsys):
    config = tiny_config(train__num_steps=60, optimizer__learning_rate=1e-2)
    pretrain.run(config, str(tmp_path))
    records = read_metrics(tmp_path / "metrics.jsonl")
    valid = [r["valid_loss"] for r in records if "valid_loss" in r]
    assert len(valid) == 15 and valid[-1] < valid[0] - 0.3
    last = [r for r in records if "valid_loss" in r][-1]
    assert last["valid_perplexity"] == pytest.approx(np.exp(last["valid_loss"]))
    assert last["valid_bits_per_word"] == pytest.approx(
        last["valid_nats_per_word"] / np.log(2)
    )
    steps = [r["step"] for r in records if "loss" in r]
    assert steps == list(range(2, 61, 2))
    for name in ("config.json", "tokenizer/tokenizer.json", "plots/loss.png"):
        assert (tmp_path / name).exists()
    out = capsys.readouterr().out
    assert "Done: 60 steps" in out and "validation loss" in out and "  | " in out


@pytest.mark.parametrize(
    "overrides",
    [
        {"model__dtype": "bfloat16", "model__remat": True},
        {"model__layer_loop": "scan", "train__accumulation_steps": 1},
        {
            "model__embed_dropout_on": "matrix",
            "model__softmax_rows": "tokens+positions",
        },
        {"model__attention_impl": "plain", "optimizer__name": "adamw"},
        {"optimizer__schedule": "cosine_after_warmup", "log__profile_steps": 1},
    ],
    ids=lambda overrides: next(iter(overrides)),
)
def test_every_option_trains(tiny_config, tmp_path, overrides):
    config = tiny_config(
        **overrides, train__num_steps=4, log__every_steps=1, log__profile_first_step=3
    )
    pretrain.run(config, str(tmp_path))
    losses = [
        r["loss"] for r in read_metrics(tmp_path / "metrics.jsonl") if "loss" in r
    ]
    assert len(losses) == 4 and all(5.0 < loss < 5.6 for loss in losses)
    traced = list((tmp_path / "profile").rglob("*.xplane.pb"))
    assert len(traced) == config.log.profile_steps


def test_the_order_of_layers_and_rematerialisation_may_change_on_resume(
    tiny_config, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(loop.Stopped):
            pretrain.run(tiny_config(), str(tmp_path))
    pretrain.run(
        tiny_config(model__layer_loop="scan", model__remat=True), str(tmp_path)
    )
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["step"] == 12


def stop_after(monkeypatch, last_step):
    """Makes the loop believe that a signal came during `last_step`."""
    monkeypatch.setattr(
        loop.StopSignal, "requested", lambda self, step: step == last_step
    )


@pytest.mark.parametrize("last_step", [3, 4, 11])
def test_resumed_equals_uninterrupted_bit_for_bit(
    tiny_config, tmp_path, monkeypatch, last_step
):
    config = tiny_config()
    pretrain.run(config, str(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        stop_after(patch, last_step)
        with pytest.raises(loop.Stopped, match=f"step {last_step} is saved"):
            pretrain.run(config, str(tmp_path / "stopped"))
    assert read_metrics(tmp_path / "stopped/metrics.jsonl")[-1]["step"] <= last_step
    pretrain.run(config, str(tmp_path / "stopped"))
    assert_same_run(tmp_path / "whole", tmp_path / "stopped", 12)


def test_a_relative_run_folder_serves_as_well(tiny_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pretrain.run(tiny_config(), "runs/tiny")
    assert (tmp_path / "runs/tiny/checkpoints/12/manifest.json").exists()


def test_running_a_finished_run_again_changes_nothing(tiny_config, tmp_path):
    pretrain.run(tiny_config(), str(tmp_path))
    before = saved_state(tmp_path, 12), metrics_without_times(tmp_path)
    pretrain.run(tiny_config(), str(tmp_path))
    after = saved_state(tmp_path, 12), metrics_without_times(tmp_path)
    np.testing.assert_equal(after, before)


def test_seeds_differ(tiny_config, tmp_path):
    for seed in (0, 1):
        config = tiny_config(seed=seed, train__num_steps=4)
        pretrain.run(config, str(tmp_path / str(seed)))
    one, other = (read_metrics(tmp_path / s / "metrics.jsonl")[0] for s in "01")
    assert one["loss"] != other["loss"]


def test_another_configuration_or_corpus_is_refused(tiny_config, tmp_path, corpus_dir):
    pretrain.run(tiny_config(), str(tmp_path))
    before = saved_state(tmp_path, 12)
    for overrides, message in (
        ({"seed": 1}, "config.seed is 1, saved 0"),
        ({"model__embed_dim": 32}, "config.model.embed_dim is 32, saved 16"),
        ({"train__num_steps": 20}, "config.train.num_steps is 20, saved 12"),
        ({"tokenizer__vocab_size": 150}, "config.tokenizer.vocab_size is 150"),
    ):
        with pytest.raises(ValueError, match=message):
            pretrain.run(tiny_config(**overrides), str(tmp_path))
    changed = corpus_dir / "texts" / "extra.txt"
    changed.write_text("abc def ghi. " * 50)
    try:
        with pytest.raises(ValueError, match=r"(tokenizer|corpus) of this run"):
            pretrain.run(tiny_config(), str(tmp_path))
    finally:
        changed.unlink()
    np.testing.assert_equal(saved_state(tmp_path, 12), before)


def poison(monkeypatch, steps):
    """Makes the loss of the given steps NaN."""
    original = language_model.next_token_loss
    make = pretrain.make_pretrain_step

    def poisoned_make(*args, **kwargs):
        step = make(*args, **kwargs)

        def poisoned(state, tokens):
            bad = jnp.isin(state.step, jnp.asarray(steps))
            factor = jnp.where(bad, jnp.nan, 1.0)
            monkeypatch.setattr(
                language_model, "next_token_loss", lambda *a: original(*a) * factor
            )
            return step(state, tokens)

        return poisoned

    monkeypatch.setattr(pretrain, "make_pretrain_step", poisoned_make)


def test_a_nonfinite_loss_is_skipped_and_counted(tiny_config, tmp_path, monkeypatch):
    poison(monkeypatch, [5, 6])
    pretrain.run(tiny_config(log__every_steps=1), str(tmp_path))
    records = {
        r["step"]: r for r in read_metrics(tmp_path / "metrics.jsonl") if "loss" in r
    }
    assert np.isnan(records[6]["loss"]) and np.isnan(records[7]["loss"])
    assert [records[s]["nonfinite_in_row"] for s in (5, 6, 7, 8)] == [0, 1, 2, 0]
    assert records[12]["nonfinite_steps"] == 2
    assert np.isfinite(records[12]["loss"])
    # the schedule waits: update 6 of the schedule is done at step 8
    assert records[8]["learning_rate"] == records[6]["learning_rate"]


def test_too_many_nonfinite_losses_stop_the_run_before_harm(
    tiny_config, tmp_path, monkeypatch
):
    poison(monkeypatch, list(range(5, 100)))
    config = tiny_config(train__max_nonfinite_steps=3, train__num_steps=40)
    with pytest.raises(FloatingPointError, match=r"3 updates in a row up to step 8"):
        pretrain.run(config, str(tmp_path))
    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir())
    assert kept == [4]
    assert all(np.isfinite(leaf).all() for leaf in saved_state(tmp_path, 4).values())


def test_validation_counts_every_token_once(tiny_config):
    config = tiny_config()
    corpus, tokenizer = corpora.prepare(config.data, config.tokenizer, progress=False)
    model = config.model_config(tokenizer.vocab_size)
    params = language_model.init_params(model, jax.random.key(0))
    mesh = make_mesh()
    loss = Validation(
        model, config.eval, corpus, tokenizer, mesh, 0, print
    ).validation_loss(params, loop.StopSignal())
    tokens = open_split(corpus, "valid").read(0, corpus.valid.tokens).astype(np.int32)
    total, seq_len = 0.0, model.max_seq_len
    for start in range(0, len(tokens) - 1, seq_len - 1):
        window = jnp.asarray(tokens[None, start : start + seq_len])
        output = language_model.apply(model, params, window)
        total += float(language_model.next_token_nll(model, output, window).sum())
    assert loss == pytest.approx(total / (len(tokens) - 1), rel=1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train__batch_size": 12}, r"train.batch_size=12 .* 8 devices.*=16"),
        ({"eval__batch_size": 3}, r"eval.batch_size=3 .* 8 devices.*=8"),
        ({"model__max_seq_len": 100_000}, r"train split holds .* at least 199999"),
        ({"optimizer__warmup_steps": 12}, r"12 updates .*warmup_steps=12"),
        ({"eval__sample_prompt": "abc " * 40}, r"sample_prompt takes .* no room"),
        ({"data__train": "no/such/*.txt"}, r"config.data.train: 'no/such/\*.txt'"),
        ({"tokenizer__vocab_size": 9000}, r"vocab_size=9000 is too large"),
        ({"tokenizer__path": "no/such"}, r"no/such"),
    ],
)
def test_bad_input_is_refused_before_any_step(
    tiny_config, tmp_path, monkeypatch, overrides, message
):
    monkeypatch.setattr(pretrain, "_jit_step", lambda *a: pytest.fail("it started"))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain.run(tiny_config(**overrides), str(tmp_path))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_folder_that_cannot_be_written_is_refused(tiny_config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match=r"--workdir=DIR"):
        pretrain.run(tiny_config(), str(tmp_path / "file" / "run"))


def test_the_paper_preset_warns_of_the_builtin_corpus(tmp_path, monkeypatch, capsys):
    from tiny_run import load_config

    from gpt1_jax.config import from_config_dict

    def stop(*args, **kwargs):
        raise ValueError("far enough")

    monkeypatch.setattr(corpora, "prepare", stop)
    with pytest.raises(ValueError, match="far enough"):
        pretrain.run(from_config_dict(load_config("paper").to_dict()), str(tmp_path))
    out = capsys.readouterr().out
    assert "WARNING" in out and "--config.data.source=text" in out


def test_identity_names_the_part_that_differs(tiny_config):
    config = tiny_config()
    corpus, tokenizer = corpora.prepare(config.data, config.tokenizer, progress=False)
    mine = run_folder.Identity(
        config.to_dict(), tokenizer.fingerprint, corpus.fingerprint
    )
    mine.check(mine.metadata(3))
    for name in ("tokenizer", "corpus"):
        with pytest.raises(ValueError, match=f"The {name} of this run"):
            mine.check({**mine.metadata(3), name: "0" * 16})
