"""What makes a run the same run, on all its processes."""

import json
import re

import pytest
from etils import epath
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.config.saved import saved_values
from gpt1_jax.data.files import write_json
from gpt1_jax.errors import UserError
from gpt1_jax.formats import RUN_FOLDER
from gpt1_jax.runs import resume
from gpt1_jax.runs.folder import has_begun
from gpt1_jax.runs.resume import (
    Identity,
    begin_run,
    changed_keys,
    differing_documents,
    refuse_changes,
)


def paper(**overrides):
    return config_lib.load(load_config("paper", **overrides).to_dict())


def test_changed_keys_name_what_makes_another_run():
    """The page of keys says of each whether it may change."""
    saved = json.loads(json.dumps(paper().to_dict()))
    free = paper(eval__every_steps=3, model__remat=True, data__num_workers=1)
    assert not changed_keys(saved, free.to_dict())
    other = {"data.tfds_data_dir": "elsewhere", "model.num_layers": 2, "seed": 7}
    assert changed_keys(saved, paper(**other).to_dict()) == {
        "data.tfds_data_dir": ("", "elsewhere"),  # with the same content
        "model.num_layers": (12, 2),
        "seed": (0, 7),
    }


def test_a_longer_run_is_shown_the_way():
    saved = json.loads(json.dumps(paper().to_dict()))
    longer = paper(train__num_epochs=200.0).to_dict()
    with pytest.raises(UserError, match=r"saved 100.0\. Use .*init_from=FOLDER"):
        refuse_changes(saved, longer, "here")
    del saved["init_optimizer"], longer["init_optimizer"]  # a job that has no such key
    for other in (longer, paper(seed=3).to_dict()):
        with pytest.raises(UserError, match=r"another configuration: .* new run\.$"):
            refuse_changes(saved, other, "here")


def text(train, **overrides):
    return paper(data__source="text", data__train=train, **overrides).to_dict()


def identity(**changes):
    digests = {"text": "t" * 64, "dev examples": "d" * 64, "origin": "o" * 64}
    values = {"tokenizer": "k" * 64, "digests": digests}
    return Identity(**{"config": paper().to_dict(), **values, **changes})


def test_identity_names_the_part_that_differs(tmp_path):
    def refused(now, saved, says):
        with pytest.raises(UserError, match=says):
            now.check(saved.metadata(3), tmp_path)

    mine = identity()
    mine.check(mine.metadata(3), tmp_path)
    for name in mine.digests:
        other = identity(digests={**mine.digests, name: "0" * 64})
        lost = {key: each for key, each in mine.digests.items() if key != name}
        lost = identity(digests=lost)
        begins = f"^The {name} of .* began with.*: the content digest is"
        refused(other, mine, f"{begins} 0{{12}}, saved")
        refused(lost, mine, f"{begins} missing, saved")
        refused(mine, lost, f"{begins} .*, saved missing")
    moved = identity(config=text("a.txt", init_from="now"), digests={"origin": "1"})
    was = identity(config=text("a.txt", init_from="then"), digests={"origin": "2"})
    refused(moved, was, r"began with \(now now, then then\)")
    refused(identity(tokenizer="0" * 64), mine, "The tokenizer of this run")


def test_identity_is_content_and_not_the_place(tmp_path):
    moved = identity(config=text("elsewhere/*.txt", init_from="there"))
    here = identity(config=text("here.txt", init_from="here"))
    moved.check(here.metadata(3), tmp_path)
    scratch = identity(config=text("here.txt"))
    for saved, now in ((scratch, moved), (moved, scratch)):
        with pytest.raises(UserError, match="another configuration: config"):
            now.check(saved.metadata(3), tmp_path)
    with pytest.raises(UserError, match="another configuration"):
        identity(config=text("here.txt", seed=3)).check(moved.metadata(3), tmp_path)


def test_the_documents_that_differ_are_named(tmp_path):
    saved = {"/old/a.txt": "1" * 64, "/old/b.txt": "2" * 64, "/old/c.txt": "3" * 64}
    was = identity(digests={"text": "t" * 64}, documents=saved)
    was.write_documents(tmp_path)
    now = {"/new/a.txt": "1" * 64, "/new/b.txt": "9" * 64, "/new/d.txt": "4" * 64}
    other = identity(digests={"text": "0" * 64}, documents=now)
    named = "(/new/b.txt holds other text; /new/d.txt is new; /old/c.txt is missing)"
    with pytest.raises(UserError, match=re.escape(named)):
        other.check(was.metadata(3), tmp_path)
    shuffled = dict(reversed(saved.items()))
    (phrase,) = differing_documents(saved, shuffled)
    assert phrase == "the same documents in another order or split"


@pytest.mark.parametrize("others", [1, 20])
def test_of_many_differences_the_first_are_named(monkeypatch, others):
    def gather(text):
        return [text, *['{"a": 1}'] * others]

    monkeypatch.setattr(resume, "gather", gather)
    resume.check_same({"a": 1})
    with pytest.raises(ValueError, match=r"a is 1 on process 1, 2 on process 0") as e:
        resume.check_same({"a": 2})
    assert ("and 15 more" in str(e.value)) == (others == 20)
    with pytest.raises(ValueError, match="b is None on process 1, 3 on process 0"):
        resume.check_same({"a": 1, "b": 3})


STAMP = RUN_FOLDER.stamp()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, "config.json") for text in ("", "[]", "[" * 100_000)),
        ("{}", "of the job None"),
        *((json.dumps({**STAMP, "job": job}), "of the job") for job in (3, "x")),
        (
            json.dumps({**STAMP, "job": "finetune"}),
            r"job 'finetune', not 'pretrain'; name another --workdir\.$",
        ),
    ],
    ids=lambda value: value[:40],
)
def test_a_folder_of_another_kind_is_refused_in_one_line(tmp_path, text, says):
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    write_json(tmp_path / "config.json", saved_values(paper()))
    assert begin_run(epath.Path(tmp_path), paper()) == paper()
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=says):
        begin_run(epath.Path(tmp_path), paper())


def test_scores_begin_a_run_as_checkpoints_do(tmp_path):
    folder = epath.Path(tmp_path)
    write_json(folder / "config.json", saved_values(paper()))
    (folder / "scores").mkdir()
    assert not has_begun(folder)
    begin_run(folder, paper(seed=1))
    (folder / "scores" / "run").mkdir()
    assert has_begun(folder)
    with pytest.raises(UserError, match=r"config\.seed is 1, saved 0"):
        begin_run(folder, paper(seed=1))
