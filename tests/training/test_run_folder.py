import json

from tiny_run import load_config

from gpt1_jax.config import from_config_dict
from gpt1_jax.training import run_folder


def paper(**overrides):
    return from_config_dict(load_config("paper", **overrides).to_dict())


def test_changed_keys_name_what_makes_another_run():
    saved = json.loads(json.dumps(paper().to_dict()))
    assert not run_folder.changed_keys(saved, paper().to_dict())
    free = paper(
        eval__every_steps=3,
        log__every_steps=1,
        checkpoint__keep_best=0,
        model__remat=True,
        model__layer_loop="scan",
        data__num_workers=1,
    )
    assert not run_folder.changed_keys(saved, free.to_dict())
    other = paper(optimizer__learning_rate=1e-3, model__num_layers=2, seed=7)
    assert run_folder.changed_keys(saved, other.to_dict()) == {
        "model.num_layers": (12, 2),
        "optimizer.learning_rate": (2.5e-4, 1e-3),
        "seed": (0, 7),
    }
