import json

import pytest
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.errors import UserError
from gpt1_jax.runs.resume import (
    Identity,
    changed_keys,
    differing_documents,
    refuse_changes,
)


def paper(**overrides):
    return config_lib.load(load_config("paper", **overrides).to_dict())


def test_changed_keys_name_what_makes_another_run():
    saved = json.loads(json.dumps(paper().to_dict()))
    assert not changed_keys(saved, paper().to_dict())
    free = paper(
        eval__every_steps=3,
        log__every_steps=1,
        checkpoint__keep_best=0,
        model__remat=True,
        model__layer_loop="scan",
        data__num_workers=1,
        distributed__heartbeat_seconds=30,
    )
    assert not changed_keys(saved, free.to_dict())
    other = paper(optimizer__learning_rate=1e-3, model__num_layers=2, seed=7)
    assert changed_keys(saved, other.to_dict()) == {
        "model.num_layers": (12, 2),
        "optimizer.learning_rate": (2.5e-4, 1e-3),
        "seed": (0, 7),
    }


def test_a_longer_run_is_shown_the_way():
    saved = json.loads(json.dumps(paper().to_dict()))
    longer = paper(train__num_epochs=200.0).to_dict()
    with pytest.raises(ValueError, match=r"saved 100.0\. Use .*init_from=FOLDER"):
        refuse_changes(saved, longer, "here")
    del saved["init_optimizer"], longer["init_optimizer"]  # a job that has no such key
    for other in (longer, paper(seed=3).to_dict()):
        saved["job"] = other["job"]
        with pytest.raises(ValueError, match="another configuration") as raised:
            refuse_changes(saved, other, "here")
        assert "init_from=FOLDER" not in str(raised.value)


def text(train, **overrides):
    return paper(data__source="text", data__train=train, **overrides).to_dict()


def identity(**changes):
    digests = {"text": "t" * 64, "dev examples": "d" * 64, "origin": "o" * 64}
    values = {"tokenizer": "k" * 64, "digests": digests, "older": "old" * 5}
    return Identity(**{"config": paper().to_dict(), **values, **changes})


def test_identity_names_the_part_that_differs(tmp_path):
    mine = identity()
    mine.check(mine.metadata(3), tmp_path)
    for name in mine.digests:
        other = identity(digests={**mine.digests, name: "0" * 64})
        refused = pytest.raises(
            UserError, match=f"The {name} of .* began with: .* digest is 0{{12}}, saved"
        )
        with refused:
            other.check(mine.metadata(3), tmp_path)
        lost = {key: each for key, each in mine.digests.items() if key != name}
        with pytest.raises(UserError, match=f"The {name} of .*digest is missing"):
            identity(digests=lost).check(mine.metadata(3), tmp_path)
    with pytest.raises(UserError, match="The tokenizer of this run"):
        identity(tokenizer="0" * 64).check(mine.metadata(3), tmp_path)


def test_identity_is_content_and_not_the_place(tmp_path):
    moved = identity(
        config=text("elsewhere/*.txt", init_from="there"), older="of other times"
    )
    here = identity(config=text("here.txt", init_from="here"))
    moved.check(here.metadata(3), tmp_path)
    scratch = identity(config=text("here.txt"))
    for saved, now in ((scratch, moved), (moved, scratch)):
        with pytest.raises(UserError, match="another configuration: config"):
            now.check(saved.metadata(3), tmp_path)
    with pytest.raises(UserError, match="another configuration"):
        identity(config=text("here.txt", seed=3)).check(moved.metadata(3), tmp_path)


def test_a_folder_without_content_digests_is_compared_as_before(tmp_path):
    older = identity(config=text("here.txt")).metadata(3)
    del older["content_digests"]
    identity(config=text("here.txt")).check(older, tmp_path)
    with pytest.raises(UserError, match="The text of this run"):
        identity(config=text("here.txt"), older="of others").check(older, tmp_path)
    moved = text("elsewhere/*.txt")
    with pytest.raises(UserError, match="another configuration"):
        identity(config=moved).check(older, tmp_path)


def test_the_documents_that_differ_are_named(tmp_path):
    saved = {"/old/a.txt": "1" * 64, "/old/b.txt": "2" * 64, "/old/c.txt": "3" * 64}
    identity(documents=saved).write_documents(tmp_path)
    now = {"/new/a.txt": "1" * 64, "/new/b.txt": "9" * 64, "/new/d.txt": "4" * 64}
    other = identity(digests={"text": "0" * 64}, documents=now)
    with pytest.raises(UserError) as error:
        other.check(identity(digests={"text": "t" * 64}).metadata(3), tmp_path)
    for phrase in (
        "/new/b.txt holds other text",
        "/new/d.txt is new",
        "/old/c.txt is missing",
    ):
        assert phrase in str(error.value)
    assert "a.txt" not in str(error.value)
    shuffled = dict(reversed(saved.items()))
    assert differing_documents(saved, shuffled) == [
        "the same documents in another order or split"
    ]


def test_a_key_that_no_longer_exists_is_no_change():
    saved = json.loads(json.dumps(paper().to_dict()))
    saved["model"]["dropout_impl"] = "hash"
    assert not changed_keys(saved, paper().to_dict())
    saved["model"]["dropout_impl"] = "threefry"
    with pytest.raises(ValueError, match="'threefry' no longer exists"):
        changed_keys(saved, paper().to_dict())
