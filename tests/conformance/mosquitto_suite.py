"""Mosquitto's own broker tests: which scripts are run, and why some are not or end otherwise than they expect."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.processes import free_port

__all__ = ["DIFFERENCES", "NOT_FOR_US", "Result", "run"]

_DEADLINE_S = 600.0

NOT_FOR_US = {
    "06-": "bridges; a link is no bridge",
    "08-": "certificates and pre-shared keys of its own configuration; tests/server/accept/test_tls.py has ours",
    "09-": "its access files and plugins; tests/access and tests/server/test_access.py have ours",
    "14-": "its dynamic security plugin",
    "01-bad-initial-packets": "less than 25 MB for the process; tests/fuzz has such packets, and limits growth",
    "01-connect-575314": "a ratio of two times that suits C; tests/mqtt/test_properties.py has the same attack",
    "01-connect-allow-anonymous": "defaults of its configuration; docs/reference/access.md has ours",
    "01-connect-zero-length-id": "allow_zero_length_clientid",
    "02-subpub-qos0-oversize-payload": "message_size_limit",
    "02-subpub-qos1-oversize-payload": "message_size_limit",
    "07-will-oversize-payload": "message_size_limit",
    "02-subpub-qos2-max-inflight-bytes": "max_inflight_bytes",
    "02-subpub-qos2-receive-maximum-helper": "part of another script",
    "03-publish-qos1-queued-bytes": "Python 2, and not in the suite's own list",
    "03-publish-qos1-retain-disabled": "retain_available",
    "13-malformed-publish-v5": "retain_available",
    "04-retain-check-source": "check_retain_source",
    "04-retain-upgrade-outgoing-qos": "upgrade_outgoing_qos, which breaks the rule on the QoS of a subscription",
    "10-listener-mount-point": "mount_point",
    "11-": "sessions and values kept over a restart of the broker",
    "12-prop-maximum-packet-size-broker": "max_packet_size 30; a node takes no less than its own CONNECT needs",
}
"""Scripts, by the beginning of their names, that are about something else than MQTT, and what."""

DIFFERENCES = {
    "01-connect-max-keepalive": "refuses a Keep Alive that is too long, and tries MQTT 3.1",
    "01-connect-uname-no-password-denied": "return code 5 where a node says 4 (section 3.2.2.3)",
    "01-connect-uname-password-denied": "the same",
    "01-connect-uname-password-denied-no-will": "the same",
    "02-subpub-qos0-long-topic": "no more than 200 levels; a node refuses the subscription alone, from 129 levels on",
    "02-subpub-qos2": "PUBREC before the client's own copy; it may go on before PUBREL (section 4.3.3, method B)",
    "02-subscribe-long-topic": "the same as 02-subpub-qos0-long-topic",
    "03-publish-long-topic": "the same for PUBLISH, of which a node limits the bytes",
    "02-subpub-qos1-message-expiry": "the Packet Identifier 2; the sender chooses it [MQTT-2.2.1-4]",
    "03-publish-qos1-max-inflight-expire": "the same",
    "12-prop-assigned-client-identifier": "compares bytes that are Mosquitto's own properties of CONNACK",
    "12-prop-maximum-packet-size-publish-qos1": "the Packet Identifier 2; the sender chooses it [MQTT-2.2.1-4]",
    "12-prop-maximum-packet-size-publish-qos2": "the same",
    "03-publish-c2b-disconnect-qos2": "MQTT 3.1, which no specification of OASIS has",
    "03-publish-dollar-v5": "PUBACK 0x10 for a topic below $; a node says 0x87, both are allowed (section 4.7.2)",
    "03-publish-qos2-dup": "closes at the third copy of a PUBLISH; PUBREC must answer it [MQTT-4.3.3-10]",
    "07-will-control": "closes after a Will Topic below $CONTROL, which is a topic like any other here",
    "07-will-delay-invalid-573191": "closes without CONNACK; a node says why (0x90), as section 3.1.4 recommends",
    "07-will-invalid-utf8": "the same (0x81)",
    "07-will-no-flag": "the same (0x81)",
    "07-will-null-topic": "the same (0x90)",
    "07-will-delay": "waits for the delay though the Session ends with the connection [MQTT-3.1.3-9]",
    "07-will-delay-reconnect": "the same",
    "07-will-delay-recover": "no Will Message though Clean Start 1 ends the Session (section 3.1.3.2.2)",
    "07-will-properties": "another order of properties of different kinds, which has no meaning",
    "07-will-takeover": "no Will Message when a session is taken over over MQTT 3.1.1 [MQTT-3.1.2-8]",
    "13-malformed-subscribe-v5": "0x81 throughout; a node says 0x82 for a Protocol Error, 0x8F for the filter",
    "13-malformed-unsubscribe-v5": "the same",
}
"""Scripts that expect what Mosquitto does, where the specification lets a Server do, or asks it to do, otherwise."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one script ended."""

    script: str
    """Its name, without `.py`."""
    passed: bool
    output: str
    """What it wrote."""

    @property
    def difference(self) -> str:
        """Why a script that failed does not show a fault; empty when it shows one."""
        return DIFFERENCES.get(self.script, "")


def run(source: Path, *, only: str = "") -> Iterator[Result]:
    """Run the scripts in `test/broker` of Mosquitto's source, one after the other.

    Args:
        source: The directory of the source.
        only: How the names of the scripts begin that are run.
    """
    project = Path(__file__).parent.parent.parent
    path = os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")])
    for file in sorted((source / "test" / "broker").glob(f"{only}*.py")):
        if not re.match(r"[01]\d-", file.stem) or any(file.stem.startswith(start) for start in NOT_FOR_US):
            continue
        yield _run_script(file, environment={**os.environ, "PYTHONPATH": path})


def _run_script(file: Path, *, environment: dict[str, str]) -> Result:
    """Run one script, and end whatever it leaves running."""
    with tempfile.TemporaryDirectory() as directory:
        script = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.mosquitto_script", f"./{file.name}", str(free_port())],
            cwd=file.parent,
            env={**environment, "TMPDIR": directory},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = script.communicate(timeout=_DEADLINE_S)
            passed = script.returncode == 0
        except subprocess.TimeoutExpired as error:
            output, passed = error.output or b"no end in time", False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            script.wait()
    return Result(file.stem, passed, output.decode(errors="replace"))
