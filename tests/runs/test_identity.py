import json

import pytest
from tiny_run import load_config

from gpt1_jax import config as config_lib
from gpt1_jax.runs.identity import Identity, changed_keys, refuse_changes


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


def test_identity_names_the_part_that_differs():
    mine = Identity(paper().to_dict(), "tokenizer" * 9, "corpus" * 9)
    mine.check(mine.metadata(3))
    for name in ("tokenizer", "corpus"):
        with pytest.raises(ValueError, match=f"The {name} of this run"):
            mine.check({**mine.metadata(3), name: "0" * 16})


def test_a_key_that_no_longer_exists_is_no_change():
    saved = json.loads(json.dumps(paper().to_dict()))
    saved["model"]["dropout_impl"] = "hash"
    assert not changed_keys(saved, paper().to_dict())
    saved["model"]["dropout_impl"] = "threefry"
    with pytest.raises(ValueError, match="'threefry' no longer exists"):
        changed_keys(saved, paper().to_dict())
