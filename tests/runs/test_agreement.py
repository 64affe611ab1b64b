"""All processes of a command have one configuration and one run folder."""

from joined import addresses, start_script

ASK = """
import dataclasses, importlib.util, sys
from pathlib import Path

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.parallel import join, processes
from gpt1_jax.runs.agreement import check_processes

spec = importlib.util.spec_from_file_location("pretrain", "configs/pretrain.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
config = config_lib.load(module.get_config().to_dict())
join.initialize_processes("on", join.Waits(60, 30, 30))
main, folder = processes.is_main_process(), Path(sys.argv[1])
processes.PATIENCE_SECONDS = 0.5


def ask(name, config, folder):
    try:
        check_processes(config, str(folder))
        print(f"{name}: agreed", flush=True)
    except (ValueError, OSError) as error:
        print(f"{name}: {error}", flush=True)


ask("same", config, folder / "run")
data = dataclasses.replace(config.data, cache_dir="mine", num_workers=1 + main)
ask("local", dataclasses.replace(config, data=data), folder / "run")
ask("config", dataclasses.replace(config, seed=int(main)), folder / "run")
ask("folder", config, folder / f"run-{main}")
ask("unwritable", config, "/proc/run")
if not main:
    gpt1_jax.__version__ = "0.0"
ask("version", config, folder / "run")
"""


def test_processes_that_differ_all_say_in_what(tmp_path):
    joined = [start_script(ASK, tmp_path, **each) for each in addresses()]
    outputs = [process.communicate(timeout=120)[0] for process in joined]
    said = []
    for process, output in zip(joined, outputs, strict=True):
        assert process.returncode == 0, output
        lines = (line.partition(": ") for line in output.splitlines())
        said.append({name: text for name, _, text in lines})
    for one in said:
        assert one["same"] == one["local"] == "agreed"
        assert "config.seed is 0 on process 1, 1 on process 0" in one["config"]
        assert "the same installation" in one["config"]
        assert f"folder of process 1, {tmp_path}/run-False on " in one["folder"]
        assert "gs://" in one["folder"]
        assert "Process 0 cannot write to the run folder /proc/run" in one["unwritable"]
        assert "version of gpt1_jax is '0.0' on process 1" in one["version"]
    assert not list((tmp_path / "run").iterdir())
