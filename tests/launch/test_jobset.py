"""`launch/jobset.yaml`: what Kubernetes would refuse, and what must fit together."""

import pytest
import yaml
from tiny_run import ROOT


@pytest.fixture
def jobset():
    return yaml.safe_load((ROOT / "launch/jobset.yaml").read_text())


@pytest.fixture
def job(jobset):
    """What each of its jobs is to be."""
    (replicated,) = jobset["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def changed(given, read, path=""):
    """Paths at which what a schema's classes have read differs from what was given."""
    if isinstance(given, dict):
        for key, value in given.items():
            yield from changed(value, (read or {}).get(key), f"{path}.{key}")
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from changed(value, (read or given)[number], f"{path}[{number}]")
    elif given != read:
        yield path


def test_the_schema_knows_every_field(jobset):
    models = pytest.importorskip(
        "kubeflow_trainer_api.models",
        reason="its classes are made from the schemas of JobSet and Kubernetes "
        "(pip install kubeflow-trainer-api)",
    )
    read = models.JobsetV1alpha2JobSet.from_dict(jobset)
    assert list(changed(jobset, read.to_dict())) == []
    jobset["spec"]["failurePolicy"]["maxRestart"] = 3
    read = models.JobsetV1alpha2JobSet.from_dict(jobset)
    assert list(changed(jobset, read.to_dict())) == [".spec.failurePolicy.maxRestart"]


def test_all_hosts_run_and_restart_together_a_limited_number_of_times(jobset, job):
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert job["parallelism"] == job["completions"] and job["backoffLimit"] == 0
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "podFailurePolicy demands it"


def test_the_slice_has_the_chips_of_its_hosts(job):
    pod = job["template"]["spec"]
    rows, columns = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    (container,) = pod["containers"]
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] * chips == int(rows) * int(columns)


def test_errors_that_would_repeat_themselves_end_it(jobset, job):
    """The rule that fails the job names the container and spares what can resume."""
    (rule,) = job["podFailurePolicy"]["rules"]
    (container,) = job["template"]["spec"]["containers"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["operator"] == "In"
    assert not {75, 134, 137} & set(rule["onExitCodes"]["values"])
    (ends,) = jobset["spec"]["failurePolicy"]["rules"]
    assert ends["action"] == "FailJobSet"
    assert ends["onJobFailureReasons"] == ["PodFailurePolicy"]
