"""The files in `docker/` agree with one another and with what the node does. No image is built here."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from fanout.api.app import ENDPOINTS
from fanout.config import NodeConfig, load_config

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", "")
COMPOSE = (ROOT / "docker" / "compose.yaml").read_text()
IGNORE = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]


def instruction(name: str) -> list[str]:
    """Return the arguments of each instruction of the Dockerfile with this name."""
    return re.findall(rf"^ *{name} +(.+)$", DOCKERFILE, re.MULTILINE)


def edge(number: int) -> tuple[str, NodeConfig]:
    """Return the part of the compose file and the configuration of a secondary."""
    part = re.split(r"^  (?=\S)", COMPOSE, flags=re.MULTILINE)[1 + number]
    assert part.startswith(f"edge-{number}:")
    return part, load_config(ROOT / "docker" / f"edge-{number}.toml", role="secondary")


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


def test_the_image_asks_the_node_itself_whether_it_lives() -> None:
    """At the port of the compose file's configurations, past proxies of the environment, in an exec form of JSON."""
    [command] = re.findall(r"^HEALTHCHECK .+? CMD (\[.+\])$", DOCKERFILE, re.MULTILINE)
    program, _, code = json.loads(command)
    compile(code, "HEALTHCHECK", "exec")
    assert program == "python"
    assert "ProxyHandler({})" in code
    [(port, path)] = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", code)
    assert path in ENDPOINTS
    for number in (1, 2):
        http = edge(number)[1].http
        assert http is not None
        assert http.listen.port == int(port)


def test_signals_reach_the_node() -> None:
    """The node is the first process: no shell stands before it."""
    assert instruction("ENTRYPOINT") == ['["fanout"]']
    assert all(json.loads(each) for each in instruction("CMD")[-1:])
    assert instruction("USER") == ["fanout"]


@pytest.mark.parametrize("number", [1, 2])
def test_the_compose_file_fits_its_configurations(number: int) -> None:
    """Mounted files exist, lie where the image looks, and published ports are those that the node listens on."""
    part, config = edge(number)
    [command] = [json.loads(each) for each in instruction("CMD") if "secondary" in each]
    assert f'"./edge-{number}.toml:{command[-1]}:ro"' in part
    published = {int(port) for port in re.findall(r'"127\.0\.0\.1:\d+:(\d+)"', part)}
    assert config.server is not None
    assert config.http is not None
    assert published == {config.server.listen[0].port, config.http.listen.port}
    assert config.links[0].primaries[0].host in re.findall(r"^  (\w[\w-]*):$", COMPOSE, re.MULTILINE)
    for volume in re.findall(r'"(edge-\d):/', part):
        assert re.search(rf"^  {volume}:$", COMPOSE.partition("\nvolumes:\n")[2], re.MULTILINE)
