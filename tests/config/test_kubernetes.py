"""The manifests in `configs/kubernetes`, and the chart that makes them, by the types of the Kubernetes API."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import re
import shutil
import subprocess
import types
import typing
from collections.abc import Iterable
from typing import Any

import pytest
import yaml

from fanout.api.app import ENDPOINTS
from fanout.cli.arguments.node_options import TokenOption
from fanout.config import parse_config
from tests.support.chart import CHART, MANIFESTS, RELEASE, SWITCHED_ON, rendered

OBJECTS: list[dict[str, Any]] = [
    one for path in sorted(MANIFESTS.iterdir()) for one in yaml.safe_load_all(path.read_text())
]
BY_KIND = {one["kind"]: one for one in OBJECTS}
CONFIG = parse_config(BY_KIND["ConfigMap"]["data"]["edge.toml"], path="edge.toml", role="secondary")
POD: dict[str, Any] = BY_KIND["StatefulSet"]["spec"]["template"]["spec"]
NODE: dict[str, Any] = POD["containers"][0]
PAGE = (MANIFESTS.parents[1] / "docs" / "how-to" / "kubernetes.md").read_text()


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
    """No key is unknown or missing; ServiceMonitor is of an operator, and only kubeconform looks at it."""
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


def test_the_secret_has_what_the_manifests_take_from_it() -> None:
    """Each file below its mount, and each variable; the page writes files, so no secret is an argument of a command."""
    assert "--from-literal" not in PAGE
    assert "create secret generic fanout --from-file=secret\n" in PAGE
    text = (MANIFESTS / "pool.yaml").read_text()
    assert set(re.findall(r"secret/([\w-]+)", PAGE.partition("kubectl create")[0])) == set(
        re.findall(r"(?:/etc/fanout/secret/|name: fanout, key: )([\w-]+)", text)
    )


@pytest.mark.parametrize("manifest", sorted(path.name for path in MANIFESTS.iterdir()))
def test_a_manifest_is_what_the_chart_makes(manifest: str) -> None:
    """So there is one source of both; and nothing in the chart is missing."""
    assert (MANIFESTS / manifest).read_text() == rendered(manifest)
    assert {path.name for path in (CHART / "templates").iterdir()} == {path.name for path in MANIFESTS.iterdir()}


def test_values_of_the_chart_reach_what_they_name() -> None:
    """Each is used; a pool of other names has a configuration that is valid, and switches leave a manifest out."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    used = "".join(path.read_text() for path in (CHART / "templates").iterdir()) + values["config"]
    assert {name for name in values if f".Values.{name} " in used} == values.keys()
    other = list(yaml.safe_load_all(rendered("pool.yaml", name="rim", primary="mqtts://broker:8883", replicas=5)))
    [config] = [one["data"]["edge.toml"] for one in other if one["kind"] == "ConfigMap"]
    parsed = parse_config(config, path="edge.toml", role="secondary")
    assert (parsed.node.id, str(parsed.links[0].primaries[0])) == ("rim-0", "mqtts://broker:8883")
    [pool] = [one for one in other if one["kind"] == "StatefulSet"]
    assert (pool["metadata"]["name"], pool["spec"]["replicas"]) == ("rim", 5)
    assert (rendered("monitoring.yaml", monitoring=False), rendered("report.yaml", report=False)) == ("", "")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {importlib.metadata.version("fanout-mqtt")}


def test_the_chart_needs_no_kind_that_a_bare_cluster_lacks() -> None:
    """The values alone leave out what needs an operator; the page's command sets each image, or its pods pull none."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    objects = [one for path in MANIFESTS.iterdir() for one in yaml.safe_load_all(rendered(path.name, **values)) if one]
    assert {one["kind"] for one in objects} == BY_KIND.keys() - {"ServiceMonitor"}
    [command] = re.findall(r"helm install .*?\n```", PAGE, re.DOTALL)
    assert {name for name in values if name.lower().endswith("image")} <= set(re.findall(r"(\w+)=", command))


def test_members_reach_what_a_command_in_one_of_them_asks() -> None:
    """`fanout trace` asks the other members' pool and HTTP interface."""
    rules = BY_KIND["NetworkPolicy"]["spec"]["ingress"]
    [ports] = [rule["ports"] for rule in rules if any("podSelector" in peer for peer in rule.get("from", ()))]
    assert {port["port"] for port in ports} == {"pool", "http"}


def test_a_pool_without_a_store_leaves_no_secret_behind() -> None:
    """The page removes the files of the secret in a block for all, and those of the store in its own."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert [[line for line in block.splitlines() if line.startswith("rm ")] for block in blocks[:2]] == [
        ["rm -r secret"],
        ["rm store.env"],
    ]


def test_helm_makes_the_same() -> None:
    """The chart has the form that Helm takes, and gives the objects of the manifests."""
    if (helm := shutil.which("helm")) is None:
        pytest.skip("helm is not installed")
    switches = [f"--set={name}={str(value).lower()}" for name, value in SWITCHED_ON.items()]
    command = [helm, "template", RELEASE, str(CHART), *switches]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr

    def by_name(objects: Iterable[Any]) -> list[Any]:
        return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))

    assert by_name(yaml.safe_load_all(answer.stdout)) == by_name(OBJECTS)


def test_kubeconform_accepts_them() -> None:
    """ServiceMonitor too. `KUBERNETES_SCHEMAS` is the location of JSON schemas, in the form that kubeconform takes."""
    program, schemas = shutil.which("kubeconform"), os.environ.get("KUBERNETES_SCHEMAS")
    if program is None or not schemas:
        pytest.skip("kubeconform is not installed, or KUBERNETES_SCHEMAS is not set")
    command = [program, "-strict", "-schema-location", schemas, str(MANIFESTS)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


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
