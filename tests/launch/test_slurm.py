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


@pytest.mark.parametrize(
    ("end", "restarts", "code", "said"),
    [
        *((end, 2, 0, "restart 3 of 3") for end in (75, 134, 137)),
        (75, 3, 75, "after 3 restarts; giving up"),
        *((end, 0, end, "") for end in (0, 1, 127)),
    ],
)
def test_what_can_resume_goes_back_into_the_queue(
    run_script, recorder, end, restarts, code, said
):
    """Success, errors and the last restart end the job."""
    recorder.add("srun", f"exit {end}")
    recorder.add("scontrol")
    job = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    found, _, errors = run_script("slurm.sbatch", "train", "it", RESTARTS="3", **job)
    assert found == code and said in errors and bool(said) == bool(errors)
    run, *requeued = recorder.calls()
    assert run == "srun --kill-on-bad-exit=0 --wait=300 train it"
    assert requeued == ["scontrol requeue 7"] * ("restart 3" in said)


def test_the_cores_of_a_task_are_srun_s_as_well(run_script, recorder):
    recorder.add("srun", 'echo "$SRUN_CPUS_PER_TASK cores"')
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8"}
    assert run_script("slurm.sbatch", "train", **job)[1] == "8 cores\n"
