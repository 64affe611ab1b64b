"""`launch/jobset.yaml`: what Kubernetes would refuse, and what must fit together."""

import pytest
import yaml
from tiny_run import ROOT


@pytest.fixture
def jobset():
    return yaml.safe_load((ROOT / "launch/jobset.yaml").read_text())


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
