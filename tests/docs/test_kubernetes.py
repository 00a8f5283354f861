"""The example for Kubernetes says what docker-compose.yml says: commands, settings, secrets, health checks."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from carbonq.config.settings import Settings
from tests.docs.pages import ROOT

MANIFESTS: list[dict[str, Any]] = [
    one for one in yaml.safe_load_all((ROOT / "ops/kubernetes/carbonq.yaml").read_text(encoding="utf-8")) if one
]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = {
    name: service
    for name, service in COMPOSE["services"].items()
    if "carbonq:" in service["image"] and "gpu" not in service.get("profiles", ())
}
PODS = {one["metadata"]["name"]: one["spec"]["template"] for one in MANIFESTS if "template" in one.get("spec", {})}


def _container(name: str) -> dict[str, Any]:
    (only,) = PODS[name]["spec"]["containers"]
    return only


def test_each_service_is_there_and_nothing_else() -> None:
    assert set(PODS) == set(SERVICES)
    ports = {one["metadata"]["name"]: one["spec"]["ports"][0]["port"] for one in MANIFESTS if one["kind"] == "Service"}
    assert ports == {"api": 8750, "flower": 5555}
    assert {one["metadata"].get("namespace") for one in MANIFESTS} == {None, "carbonq"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_it_runs_the_same(name: str) -> None:
    service, pod = SERVICES[name], _container(name)
    assert pod["args"] == service["command"]
    given = {one["name"]: one["value"] for one in pod["env"]}
    # Blobs go to a bucket instead of a volume that all share; so its two secrets come beside.
    bucket = {"CARBONQ_BLOB_URL", "CARBONQ_BLOB_ACCESS_KEY_ID_FILE", "CARBONQ_BLOB_SECRET_ACCESS_KEY_FILE"}
    assert {key: value for key, value in given.items() if key not in bucket} == {
        key: value for key, value in service["environment"].items() if key not in bucket
    }
    known = {f"CARBONQ_{field.upper()}" for field in Settings.model_fields} | {"CARBONQ_CONFIG"}
    assert {key.removesuffix("_FILE") for key in given} <= known
    if name != "migrate":
        assert given["CARBONQ_BLOB_URL"].startswith("s3://")
        assert ["carbonq", *pod["livenessProbe"]["exec"]["command"][1:]] == service["healthcheck"]["test"][1:]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_it_may_do_no_more_than_it_must(name: str) -> None:
    spec, pod = PODS[name]["spec"], _container(name)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes = {one["name"]: one for one in spec["volumes"]}
    kept = {"data"} if name.startswith("worker-") else set[str]()
    assert {one["name"] for one in pod["volumeMounts"]} == set(volumes) | kept
    mounted = {f"/run/secrets/{item['path']}" for item in volumes["secrets"]["secret"]["items"]}
    assert mounted == {one["value"] for one in pod["env"] if one["name"].endswith("_FILE")}, "its own secrets only"
    assert set(pod["resources"]["limits"]) == {"cpu", "memory"}


@pytest.mark.parametrize("name", [one for one in sorted(PODS) if one != "migrate"])
def test_labels_select_their_pods(name: str) -> None:
    (owner,) = [one for one in MANIFESTS if one["metadata"]["name"] == name and one["kind"] != "Service"]
    assert owner["spec"]["selector"]["matchLabels"] == PODS[name]["metadata"]["labels"]
    assert owner["kind"] == ("StatefulSet" if name.startswith("worker-") else "Deployment")


def test_the_settings_are_those_of_the_containers() -> None:
    (settings,) = [one["data"]["carbonq.toml"] for one in MANIFESTS if one["kind"] == "ConfigMap"]
    assert settings.strip() == (ROOT / "ops/docker/carbonq.toml").read_text(encoding="utf-8").strip()
