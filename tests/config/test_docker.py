"""The files in `docker/` agree with one another and with what the node does. No image is built here."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sysconfig
import tomllib
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bench.processes import Server, find_mosquitto, free_port
from fanout.api.app import ENDPOINTS
from fanout.config import NodeConfig, parse_config

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text().replace("\\\n", "")
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EDGES = [name for name in SERVICES if name.startswith("edge-")]
EDGE = parse_config((DOCKER / "edge.toml").read_text(), path="edge.toml", role="secondary")
TAP = parse_config((DOCKER / "tap.toml").read_text(), path="tap.toml", role="tap")
IGNORE = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]


def instruction(name: str) -> list[str]:
    """Return the arguments of each instruction of the Dockerfile with this name."""
    return re.findall(rf"^ *{name} +(.+)$", DOCKERFILE, re.MULTILINE)


def lint(dockerfile: Path) -> None:
    """Have hadolint read a Dockerfile."""
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    answer = subprocess.run([program, dockerfile], capture_output=True, text=True, timeout=30, check=False)
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")


def test_hadolint_finds_no_fault() -> None:
    """In the Dockerfile."""
    lint(DOCKER / "Dockerfile")


def test_every_stage_begins_with_the_pinned_base() -> None:
    """With the argument or with another stage; its comment says which file of which commit has the digest."""
    [base] = instruction("ARG")
    pinned = re.fullmatch(r"BASE=python:((3\.\d+)-slim-\w+)@sha256:[0-9a-f]{64}", base)
    assert pinned is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {pinned[2]}" in project["classifiers"]
    comment = DOCKERFILE.partition("\nARG ")[0]
    assert f"the index of all platforms of {pinned[1]}, with Python {pinned[2]}." in comment
    assert re.search(rf"/remote/{pinned[1]}\.md at [0-9a-f]{{40}},\n# read on \d{{4}}-\d\d-\d\d\.", comment)
    assert DOCKERFILE.index("ARG ") < DOCKERFILE.index("FROM ")
    stages = [line.split() for line in instruction("FROM")]
    assert {image for image, *_ in stages} <= {"${BASE}", *(name for *_, name in stages)}


def test_the_commands_of_the_page_renew_the_base(tmp_path: Path) -> None:
    """With a stand-in for docker: sed puts the digest that the registry told into the line, and changes no other."""
    page = (ROOT / "docs" / "how-to" / "run-as-a-service.md").read_text()
    [block] = re.findall(r"```sh\n(BASE=.+?)```", page, re.DOTALL)
    copy = tmp_path / "docker" / "Dockerfile"
    copy.parent.mkdir()
    shutil.copy(DOCKER / "Dockerfile", copy)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\n[ "$1" = build ] || echo sha256:{"7" * 64}\n')
    docker.chmod(0o755)
    environment = {"PATH": f"{docker.parent}:/usr/bin:/bin"}
    subprocess.run(["bash", "-ec", block], cwd=tmp_path, env=environment, timeout=30, check=True)
    before, after = (path.read_text().splitlines() for path in (DOCKER / "Dockerfile", copy))
    [changed] = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == (changed[0], f"{changed[0].partition('@')[0]}@sha256:{'7' * 64}")
    lint(copy)


def test_a_report_that_could_not_be_made_is_tried_again_soon(tmp_path: Path) -> None:
    """The first one finds logs that are too young: `--until 5m` leaves nothing of them."""
    program, flag, loop = SERVICES["report"]["entrypoint"]
    fakes = {
        "fanout": 'echo "fanout $*" >> calls; [ "$(grep -c fanout calls)" -gt 1 ] || exit 5',
        "sleep": 'echo "$1" >> pauses; [ "$(wc -l < pauses)" -lt 2 ] || kill "$PPID"',
    }
    for name, text in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = [program, flag, loop.replace("$$", "$")]
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=30, check=False)
    assert (tmp_path / "pauses").read_text().split() == ["300", "3600"]


def test_the_compose_file_is_one() -> None:
    """By the schema of its specification."""
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(COMPOSE)


def test_what_is_copied_is_there_and_not_ignored() -> None:
    """Of the context; what is ignored would fail the build, and what is not needed would be sent for nothing."""
    copied = [word for line in instruction("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert copied
    wanted = {each.partition("/")[0] for each in copied}
    assert {each.removeprefix("!") for each in IGNORE if each.startswith("!")} == wanted
    assert IGNORE[0] == "*"
    for each in copied:
        assert (ROOT / each).exists(), each
        assert not any(fnmatch(each, pattern) for pattern in IGNORE[1:] if not pattern.startswith("!")), each


def test_what_is_installed_has_hashes() -> None:
    """The build back end too: it is the one that `pyproject.toml` names, and nothing else comes from an index."""
    for command in re.findall(r"pip (?:install|wheel) (.+?)(?: *&&|$)", DOCKERFILE, re.MULTILINE):
        assert "--require-hashes" in command or "--no-index" in command
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert set(required) <= set(
        re.findall(r"^(\S+==\S+) \\$", (ROOT / "locks" / "build.txt").read_text(), re.MULTILINE)
    )


def test_the_image_asks_the_node_itself_whether_it_lives() -> None:
    """At the port of the compose file's configurations, past proxies of the environment, in an exec form of JSON."""
    [command] = re.findall(r"^HEALTHCHECK .+? CMD (\[.+\])$", DOCKERFILE, re.MULTILINE)
    program, _, code = json.loads(command)
    compile(code, "HEALTHCHECK", "exec")
    assert program == "python"
    assert "ProxyHandler({})" in code
    [(port, path)] = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", code)
    assert path in ENDPOINTS
    for config in (EDGE, TAP):
        assert config.http is not None
        assert config.http.listen.port == int(port)


def test_signals_reach_the_node() -> None:
    """The node is the first process: no shell stands before it, or one that it replaces; and it is not root."""
    assert instruction("ENTRYPOINT") == ['["fanout"]']
    assert instruction("USER") == ["10001", "0", "10001"]  # root installs Java in between
    for name in EDGES:
        assert "&& exec fanout secondary" in SERVICES[name]["entrypoint"][-1]


def listened(config: NodeConfig) -> set[int]:
    """Return the ports of a node."""
    assert config.http is not None
    ports = {config.http.listen.port} | ({config.http.agent_listen.port} if config.http.agent_listen else set())
    return ports | ({address.port for address in config.server.listen} if config.server else set())


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_few_rights_and_what_it_mounts(name: str) -> None:
    """Files exist, volumes are declared, secrets too; the root file system is read-only."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    for mounted in service.get("volumes", ()):
        source = mounted.split(":")[0]
        assert (DOCKER / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"], mounted
    assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
    assert set(service.get("depends_on", ())) <= set(SERVICES)


def test_the_pool_is_the_one_that_its_members_and_haproxy_know() -> None:
    """Addresses of the network, of `pool.peers` and of HAProxy's servers; published ports are listened on."""
    addresses = {name: SERVICES[name]["networks"]["pool"]["ipv4_address"] for name in EDGES}
    assert all(SERVICES[name]["hostname"] == name for name in EDGES)
    assert EDGE.pool is not None
    assert EDGE.server is not None
    assert {peer.host for peer in EDGE.pool.peers} == set(addresses.values())
    haproxy = (ROOT / "configs" / "haproxy.cfg").read_text()
    mqtt = EDGE.server.listen[0].port
    assert set(re.findall(r"^    server (\S+) (\S+)$", haproxy, re.MULTILINE)) == {
        (name, f"{address}:{mqtt}") for name, address in addresses.items()
    }
    for port in re.findall(r"\bcheck port (\d+)|agent-port (\d+)", haproxy):
        assert int("".join(port)) in listened(EDGE)
    for name in EDGES:
        assert {int(published.rsplit(":", 1)[1]) for published in SERVICES[name]["ports"]} <= listened(EDGE)
    for config in (EDGE, TAP):
        assert {address.host for link in config.links for address in link.primaries} <= set(SERVICES)


def test_prometheus_asks_what_is_there(tmp_path: Path) -> None:
    """Each target is a service at a port that it listens on; Prometheus itself takes the file."""
    text = (DOCKER / "prometheus.yaml").read_text()
    jobs = yaml.safe_load(text)["scrape_configs"]
    targets = [one for job in jobs for one in job["static_configs"][0]["targets"]]
    ports = {**dict.fromkeys(EDGES, listened(EDGE)), "tap": listened(TAP), "reports": {8000}}
    assert {name for name, _ in (target.split(":") for target in targets)} == set(ports)
    for name, port in (target.split(":") for target in targets):
        assert int(port) in ports[name]
    paths = {job.get("metrics_path", "/metrics") for job in jobs if job["job_name"] != "fanout-report"}
    assert paths <= set(ENDPOINTS)
    if (program := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed; scripts/setup installs it where apt-get may")
    path = tmp_path / "prometheus.yml"
    rules = next(line for line in SERVICES["prometheus"]["volumes"] if "rules" in line).split(":")
    assert f"rule_files: [{rules[1]}]" in text
    token = tmp_path / "http-token"
    token.write_text("token")
    assert SERVICES["prometheus"]["secrets"] == [token.name]
    assert EDGE.http is not None
    assert f"credentials_file: {EDGE.http.token_file}" in text
    text = text.replace(str(EDGE.http.token_file), str(token))
    path.write_text(text.replace(rules[1], str((DOCKER / rules[0]).resolve())))
    answer = subprocess.run([program, "check", "config", path], capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 0, answer.stderr


def test_mosquitto_takes_its_file(tmp_path: Path) -> None:
    """It starts, and listens at the port that the file names."""
    if (program := find_mosquitto()) is None:
        pytest.skip("Mosquitto is not installed; scripts/setup installs it")
    port = free_port()
    path = tmp_path / "mosquitto.conf"
    path.write_text((DOCKER / "mosquitto.conf").read_text().replace("listener 1883\n", f"listener {port} 127.0.0.1\n"))
    with Server([str(program), "-c", str(path)], log=tmp_path / "log", port=port):
        socket.create_connection(("127.0.0.1", port), 10).close()


def test_grafana_finds_its_files() -> None:
    """The dashboard lies where the provider looks, and the data source is Prometheus of the compose file."""
    [provider] = yaml.safe_load((DOCKER / "grafana-dashboards.yaml").read_text())["providers"]
    mounts = [mounted.split(":")[1] for mounted in SERVICES["grafana"]["volumes"]]
    assert any(mount.startswith(f"{provider['options']['path']}/") for mount in mounts)
    [source] = yaml.safe_load((DOCKER / "grafana-datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
