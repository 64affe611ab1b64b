"""The job that tells what updates read, and TrainingText behind it."""

import collections
import dataclasses
import functools
import shutil

import numpy as np
import pytest
from etils import epath
from tiny_run import job_config, stopped_after
from tiny_tasks import read_lines

import gpt1_jax
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import pretrain
from gpt1_jax.studies.batches import job as batches
from gpt1_jax.studies.batches.training_text import TrainingText
from gpt1_jax.studies.config import SAME_TEXT as NOW
from gpt1_jax.studies.config import TextConfig
from gpt1_jax.training import fit

STEPS = 12  # of 128 tokens each: more than an epoch


@pytest.fixture
def texts(corpus_dir, made_once):
    """The beginnings of the texts of the other runs."""

    def make(folder):
        folder.mkdir()
        for path in (corpus_dir / "texts").iterdir():
            lines = path.read_text().splitlines(keepends=True)[:6]
            (folder / path.name).write_text("".join(lines))

    return made_once("few-texts", make)


@pytest.fixture
def config(tiny_config, texts):
    return tiny_config(data__train=str(texts), data__valid_fraction=0.1)


@pytest.fixture
def fed(config, made_once):
    """A run that was stopped at step 5 and went on, and the tokens it was fed."""

    def make(folder):
        seen = {}
        original = fit.batches_on_devices

        def noted(run, first_step):
            for step, batch in enumerate(original(run, first_step), first_step):
                seen[step] = np.asarray(batch)
                yield batch

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fit, "batches_on_devices", noted)
            with stopped_after(5):
                pretrain.run(config, str(folder / "run"))
            pretrain.run(config, str(folder / "run"))
        np.savez(folder / "fed.npz", *(seen[step] for step in sorted(seen)))

    folder = made_once("fed", make)
    with np.load(folder / "fed.npz") as arrays:
        return folder / "run", list(arrays.values())


@pytest.fixture
def text(fed):
    """What the run has read."""
    return TrainingText(epath.Path(fed[0]), NOW)


@pytest.fixture
def tokenizer(fed):
    return gpt1_jax.load(str(fed[0])).tokenizer


def job(capsys, folder, **overrides):
    """What the job prints."""
    capsys.readouterr()
    batches.run(job_config("batches", init_from=str(folder), **overrides), "")
    return "".join(capsys.readouterr())


def test_each_update_read_what_the_loop_was_fed(fed, text, tokenizer):
    """Each document, encoded by itself, has these tokens at these places.

    No epoch reads a token twice.
    """
    folder, tokens = fed
    assert gpt1_jax.load(str(folder)).batches(4) == text.batch(4)
    assert text.num_steps == len(tokens) == STEPS
    newline, read = tokenizer.newline_id, collections.Counter()

    @functools.cache
    def document(name):
        lines = epath.Path(name).read_text().splitlines()
        return [token for line in lines for token in (*tokenizer.encode(line), newline)]

    crossing = 0
    for step, batch in enumerate(tokens, 1):
        records = text.batch(step)
        assert [record["row"] for record in records] == list(range(1, 9))
        for record, ids in zip(records, batch, strict=True):
            assert record["text"] == tokenizer.decode(ids.tolist())
            crossing += len(record["documents"]) > 1
            found = []
            for place in record["documents"]:
                name, first = place["document"], place["first_token"]
                numbers = range(first, first + place["num_tokens"])
                found += [document(name)[number] for number in numbers]
                read.update((record["epoch"], name, number) for number in numbers)
            assert found == ids.tolist()
    assert set(read.values()) == {1}
    assert min(read)[0] == 1 < max(read)[0]  # epochs
    assert crossing > 0 and document.cache_info().currsize > 5


def test_the_updates_of_a_passage_are_those_that_read_it(fed, text, tokenizer):
    """Found by looking at every window that the loop was fed."""
    _, tokens = fed
    line = text.batch(3)[4]["text"].split("\n")[0]
    passage = " ".join(line.split(" ")[1:3])
    ids = tokenizer.encode(passage)

    def holds(window):
        return any(
            window[at : at + len(ids)].tolist() == ids
            for at in range(len(window) - len(ids) + 1)
        )

    expected = [
        (step, row)
        for step, batch in enumerate(tokens, 1)
        for row, window in enumerate(batch, 1)
        if holds(window)
    ]
    places, records = text.find(passage)
    assert {record["place"] for record in records} <= set(range(1, places + 1))
    whole = [(r["step"], r["row"]) for r in records if r["part"] == "whole"]
    assert sorted(set(whole)) == expected and (3, 5) in whole
    for record in records:
        [place] = record["documents"]
        assert (place["num_tokens"] == len(ids)) == (record["part"] == "whole")
    name = text.batch(1)[0]["documents"][0]["document"]
    _, records = text.find(" ".join(epath.Path(name).read_text().split()[:60]))
    assert {"beginning", "middle", "end"} <= {record["part"] for record in records}


def test_the_command_prints_and_writes_the_same(fed, text, tmp_path, capsys):
    folder, _ = fed
    said = job(capsys, folder, steps=(2, 3))
    assert "update 2, row 1, epoch 1: " in said
    assert said.count("update 3, row ") == 8
    job(capsys, folder, steps=(2,), output=str(tmp_path / "read.jsonl"))
    records = read_lines(tmp_path / "read.jsonl")
    assert records == text.batch(2)
    passage = records[0]["text"].split("\n")[0].split(" ")[1]
    said = job(capsys, folder, passage=passage)
    assert f"in {STEPS} updates " in said and ", whole, " in said
    said = job(capsys, folder, passage="xyzzy plugh")
    assert "does not hold this passage, so no update read it" in said


def test_text_that_has_changed_is_refused_by_name(fed, text, texts, tmp_path):
    folder = epath.Path(fed[0])
    other = shutil.copytree(texts, tmp_path / "texts")
    moved = TextConfig(train=str(other), valid="", cache_dir=str(tmp_path / "cache"))
    there = TrainingText(folder, moved).batch(1)
    assert [r["text"] for r in there] == [r["text"] for r in text.batch(1)]
    (other / "3.txt").write_text((other / "3.txt").read_text() + "one more line\n")
    with pytest.raises(UserError, match=r"not what the run in .*3\.txt holds other"):
        TrainingText(folder, moved)
    (other / "3.txt").unlink()
    with pytest.raises(UserError, match=r"3\.txt is missing\); name that with"):
        TrainingText(folder, moved)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({}, r"config.steps=\(\) and config.passage='': set one"),
        ({"steps": (0,)}, r"has no update 0: .* from 1 to 12"),
        ({"steps": (13,)}, r"has no update 13"),
        ({"passage": "\x00"}, r"passage '.x00' has no tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_found_is_refused(fed, capsys, overrides, message):
    with pytest.raises(UserError, match=message):
        job(capsys, fed[0], **overrides)


def test_a_run_that_took_over_steps_knows_only_its_own(fed, config, tmp_path, capsys):
    folder, _ = fed
    longer = dataclasses.replace(
        config,
        init_from=str(folder),
        init_optimizer=True,
        train=dataclasses.replace(config.train, num_steps=16),
    )
    pretrain.run(longer, str(tmp_path / "longer"))
    with pytest.raises(UserError, match=r"from 13 to 16; those before were its origin"):
        job(capsys, tmp_path / "longer", steps=(12,))
    assert job(capsys, tmp_path / "longer", steps=(16,)).count("update 16, row") == 8
    (tmp_path / "config.json").write_text('{"job": "finetune"}')
    with pytest.raises(UserError, match=r"is no pre-training run"):
        job(capsys, tmp_path, steps=(1,))
