"""The jobs as functions: docs/library.md as printed, and what scripts do wrong."""

import json
import re
import shlex
import shutil
import subprocess

import numpy as np
import pytest
from etils import epath
from tiny_run import ROOT, SETTINGS, as_flags, load_config, set_globally, tiny_overrides
from tiny_tasks import write_lines

import gpt1_jax
from gpt1_jax import scripting
from gpt1_jax.errors import UserError
from gpt1_jax.runs.run_folder import RunFolder

PAGE = (ROOT / "docs" / "library.md").read_text()


def example(heading, language="python"):
    """The code below a heading of the page."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)[1]


@pytest.fixture
def here(pretrained, tmp_path, monkeypatch):
    """A working folder with two runs."""
    for name in ("quickstart", "lstm"):
        shutil.copytree(pretrained, tmp_path / "runs" / "pretrain" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(heading, printed="", instead=""):
    code = example(heading).replace(printed, instead)
    exec(compile(code, heading, "exec"), {})


def test_two_models_are_compared(here, capsys):
    run("Score a text with two models")
    one, other = capsys.readouterr().out.splitlines()
    assert one.startswith("runs/pretrain/quickstart: ") and "bits per word" in other


def write_tickets(path, seed):
    rng = np.random.default_rng(seed)
    teams = ("hardware", "billing") * 32
    subjects = [" ".join(rng.choice([team, "the", "fox", "dog"], 5)) for team in teams]
    write_lines(
        path,
        [
            {"subject": subject, "body": f"the {team} fox", "team": team}
            for team, subject in zip(teams, subjects, strict=True)
        ],
    )


def test_a_table_is_learnt_and_labels_are_given(here, capsys):
    write_tickets(here / "tickets.jsonl", 0)
    write_tickets(here / "held_out.jsonl", 1)
    run("Fine-tune on your table, and label")
    said = capsys.readouterr().out
    assert re.search(r"accuracy [01]\.\d+, in .*runs/finetune/tickets\n", said)
    assert re.search(r"(hardware|billing) \{'billing': 0\.\d+, 'hardware': ", said)
    model = gpt1_jax.load("runs/finetune/tickets")
    as_row = {"subject": "no power", "body": "the lamp stays dark"}
    pair = tuple(as_row.values())
    assert model.predict([pair]) == model.predict([as_row]) and not model.predict([])
    with pytest.raises(UserError, match=r"texts\[0\] holds 1 texts; .* subject, body"):
        model.predict(["one text"])
    texts = {"subject": "a", "body": "b"}
    lines = [
        {"id": str(number), "text": texts, "prediction": name, "label": "billing"}
        | {"probabilities": {"billing": 0.2, "hardware": share}}
        for number, (name, share) in enumerate(
            (("hardware", 0.6), ("billing", 0.1), ("hardware", 0.8))
        )
    ]
    write_lines(here / "runs/finetune/tickets/predictions/dev.jsonl", lines)
    errors = scripting.RunResult("runs/finetune/tickets", {}).errors
    assert errors.to_dict("records") == [
        {"id": number, **texts, "label": "billing", "prediction": "hardware"}
        | {"confidence": share, "P(billing)": 0.2, "P(hardware)": share}
        for number, share in (("2", 0.8), ("0", 0.6))
    ]
    model.save("runs/copy")
    assert gpt1_jax.load("runs/copy").predict([pair]) == model.predict([pair])


def test_a_loop_of_ones_own_makes_a_run_folder(here, capsys):
    (here / "letters.txt").write_text("the quick fox and the dog\n" * 60)
    heading = "A training loop of your own"
    with set_globally({**SETTINGS, "jax_transfer_guard": "allow"}):
        run(heading, "range(1, 201)", "range(1, 51)")
    said_first = capsys.readouterr().out
    shutil.rmtree("runs/letters")
    run(heading)
    said = capsys.readouterr().out
    assert said_first and said.startswith(said_first)
    losses = [float(line.split()[1]) for line in said.splitlines()]
    assert len(losses) == 4 and losses[-1] < losses[0]
    lines = example(heading).partition("model = ")[2].splitlines()
    assert len(lines) <= 20
    made, origin = (
        gpt1_jax.load(f"runs/{name}") for name in ("letters", "pretrain/quickstart")
    )
    text = "the quick fox"
    assert made.log_probs(text).sum() > origin.log_probs(text).sum()


@pytest.mark.slow
def test_attention_is_changed_in_a_copy_of_the_core(here, corpus_dir):
    """What the page prints, on the copy's own modules; behind, a tiny model's flags."""
    code = example("A change of the model", "bash")
    folder = here / "checkout" / "made"
    code = code.replace("tests/core.py ../mygpt", f"{ROOT}/tests/core.py {folder}")
    code = code.replace("cd ../mygpt", f"cd {folder}").rstrip()
    tiny = tiny_overrides(corpus_dir) | {"train.num_steps": 2, "eval.max_batches": 1}
    tiny |= {"data.cache_dir": here, "optimizer.warmup_steps": 1}
    for name in ("data.source", "data.train", "log.tensorboard", "eval.sample_tokens"):
        del tiny[name]  # the copied recipe has its own
    flags = shlex.join(as_flags(tiny))
    env_free = f"env --unset=PYTHONPATH bash -euc {shlex.quote(f'{code} {flags}')}"
    done = subprocess.run(env_free, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    changed = (folder / "gpt1_jax/ops/attention.py").read_text()
    assert changed.count("return (key <= query) & (query - key < 32)") == 1
    said = done.stdout + done.stderr
    assert said.count("No sampled text: that needs gpt1_jax.inference, which") == 1
    assert "Done: 2 steps, in " in said


def test_a_model_is_pre_trained_and_continues(corpus_dir, tmp_path, capsys):
    config = gpt1_jax.defaults("pretrain:quickstart")
    config.update_from_flattened_dict(tiny_overrides(corpus_dir))
    result = gpt1_jax.pretrain(config, str(tmp_path / "run"))
    assert result.folder == str(tmp_path / "run") and result.scores["step"] == 12
    assert result.model.run.step == 12
    with pytest.raises(UserError, match="labels need a fine-tuned one"):
        result.model.predict(["a text"])
    assert gpt1_jax.pretrain(config, tmp_path / "run") == result
    assert "Nothing to do" in capsys.readouterr().out


def test_scores_are_those_of_the_runs_asked_for(tmp_path, monkeypatch):
    """Whatever else the folder holds, from before or of commands that share it."""
    folder = epath.Path(tmp_path)
    monkeypatch.setattr(scripting, "_run", lambda *_: RunFolder(folder))
    by_seed = [{"seed": seed} for seed in range(4)]
    everything = {"sst2": {"pretrained": by_seed}, "rte": {"pretrained": by_seed}}
    for name, held in (("results", by_seed[0]), ("all_results", everything)):
        (tmp_path / f"{name}.json").write_text(json.dumps(held))
    config = gpt1_jax.defaults("finetune:sst2")
    assert gpt1_jax.finetune(config).scores == by_seed[0]
    config.seeds = (0, 2)
    own = {"pretrained": [by_seed[0], by_seed[2]]}
    assert gpt1_jax.finetune(config).scores == {"sst2": own}
    config.tasks = ("all",)
    assert gpt1_jax.finetune(config).scores == {"sst2": own, "rte": own}


def test_defaults_and_mistakes_are_those_of_the_command(tmp_path):
    for job, preset in (("pretrain", "small"), ("finetune", "custom")):
        assert gpt1_jax.defaults(f"{job}:{preset}") == load_config(preset, file=job)
    with pytest.raises(UserError, match=r"no job 'pretran'; there are .*pretr"):
        gpt1_jax.defaults("pretran")
    with pytest.raises(UserError, match=r"has no preset 'smal'.*Did you mean small"):
        gpt1_jax.defaults("pretrain:smal")
    config = gpt1_jax.defaults("finetune:sst2")
    with pytest.raises(UserError, match=r"name its folder with --config\.init_from"):
        gpt1_jax.finetune(config, str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"config\.job='finetune', but this is .*pretr"):
        gpt1_jax.pretrain(config)
    config.init_from = str(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        gpt1_jax.finetune(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
