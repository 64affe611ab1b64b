"""Converted models on the Hub: the real client pushes to a small server."""

import io
import math
import os
import shutil
import sys
from pathlib import Path

import huggingface_hub
import pytest
from etils import epath
from hub_server import serve_hub, use_hub
from huggingface_hub import constants
from other_formats import assert_same_params
from tiny_run import job_config, metrics_without_times

from gpt1_jax import addresses
from gpt1_jax.errors import TryAgain, UserError
from gpt1_jax.interop import hugging_face
from gpt1_jax.jobs import convert
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.signals import Stopped

NAME = "people/gpt"
# The client's own, as it uploads a file.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A Hub without models, and a machine with a token that may write."""
    with serve_hub(tmp_path / "pushed") as server:
        use_hub(server, tmp_path, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "secret")
        yield server


def push(origin, target, **overrides):
    values = {"push_to": f"hf://{NAME}", "push_confirm": True, "step": "all"}
    values |= {"init_from": str(origin), **overrides}
    preset = values.pop("preset", "huggingface")
    convert.run(job_config("convert", preset, **values), str(target))


def refusal(*arguments, error=UserError, **overrides):
    with pytest.raises(error) as caught:
        push(*arguments, **overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def made(pretrained, made_once, tmp_path, server):
    """What the command has converted, not yet pushed; the converting is done once."""

    def make(folder):
        refusal(pretrained, folder / "all", push_confirm=False)

    target = tmp_path / "made"
    shutil.copytree(made_once("to_push", make) / "all", target)
    server.requests.clear()
    return target


def sent(server):
    """The requests that change something."""
    changing = [each for each in server.requests if each.startswith(("POST", "PUT"))]
    return [each for each in changing if "validate-yaml" not in each]


def files(folder):
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }
    return {name: found[name] for name in found if name != ".gitattributes"}


def test_steps_become_branches_that_are_read_back_bit_for_bit(
    server, made, pretrained, capsys
):
    push(pretrained, made)
    assert set(server.models[NAME]) == {"step8", "step12", "main"}
    assert NAME in server.private
    for branch, step in {"step8": 8, "step12": 12, "main": 12}.items():
        assert files(server.models[NAME][branch]) == files(made / f"step-{step}")
        address = f"hf://{NAME}@{branch}"
        folder = addresses.resolve_model(address, as_run=False)
        params = hugging_face.read_model(epath.Path(folder))[1]
        assert_same_params(params, open_run(str(pretrained), step).params)
        card = (server.models[NAME][branch] / "README.md").read_text()
        assert f'from_pretrained("{NAME}", revision="step{step}")' in card
        assert f"--config.init_from=hf://{NAME}@step{step} --workdir" in card
    assert "Branch step8 is commit " in capsys.readouterr().out


def test_what_convert_did_not_write_stays_here(server, made, pretrained, capsys):
    (made / "step-8" / "notes.txt").write_text("secret")
    (made / "step-8" / "README.md").write_text("---\nlicense: mit\n---\n\nMine.")
    push(pretrained, made)
    there = files(server.models[NAME]["step8"])
    assert "notes.txt" not in there and b"Mine." in there["README.md"]
    said = capsys.readouterr().out
    assert "Left out, as convert did not write it: step-8/notes.txt" in said
    assert "Edited since convert wrote it: step-8/README.md" in said


def test_one_model_goes_to_main_with_licence_language_and_scores(
    server, pretrained, finetuned, tmp_path
):
    """In public if that is said; its card is the Hub's."""
    about = {"push_license": "mit", "push_language": ("de", "fr"), "step": "default"}
    push(pretrained, tmp_path / "one", push_private=False, **about)
    assert set(server.models[NAME]) == {"main"} and NAME not in server.private
    there = files(server.models[NAME]["main"])
    assert there.keys() == files(tmp_path / "one").keys() - {".push.json"}
    for content in there.values():  # the run folder's path is nobody's business
        assert os.fsencode(pretrained) not in content
    push(finetuned, tmp_path / "two", **about, push_to="hf://me/sst2")
    cards = [
        huggingface_hub.ModelCard.load(server.models[name]["main"] / "README.md")
        for name in (NAME, "me/sst2")
    ]
    loss = metrics_without_times(pretrained)[-1]["valid_loss"]
    expected = ("text-generation", "perplexity"), ("text-classification", "accuracy")
    for card, (task, metric) in zip(cards, expected, strict=True):
        data = card.data
        assert (data.license, data.language) == ("mit", ["de", "fr"])
        assert data.library_name == "transformers" and "gpt-1" in data.tags
        (score,) = data.eval_results
        assert data.pipeline_tag == score.task_type == task
        assert score.metric_type == metric
    perplexity = cards[0].data.eval_results[0].metric_value
    assert perplexity == pytest.approx(math.exp(loss))
    assert f'from_pretrained("{NAME}")' in cards[0].content
    assert f"--config.init_from=hf://{NAME}" in cards[0].content


def test_nothing_is_sent_without_a_yes(server, made, pretrained, capsys):
    said = refusal(pretrained, made, push_confirm=False)
    assert "--config.push_confirm=True" in said and str(made) in said
    listed = capsys.readouterr().out
    size = (made / "step-8" / "model.safetensors").stat().st_size
    assert f"model.safetensors ({size:,} bytes)" in listed
    assert f"{NAME}, a new repository, private; licence not said" in listed
    assert "branch step8 (new), from" in listed
    assert not sent(server) and not server.models


@pytest.mark.parametrize("answer", ["yes\n", ""])
def test_a_terminal_is_asked(server, made, pretrained, monkeypatch, capsys, answer):
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    push(pretrained, made, push_confirm=False)
    said = capsys.readouterr().out
    assert "Push this? [y/N]" in said
    assert bool(server.models) == (answer == "yes\n") == ("Nothing was" not in said)


def test_an_interrupted_push_goes_on(server, made, pretrained, monkeypatch, capsys):
    server.answers["commit/step12"] = 500
    assert "the Hub does not answer" in refusal(pretrained, made, error=TryAgain)
    assert set(server.models[NAME]) == {"main", "step8", "step12"}

    def stop(*arguments, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub.HfApi, "create_commit", stop)
        assert "interrupted while pushing" in refusal(pretrained, made, error=Stopped)
    server.answers.clear()
    push(pretrained, made)
    assert files(server.models[NAME]["step12"]) == files(made / "step-12")
    uploads = [each for each in server.requests if each.startswith("PUT")]
    assert len(uploads) == len(set(uploads)) == 2
    assert server.requests.count(f"POST /api/models/{NAME}/commit/step8") == 1
    server.requests.clear()
    capsys.readouterr()
    push(pretrained, made)
    assert not [each for each in sent(server) if "/commit/" in each or "PUT" in each]
    listed = capsys.readouterr().out
    assert "branch step8 (whose files of these names are REPLACED), from" in listed


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"push_to": "hf://people/a..b"}, "must be hf://ORG/NAME"),
        ({"push_to": f"hf://{NAME}@main"}, "without a revision: the model goes to"),
        ({"preset": "openai"}, "choose configs/convert.py:huggingface"),
        ({"push_to": "hf://others/gpt"}, "hf://me/NAME, hf://people/NAME"),
        ({"token": ""}, "needs a token that may write there: set HF_TOKEN"),
        ({"token": "wrong"}, "is refused (401): the token may not write there"),
        ({"token": "reader"}, "that of 'me' may only read"),
        ({"push_license": "gpl-99"}, 'card ("license" must be one of'),
        ({"push_language": ("english",)}, "codes of ISO 639 such as en"),
    ],
    ids=str,
)
def test_what_cannot_be_pushed_is_one_line_before_any_work(
    server, tmp_path, monkeypatch, overrides, message
):
    values = {"token": "secret", **overrides}
    monkeypatch.setenv("HF_TOKEN", values.pop("token"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert message in refusal("no such run", tmp_path / "out", **values)
    assert not (tmp_path / "out").exists() and not sent(server)


def test_without_the_hub_nothing_is_done(server, tmp_path, monkeypatch):
    server.stop()
    said = refusal("no such run", tmp_path / "out", error=TryAgain)
    assert "the Hub does not answer" in said and "Connection refused" in said
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal("no such run", tmp_path / "out")


def test_what_is_there_decides_whether_one_may_push(server, made, pretrained):
    push(pretrained, made)
    server.private.clear()
    said = refusal(pretrained, made)
    assert "is a public repository; push to it with --config.push_private=False" in said
    config = server.models[NAME]["main"] / "config.json"
    config.write_text('{"model_type": "gpt2"}')
    said = refusal(pretrained, made, push_private=False)
    assert "holds a model of the type 'gpt2'" in said
    server.answers["repos/create"] = 403  # a token for some repositories
    said = refusal(pretrained, made, push_to="hf://me/gpt")
    assert "was made with config.push_to='hf://people/gpt', not 'hf://me/gpt'" in said


@pytest.mark.parametrize(
    ("request_line", "answer"),
    [("whoami", {"name": "me", "orgs": [{}]}), ("/refs", {}), ("commit/main", {})],
)
def test_an_odd_answer_of_the_hub_is_one_line(
    server, made, pretrained, request_line, answer
):
    if request_line == "/refs":  # which are of a repository that is there
        push(pretrained, made)
    server.answers[request_line] = answer
    said = refusal(pretrained, made, error=TryAgain)
    assert "config.push_to='hf://people/gpt': the Hub's answer is odd (" in said


def test_a_folder_that_changed_or_is_of_another_command_is_refused(
    server, made, pretrained, tmp_path
):
    """So is an edited card of any branch that the Hub does not take."""
    (made / "step-8" / "README.md").write_text("---\nlicense: gpl-99\n---\n")
    assert 'card ("license" must be one of' in refusal(pretrained, made)
    said = refusal(pretrained, made, push_license="mit")
    assert "was made with config.push_license='', not 'mit'" in said
    (made / "step-8" / "model.safetensors").write_bytes(b"other")
    said = refusal(pretrained, made)
    assert "model.safetensors was changed or removed since convert wrote it" in said
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").touch()
    with pytest.raises(FileExistsError, match=r"holds README.md, and nothing there"):
        push(pretrained, tmp_path / "mine")
    assert not sent(server)
