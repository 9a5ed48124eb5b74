"""A process that has imported fanout already, and forks: from there the `fanout` command starts in milliseconds.

Tests start hundreds of nodes and commands, and half a second of each is importing. What is forked goes the way of
`python -m fanout` from its first line on. It has nothing of the test that asked for it: arguments, environment,
working directory and standard streams come with the request. A start from nothing stays tested where it matters: the
demonstration, the attacks, the installation, and all that runs `python -m fanout` itself.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import fanout

__all__ = ["ForkedProcess", "forked_processes", "may_fork", "start_fanout"]

_REQUEST_BYTES_MAX = 1 << 18
_READ_AT_START = ("PYTHON", "LC_", "LANG", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH")
"""Beginnings of the names of environment variables that are read while the interpreter starts and modules load."""


class ForkedProcess:
    """A `fanout` command that runs, with what `subprocess.Popen` has of it."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = list(args)
        self.returncode: int | None = None
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not within so many seconds.
        """
        code = self._wait(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and self._has_ended(timeout_s):
            self.returncode = _server().exit_code(self.pid)
            os.close(self._end)
        return self.returncode

    def _has_ended(self, timeout_s: float | None) -> bool:
        waiting = select.poll()
        waiting.register(self._end, select.POLLIN)
        return bool(waiting.poll(None if timeout_s is None else timeout_s * 1000))


def may_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a command with this environment does the same when it is forked: on Linux, with equal settings."""
    return hasattr(os, "pidfd_open") and _read_at_start(environment) == _read_at_start(_server().environment)


def start_fanout(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    new_session: bool = False,
) -> ForkedProcess:
    """Start `fanout` in a process of its own; the caller has checked `may_fork`.

    Args:
        arguments: Behind the name of the command.
        environment: All of its environment.
        streams: File descriptors for standard input, output and error.
        new_session: Whether it is to get no Ctrl-C of this process's terminal.
    """
    request = {"arguments": list(arguments), "environment": dict(environment), "directory": os.getcwd()}
    pid = _server().ask({**request, "new_session": new_session}, streams)
    return ForkedProcess(pid, ["fanout", *arguments])


def forked_processes() -> set[int]:
    """Return the numbers of the processes that were forked and have not been waited for."""
    pid = _server().pid
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


_starting = threading.Lock()


def _server() -> _ForkServer:
    with _starting:  # nodes start side by side
        return _only_server()


@functools.cache
def _only_server() -> _ForkServer:
    return _ForkServer()


class _ForkServer:
    """The side of the tests."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        """The environment in which the modules were loaded."""
        self._socket, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(its_end.fileno())],
                pass_fds=[its_end.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._lock = threading.Lock()
        atexit.register(self._end)

    def ask(self, request: Mapping[str, object], streams: Sequence[int]) -> int:
        """Return the number that the server answers."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            return int(self._socket.recv(32))

    def exit_code(self, pid: int) -> int:
        """Return the exit code of a process that has ended."""
        return self.ask({"ended": pid}, ())

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


def _load() -> None:
    """Import all of fanout but the reports and AMQP, which need extras."""
    for module in pkgutil.walk_packages(fanout.__path__, "fanout."):
        if not module.name.startswith(("fanout.reports", "fanout.amqp", "fanout.__main__")):
            importlib.import_module(module.name)


def _serve(control: socket.socket) -> bool:
    """Fork for each request; return True in what was forked, and False when the tests have ended."""
    while True:
        data, descriptors, *_ = socket.recv_fds(control, _REQUEST_BYTES_MAX, 3)
        if not data:
            return False
        request = json.loads(data)
        if (ended := request.get("ended")) is not None:
            control.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(ended, 0)[1]))
            continue
        pid = os.fork()
        if not pid:
            control.close()
            _become(request, descriptors)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(b"%d" % pid)


def _become(request: Mapping[str, object], streams: Sequence[int]) -> None:
    """Make this process what a start of `python -m fanout` with the request would be."""
    if request["new_session"]:
        os.setsid()
    os.chdir(str(request["directory"]))
    environment, arguments = request["environment"], request["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["fanout", *arguments]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors, closefd=False, buffering=1)


if __name__ == "__main__":
    _load()
    gc.collect()
    gc.freeze()  # else the first collection of each process copies all that was loaded
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        runpy.run_module("fanout", run_name="__main__", alter_sys=True)
