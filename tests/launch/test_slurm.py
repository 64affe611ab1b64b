"""`launch/slurm.sbatch`, under executables that stand for SLURM's."""

import random
import sys

import pytest

# What srun sets for each of two tasks on this machine, and nothing else of SLURM's.
TWO_TASKS = """
for task in 0 1; do
  SLURM_JOB_ID={job} SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 \\
    SLURM_PROCID=$task SLURM_LOCALID=$task "${{@:3}}" &
  pids="$pids $!"
done
for pid in $pids; do wait $pid || exit; done
"""
JOIN = """
import jax
from jax.experimental import multihost_utils
jax.config.update("jax_num_cpu_devices", 1)
jax.distributed.initialize(initialization_timeout=60)
sum = multihost_utils.process_allgather(jax.numpy.asarray(jax.process_index() + 1))
print(f"{jax.process_index()} of {jax.process_count()}, sum {sum.sum()}", flush=True)
"""


def test_jax_finds_the_processes_of_a_slurm_job(run_script, recorder):
    job = random.randrange(4096)  # decides the port of the coordinator
    recorder.add("srun", TWO_TASKS.format(job=job))
    code, output, errors = run_script(
        "slurm.sbatch", sys.executable, "-c", JOIN, SLURM_JOB_ID=str(job)
    )
    assert code == 0, errors
    assert "0 of 2, sum 3" in output and "1 of 2, sum 3" in output


@pytest.mark.parametrize("end", [75, 134, 137])
def test_what_can_resume_goes_back_into_the_queue(run_script, recorder, end):
    recorder.add("srun", f"exit {end}")
    recorder.add("scontrol")
    code, _, errors = run_script("slurm.sbatch", "train", "it", SLURM_JOB_ID="7")
    assert code == 0 and "restart 1 of 10" in errors
    assert recorder.calls() == [
        "srun --kill-on-bad-exit=0 --wait=300 train it",
        "scontrol requeue 7",
    ]


def test_the_cores_of_a_task_are_srun_s_as_well(run_script, recorder):
    recorder.add("srun", 'echo "$SRUN_CPUS_PER_TASK cores"')
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8"}
    assert run_script("slurm.sbatch", "train", **job)[1] == "8 cores\n"


@pytest.mark.parametrize(("end", "restarts"), [(0, 0), (1, 0), (2, 0), (75, 3)])
def test_success_errors_and_the_last_restart_end_the_job(
    run_script, recorder, end, restarts
):
    recorder.add("srun", f"exit {end}")
    recorder.add("scontrol")
    job = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    code, _, errors = run_script("slurm.sbatch", "train", RESTARTS="3", **job)
    assert code == end and len(recorder.calls()) == 1
    assert ("after 3 restarts; giving up" in errors) == (restarts == 3)


def test_a_dry_run_prints_options_and_command_and_calls_nothing(run_script, recorder):
    recorder.add("srun")
    code, output, errors = run_script("slurm.sbatch", "--dry-run", "train", "a b")
    assert (code, errors, recorder.calls()) == (0, "", [])
    assert output.splitlines()[-1].strip().endswith("train a\\ b")
    for option in ("--requeue", "--signal=TERM@300", "--ntasks-per-node=8"):
        assert f"#SBATCH {option}\n" in output
    assert "gpus-per-task" not in output


@pytest.mark.parametrize(
    ("arguments", "env", "problem"),
    [
        ([], {}, "nothing is not a command"),
        (["--nodes=2", "train"], {}, "--nodes=2 is not a command"),
        (["train"], {}, "not in a SLURM job"),
        (["train"], {"RESTARTS": "many"}, "RESTARTS=many is not"),
    ],
)
def test_wrong_use_is_one_error(run_script, recorder, arguments, env, problem):
    recorder.add("srun")
    code, _, errors = run_script("slurm.sbatch", *arguments, **env)
    assert code == 2 and problem in errors and errors.count("\n") == 1
    assert recorder.calls() == []
