"""The manifests in deploy/: Kubernetes would accept them, they fit each other, and Millrace."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from millrace.cli.run import run
from millrace.spark.realtime.requirements import slots_needed

DEPLOY = Path(__file__).parents[3] / "deploy"
MANIFESTS = {
    f"{file.stem}: {manifest['kind']}": manifest
    for file in sorted((DEPLOY / "kubernetes").iterdir())
    for manifest in yaml.safe_load_all(file.read_text())
}
SETTINGS = MANIFESTS["settings: ConfigMap"]["data"]
EXECUTOR = yaml.safe_load(SETTINGS["executor.yaml"])
DRIVER = MANIFESTS["driver: Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = DRIVER["containers"]
#: Of the pipeline that `millrace new --from kafka` makes.
LEVELS = 1


def conf() -> dict[str, str]:
    """Return Spark's settings, as Spark reads its file of them."""
    lines = [line for line in SETTINGS["spark-defaults.conf"].splitlines() if line[0] != "#"]
    return dict(line.split(None, 1) for line in lines)


def options() -> dict[str, Any]:
    """Return the options that the driver's command has."""
    command, subcommand, *arguments = CONTAINER["args"]
    assert (command, subcommand) == ("millrace", "run")
    return run.make_context("millrace run", arguments).params


@pytest.mark.parametrize("manifest", [*MANIFESTS.values(), EXECUTOR], ids=lambda one: one["kind"])
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_knows_each_field(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_field_that_is_misspelt_would_be_noticed() -> None:
    misspelt = MANIFESTS["checkpoint: PersistentVolumeClaim"] | {"specs": {}}
    with pytest.raises(kubernetes_validate.ValidationError, match="specs"):
        kubernetes_validate.validate(misspelt, "1.37", strict=True)


def test_the_command_of_the_driver_is_one_of_millrace() -> None:
    found = options()
    assert found["standby"]
    assert found["lease"] == "3 s"
    assert found["pipeline"] == "pipeline.py:on_spark"
    assert found["checkpoint"].startswith(mounts(CONTAINER)["checkpoint"] + "/")


def test_the_variables_of_the_command_are_those_of_the_pod() -> None:
    used = {name for argument in CONTAINER["args"] for name in re.findall(r"\$\((\w+)\)", argument)}
    assert used == {"POD_IP", "POD_NAME", "POD_NAMESPACE"}
    assert used <= {variable["name"] for variable in CONTAINER["env"]}


def test_executors_have_the_slots_for_all_tasks_and_those_of_the_standby() -> None:
    slots = int(conf()["spark.executor.instances"]) * int(conf()["spark.executor.cores"])
    found = options()
    queries = 1 + found["standby_tasks"]
    assert found["realtime"]
    assert slots >= slots_needed(found["tasks"], LEVELS, queries)


def test_what_is_named_is_there() -> None:
    names = {kind.split(": ")[1]: one["metadata"]["name"] for kind, one in MANIFESTS.items()}
    assert DRIVER["serviceAccountName"] == names["ServiceAccount"]
    binding = MANIFESTS["access: RoleBinding"]
    assert binding["roleRef"]["name"] == names["Role"]
    assert [one["name"] for one in binding["subjects"]] == [names["ServiceAccount"]]
    volumes = {volume["name"]: volume for volume in DRIVER["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == names["ConfigMap"]
    for spec in (DRIVER, EXECUTOR["spec"]):
        (checkpoint,) = (one for one in spec["volumes"] if one["name"] == "checkpoint")
        claim = checkpoint["persistentVolumeClaim"]["claimName"]
        assert claim == names["PersistentVolumeClaim"]
    assert conf()["spark.kubernetes.container.image"] == CONTAINER["image"]


def test_drivers_and_executors_see_the_checkpoint_at_one_path() -> None:
    (executor,) = EXECUTOR["spec"]["containers"]
    assert mounts(executor)["checkpoint"] == mounts(CONTAINER)["checkpoint"]
    assert conf()["spark.executorEnv.TMPDIR"] == mounts(executor)["scratch"]
    settings = mounts(CONTAINER)["settings"]
    assert {"name": "SPARK_CONF_DIR", "value": settings} in CONTAINER["env"]
    assert conf()["spark.kubernetes.executor.podTemplateFile"] == f"{settings}/executor.yaml"


def test_labels_that_are_selected_are_those_of_the_pods() -> None:
    spec = MANIFESTS["driver: Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    affinity = DRIVER["affinity"]["podAntiAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == labels
    (spread,) = EXECUTOR["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == EXECUTOR["metadata"]["labels"]


def test_the_image_has_extras_that_there_are() -> None:
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", (DEPLOY / "Dockerfile").read_text())
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def mounts(container: dict[str, Any]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


def started(tmp_path: Path, *arguments: str, **environment: str) -> list[str]:
    """Return the command that the image's entry point becomes."""
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    tini.chmod(0o755)
    ended = subprocess.run(
        [DEPLOY / "entrypoint.sh", *arguments], capture_output=True, text=True, check=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **environment},
    )  # fmt: skip
    return ended.stdout.splitlines()


def test_the_image_starts_a_command(tmp_path: Path) -> None:
    assert started(tmp_path, *CONTAINER["args"][:3]) == ["-s", "--", *CONTAINER["args"][:3]]


def test_the_image_starts_an_executor_as_spark_asks_for_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho /packages/pyspark\n")
    python.chmod(0o755)
    found = started(
        tmp_path, "executor", PYSPARK_PYTHON=str(python), JAVA_HOME="/java",
        SPARK_JAVA_OPT_10="-Dlast=1", SPARK_JAVA_OPT_9="-Dfirst=a b", SPARK_EXECUTOR_MEMORY="1g",
        SPARK_DRIVER_URL="spark://driver", SPARK_EXECUTOR_ID="3", SPARK_EXECUTOR_CORES="4",
        SPARK_APPLICATION_ID="spark-1", SPARK_EXECUTOR_POD_IP="10.0.0.1",
        SPARK_RESOURCE_PROFILE_ID="0", SPARK_EXECUTOR_POD_NAME="words-exec-3",
    )  # fmt: skip
    options, named = found[:9], found[9:]
    assert options == [
        "-s", "--", "/java/bin/java", "-Dfirst=a b", "-Dlast=1", "-Xms1g", "-Xmx1g",
        "-cp", "/packages/pyspark/jars/*",
    ]  # fmt: skip
    assert named[0].endswith(".KubernetesExecutorBackend")
    assert dict(zip(named[1::2], named[2::2], strict=True)) == {
        "--driver-url": "spark://driver", "--executor-id": "3", "--cores": "4",
        "--app-id": "spark-1", "--hostname": "10.0.0.1", "--resourceProfileId": "0",
        "--podName": "words-exec-3",
    }  # fmt: skip
