import json
import re

import pytest
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


def test_a_folder_of_another_job_is_refused_in_one_line(tmp_path):
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    run_folder.write_json(tmp_path / "config.json", paper().to_dict())
    run_folder.check(tmp_path, paper())
    values = load_config("sst2", file="finetune", init_from="runs/pretrain/paper")
    with pytest.raises(ValueError, match=r"job 'pretrain', not 'finetune'") as error:
        run_folder.check(tmp_path, from_config_dict(values.to_dict()))
    assert re.search(r"name another --workdir\.$", str(error.value))
