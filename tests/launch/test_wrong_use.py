"""Wrong use of a script is one error, before anything is called."""

import pytest

SLICE = {"NAME": "gpt1", "ZONE": "us-central1-a", "TYPE": "v5litepod-16"}
LOCAL, RESTART, SLURM, TPU = "local.sh", "restart.sh", "slurm.sbatch", "tpu.sh"
NO_EXTRAS = "is not a list of extras"


@pytest.mark.parametrize(
    ("script", "arguments", "env", "problem"),
    [
        ("detached.sh", ["begin"], {}, "'begin' is none of start"),
        ("detached.sh", ["start"], {}, "start needs a command"),
        ("setup.sh", [], {}, NO_EXTRAS),
        ("setup.sh", ["tpu gcp"], {}, NO_EXTRAS),
        (LOCAL, ["0", "true"], {}, "the number of processes is '0'"),
        (LOCAL, ["2"], {}, "no command"),
        (LOCAL, ["--restart=1", "2", "true"], {}, "unknown option --restart=1"),
        (LOCAL, ["--grace=1m", "2", "true"], {}, "--grace=1m is not"),
        (RESTART, [], {}, "no command"),
        (RESTART, ["true"], {"RESTARTS": "-1"}, "'-1' is not a number"),
        (RESTART, ["true"], {"RESTART_DELAY": "soon"}, "'soon' is not a number"),
        (SLURM, ["--nodes=2", "train"], {}, "--nodes=2 is not a command"),
        (SLURM, ["train"], {}, "not in a SLURM job"),
        (SLURM, ["train"], {"RESTARTS": "many"}, "RESTARTS=many is not"),
        (TPU, ["launch"], SLICE, "'launch' is none of up, create"),
        (TPU, ["run"], SLICE, "run needs a command"),
        (TPU, ["create"], {"NAME": "gpt1"}, "NAME, ZONE and TYPE must be set"),
        (TPU, ["create"], SLICE | {"TYPE": "h100"}, "no runtime is known for TYPE=h1"),
        (TPU, ["create"], SLICE | {"WAIT_HOURS": "1d"}, "'1d' is not a whole number"),
    ],
)
def test_wrong_use_is_one_error(run_script, recorder, script, arguments, env, problem):
    for name in ("gcloud", "srun", "true", "uv"):
        recorder.add(name)
    code, output, errors = run_script(script, *arguments, **env)
    assert (code, output) == (2, "") and problem in errors
    assert errors.startswith(f"{script}: error: ")
    assert errors.count("\n") == 1 or errors.splitlines()[1].startswith("Usage: ")
    assert recorder.calls() == []
