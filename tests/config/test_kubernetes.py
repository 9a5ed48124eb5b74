"""The manifests in `configs/kubernetes`, by the types of the Kubernetes API, and with their configuration."""

from __future__ import annotations

import dataclasses
import importlib
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanout.api.app import ENDPOINTS
from fanout.cli.arguments.node_options import TokenOption
from fanout.config import parse_config

MANIFESTS = Path(__file__).parents[2] / "configs" / "kubernetes"
OBJECTS: list[dict[str, Any]] = [
    one for path in sorted(MANIFESTS.iterdir()) for one in yaml.safe_load_all(path.read_text())
]
BY_KIND = {one["kind"]: one for one in OBJECTS}
CONFIG = parse_config(BY_KIND["ConfigMap"]["data"]["edge.toml"], path="edge.toml", role="secondary")
POD: dict[str, Any] = BY_KIND["StatefulSet"]["spec"]["template"]["spec"]
NODE: dict[str, Any] = POD["containers"][0]


def faults(value: object, kind: Any, at: str) -> list[str]:
    """Return where a value is not of a type of the API: unknown and missing keys, and values of another type."""
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        found = [faults(value, one, at) for one in typing.get_args(kind) if one is not type(None)]
        return min(found, key=len)
    if typing.get_origin(kind) is list:
        [of] = typing.get_args(kind)
        return (
            [one for n, each in enumerate(value) for one in faults(each, of, f"{at}[{n}]")]
            if isinstance(value, list)
            else [f"{at}: no list"]
        )
    if typing.get_origin(kind) is dict or kind is dict:
        return [] if isinstance(value, dict) else [f"{at}: no table"]
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            return [f"{at}: no table"]
        fields = {field.name.rstrip("_"): field for field in dataclasses.fields(kind)}
        types_of = typing.get_type_hints(kind)
        wrong = [f"{at}.{key}: unknown" for key in value.keys() - fields.keys()]
        for key, field in fields.items():
            if key in value:
                wrong += faults(value[key], types_of[field.name], f"{at}.{key}")
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                wrong.append(f"{at}.{key}: missing")
        return wrong
    return [] if kind is Any or isinstance(value, kind) else [f"{at}: {value!r} is no {kind}"]


def type_of(manifest: dict[str, Any]) -> Any:
    """Return the type of the Kubernetes API that a manifest is of."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    module = f"{group.split('.')[0] or 'core'}_{version}"
    return getattr(importlib.import_module(f"lightkube.models.{module}"), manifest["kind"])


@pytest.mark.parametrize(
    "manifest", [one for one in OBJECTS if one["kind"] != "ServiceMonitor"], ids=lambda one: one["kind"]
)
def test_a_manifest_is_of_its_type(manifest: dict[str, Any]) -> None:
    """No key is unknown or missing; ServiceMonitor is of an operator, and its types are nowhere in an index."""
    assert faults(manifest, type_of(manifest), manifest["kind"]) == []


def test_the_check_of_types_finds_faults() -> None:
    """Else the test above would say nothing."""
    wrong = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"maxUnavailble": 1, "minAvailable": []}}
    assert len(faults(wrong, type_of(wrong), "PDB")) == 2
    assert faults({"spec": {"ports": [{"name": "a"}]}}, type_of(BY_KIND["Service"]), "S") == [
        "S.spec.ports[0].port: missing"
    ]


def test_ports_are_those_of_the_configuration() -> None:
    """Of the container; services, probes and policies name them."""
    ports = {port["name"]: port["containerPort"] for port in NODE["ports"]}
    assert CONFIG.server is not None
    assert CONFIG.http is not None
    assert CONFIG.pool is not None
    assert CONFIG.pool.listen is not None
    assert ports == {
        "mqtt": CONFIG.server.listen[0].port,
        "http": CONFIG.http.listen.port,
        "pool": CONFIG.pool.listen.port,
    }
    services = {one["metadata"]["name"]: one["spec"] for one in OBJECTS if one["kind"] == "Service"}
    named = [port["targetPort"] for service in services.values() for port in service["ports"]]
    named += [NODE[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    named += [port["port"] for rule in BY_KIND["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]]
    assert set(named) == set(ports)
    assert {NODE[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} <= set(ENDPOINTS)
    monitor = BY_KIND["ServiceMonitor"]["spec"]
    assert [
        one["metadata"]["name"]
        for one in OBJECTS
        if monitor["selector"]["matchLabels"].items() <= one["metadata"].get("labels", {}).items()
    ] == ["fanout-pool"]
    assert {end["port"] for end in monitor["endpoints"]} <= {port["name"] for port in services["fanout-pool"]["ports"]}


def test_members_find_each_other_and_have_time_to_leave() -> None:
    """By the headless service, before they are ready; a stop may take as long as the pages say."""
    service = BY_KIND["StatefulSet"]["spec"]["serviceName"]
    [headless] = [one for one in OBJECTS if one["kind"] == "Service" and one["metadata"]["name"] == service]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True
    assert CONFIG.pool is not None
    assert CONFIG.pool.dns is not None
    assert CONFIG.pool.dns.host == service
    assert POD["terminationGracePeriodSeconds"] >= 55 + CONFIG.node.drain_s
    assert CONFIG.node.id == f"{BY_KIND['StatefulSet']['metadata']['name']}-0"
    assert f"s/{CONFIG.node.id}/$HOSTNAME/" in POD["initContainers"][0]["command"][-1]


def test_commands_in_a_pod_are_an_operators() -> None:
    """Whoever asks an interface that is not on loopback needs the token, and the pod names its file to them."""
    assert CONFIG.http is not None
    assert CONFIG.http.token_file is not None
    [option] = typing.get_args(TokenOption)[1:]
    environment = {one["name"]: one.get("value") for one in NODE["env"]}
    assert environment[option.envvar] == str(CONFIG.http.token_file)


@pytest.mark.parametrize("page", ["configs/kubernetes/pool.yaml", "docs/how-to/kubernetes.md"])
def test_the_secret_has_what_the_manifests_take_from_it(page: str) -> None:
    """Each file below its mount, and each variable."""
    [command] = re.findall(r"create secret generic fanout ((?:.*\\\n)*.+)", (MANIFESTS.parents[1] / page).read_text())
    given = set(re.findall(r"--from-(?:literal|file)=([\w-]+)", command))
    text = (MANIFESTS / "pool.yaml").read_text()
    assert given == set(re.findall(r"(?:/etc/fanout/secret/|name: fanout, key: )([\w-]+)", text))


@pytest.mark.parametrize("pod", [POD, BY_KIND["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]])
def test_a_pod_has_few_rights_and_what_it_mounts(pod: dict[str, Any]) -> None:
    """As the restricted level of Pod Security Standards asks, with a read-only root file system."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    volumes = {volume["name"] for volume in pod["volumes"]} | {"data"}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        rights = container["securityContext"]
        assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
