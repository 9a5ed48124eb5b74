"""Passwords of links, changed at a real Mosquitto while the pool serves on (`docs/how-to/rotate-passwords.md`)."""

from __future__ import annotations

import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.mosquitto import Mosquitto
from tests.support.nodes import QUICK, Nodes, link, selector, watched
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.mosquitto

DISC = '\n[retained]\nstorage = "disc"\n'


class Users:
    """The password file of a Mosquitto."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.touch()

    def put(self, user: str, password: str) -> None:
        """Add a user, or change the password."""
        subprocess.run(["mosquitto_passwd", "-b", str(self.file), user, password], check=True, capture_output=True)

    def remove(self, user: str) -> None:
        """Remove a user."""
        subprocess.run(["mosquitto_passwd", "-D", str(self.file), user], check=True, capture_output=True)


def reload(mosquitto: Mosquitto) -> None:
    """Have Mosquitto read its files again."""
    assert mosquitto.process is not None
    mosquitto.process.send_signal(signal.SIGHUP)


def test_a_second_user_node_by_node_keeps_the_pool_ready(nodes: Nodes, tmp_path: Path) -> None:
    """At every moment a node is ready, and at the end nobody uses the first user, which is removed.

    One of the nodes keeps its values on disk, so its session goes on under the other user.
    """
    users, secrets = Users(tmp_path / "users"), tmp_path
    for user in ("edge-a", "feed"):
        users.put(user, f"{user} secret")
        (secrets / user).write_text(f"{user} secret\n")
    (secrets / "edge-b").write_text("edge-b secret\n")
    with Mosquitto(tmp_path, settings=["allow_anonymous false", f"password_file {users.file}"]) as mosquitto:

        def as_user(user: str) -> str:
            settings = f'{QUICK}username = "{user}"\npassword_file = "{secrets / user}"\n'
            return link(mosquitto.port, selector("plant/#"), settings=settings)

        pool = [
            nodes.secondary(as_user("edge-a"), name="one").started(),
            nodes.secondary(as_user("edge-a"), name="two", settings=DISC).started(),
        ]
        with ExitStack() as stack:
            seen = [stack.enter_context(watched(node)) for node in pool]
            users.put("edge-b", "edge-b secret")
            reload(mosquitto)
            for node, others_answers in zip(pool, reversed(seen), strict=True):
                others_answers.clear()
                node.links = as_user("edge-b")
                node.stop()
                node.started()
                answers = list(others_answers)
                assert answers
                assert all(answer["ready"] for answer in answers)
            before = [node.link_status()["reconnects_total"] for node in pool]
            users.remove("edge-a")
            reload(mosquitto)
            wait_until_blocking(lambda: _is_refused(mosquitto, secrets, "edge-a"), what="the first user being gone")
            assert [node.link_status()["reconnects_total"] for node in pool] == before
            assert all(node.ready for node in pool)


def test_a_changed_password_is_tried_at_sighup(nodes: Nodes, tmp_path: Path) -> None:
    """A link that was refused names user and password, and after SIGHUP connects without waiting for its pause."""
    users, secret = Users(tmp_path / "users"), tmp_path / "secret"
    users.put("edge", "new")
    secret.write_text("old\n")
    with Mosquitto(tmp_path, settings=["allow_anonymous false", f"password_file {users.file}"]) as mosquitto:
        settings = f'retry_min_s = 600.0\nretry_max_s = 600.0\nusername = "edge"\npassword_file = "{secret}"\n'
        node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=settings))
        node.start()
        wait_until_blocking(lambda: node.link_status()["last_error"], what="the refusal")
        assert "Not authorized" in node.link_status()["last_error"]
        assert f"Check the user name edge, the password in {secret}, which is read again" in node.log_text()
        secret.write_text("new\n")
        assert node.process is not None
        node.process.send_signal(signal.SIGHUP)
        node.wait_until_ready()


def _is_refused(mosquitto: Mosquitto, secrets: Path, user: str) -> bool:
    """Tell whether Mosquitto does not let a user connect."""
    command = ["mosquitto_pub", "-h", mosquitto.host, "-p", str(mosquitto.port), "-u", user]
    command += ["-P", (secrets / user).read_text().strip(), "-t", "probe", "-n"]
    return subprocess.run(command, check=False, capture_output=True, timeout=30).returncode != 0
