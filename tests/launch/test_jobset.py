"""`launch/jobset.yaml`: what must fit together."""

import pytest
import yaml
from tiny_run import ROOT


@pytest.fixture
def jobset():
    return yaml.safe_load((ROOT / "launch/jobset.yaml").read_text())


def test_all_hosts_of_a_slice_run_and_restart_together_a_limited_number_of_times(
    jobset,
):
    """The rule that fails the job names the container and spares what can resume."""
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    policy = jobset["spec"]["failurePolicy"]
    assert policy["maxRestarts"] > 0
    assert job["parallelism"] == job["completions"] and job["backoffLimit"] == 0
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "podFailurePolicy demands it"
    rows, columns = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    (container,) = pod["containers"]
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] * chips == int(rows) * int(columns)
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["operator"] == "In"
    assert not {75, 134, 137} & set(rule["onExitCodes"]["values"])
    (ends,) = policy["rules"]
    assert ends["action"] == "FailJobSet"
    assert ends["onJobFailureReasons"] == ["PodFailurePolicy"]
