"""TLS of the HTTP interface, between processes: commands trust an authority, and a reload takes a new certificate."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from bench.processes import Server, free_port
from tests.cli.processes import run_fanout
from tests.support.certificates import Authority
from tests.support.waiting import wait_until_blocking

CONFIG = """
[node]
id = "hub"
data_directory = "{directory}/data"

[server]
listen = ["mqtt://127.0.0.1:{mqtt}"]

[http]
listen = "127.0.0.1:{http}"
certificate_file = "{certificate}"
key_file = "{key}"
"""


def test_commands_ask_over_tls_and_a_reload_takes_a_new_certificate(tmp_path: Path) -> None:
    """Without the authority a command says that it cannot reach the node; plain HTTP gets no answer."""
    first, second = Authority(tmp_path), Authority(tmp_path, name="second")
    certificate, key = first.issue("hub")
    mqtt, http = free_port(), free_port()
    config = tmp_path / "hub.toml"
    text = CONFIG.format(directory=tmp_path, mqtt=mqtt, http=http, certificate=certificate, key=key)
    config.write_text(text)
    url = f"https://127.0.0.1:{http}"

    def status(authority: Authority | None, url: str = url) -> int:
        trusted = {} if authority is None else {"FANOUT_CA_FILE": str(authority.certificate)}
        return run_fanout("status", url, **trusted).returncode

    assert run_fanout("check", str(config)).returncode == 0
    command = [sys.executable, "-m", "fanout", "primary", "--config", str(config)]
    with Server(command, log=tmp_path / "hub.log", port=mqtt) as server:
        wait_until_blocking(lambda: status(first) == 0)
        assert status(None) == status(second) == status(first, f"http://127.0.0.1:{http}") == 3
        second.issue("hub")
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        wait_until_blocking(lambda: status(second) == 0)
        assert status(first) == 3
    config.write_text(text.replace(f'key_file = "{key}"\n', ""))
    assert "http.key_file" in run_fanout("check", str(config)).stderr
