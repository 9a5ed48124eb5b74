"""Runner of a probe: the checks with each protocol version, one after another, then the clean-up.

Owns the time limit, the result of checks whose needs did not pass, and that nothing stays at the primary, however the
probe ends.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiomqtt
from aiomqtt.exceptions import MqttConnectError

from fanout.errors import FanoutError, PrimaryRefused, PrimaryUnreachable
from fanout.probe import retained
from fanout.probe.catalogue import CHECKS, CONNECT, CONTROL, SERVER_VERSION, Check
from fanout.probe.client import Target
from fanout.probe.ground import Ground
from fanout.probe.results import (
    Finding,
    Outcome,
    ProbeReport,
    Result,
    VersionReport,
    failed,
    not_available,
    passed,
)

__all__ = ["probe"]

_CONTROL_TOPIC: Final = "fanout/control"
"""Default of `control_topic` of a link, where its user has rights if it has any."""
_CANDIDATE_S: Final = 10.0
"""Time limit for trying one prefix."""
_CLEAN_UP_S: Final = 20.0
"""Time limit of the clean-up, apart from that of the checks."""
_UNSUPPORTED: Final = {0x01, 0x84}
"""Answers to CONNECT that mean: not this protocol version (MQTT 3.1.1 and MQTT 5)."""


async def probe(
    target: Target,
    *,
    address: str,
    versions: Sequence[int],
    prefix: str,
    set_size: int,
    read_filter: str | None,
    timeout_s: float,
    on_check: Callable[[str], None] = lambda _: None,
    tls_failure: Callable[[Exception], FanoutError] | None = None,
) -> ProbeReport:
    """Test a primary.

    Args:
        target: The primary, with credentials.
        address: Its address in the report.
        versions: Protocol versions, 5 and 4, in their order.
        prefix: Beginning of the topics of the probe, without a slash at the end.
        set_size: Messages of the large retained set.
        read_filter: A Topic Filter whose retained set is only read; None for none.
        timeout_s: Seconds for all checks together.
        on_check: Called with the name of each check before it begins.
        tls_failure: Returns the error for a failed TLS handshake; None without TLS.

    Raises:
        PrimaryUnreachable: Nothing answers with any version, or the TLS handshake fails.
        PrimaryRefused: The primary refuses the connection with every version.
    """
    nonce = secrets.token_hex(3)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_note)
    deadline = loop.time() + timeout_s
    reports, refusals, server, left = [], [], "", []
    for version in versions:
        ground = Ground(
            target,
            version=version,
            root=f"{prefix}/{nonce}/{'mqtt5' if version == 5 else 'mqtt311'}",
            client_name=f"probe-{nonce}-{version}",
            set_size=set_size,
            read_filter=read_filter,
        )
        try:
            await _open(ground)
        except aiomqtt.MqttError as error:
            refusals.append(error)
            reports.append(VersionReport(version, (_refused(error),)))
            continue
        writable_prefix = None
        try:
            findings = await _test(ground, deadline, on_check)
            if next(one.result for one in findings if one.check == CONTROL).outcome is Outcome.NOT_PERMITTED:
                on_check("looking for a prefix where the user may write")
                writable_prefix = await _find_writable_prefix(ground, f"{nonce}-{version}", but=prefix)
        finally:
            on_check("cleaning up")
            left.append(await _clean_up(ground))
        named = next(one.result for one in findings if one.check == SERVER_VERSION)
        server = server or (named.seen if named.outcome is Outcome.PASSED else "")
        reports.append(VersionReport(version, (_connected(ground), *findings), writable_prefix))
    if len(refusals) == len(versions):
        cause = refusals[0].__context__
        if tls_failure is not None and isinstance(cause, ssl.SSLError | ConnectionResetError):
            raise tls_failure(cause) from cause
        raise _error(address, refusals, has_tls=tls_failure is not None)
    complete = all(one.result.outcome is not Outcome.NOT_TESTED for report in reports for one in report.findings)
    return ProbeReport(address, server, tuple(reports), complete, "; ".join(filter(None, left)))


async def _open(ground: Ground) -> None:
    """Connect once, and note the properties of CONNACK."""
    async with ground.client() as client:
        ground.connack = dict(client.connack)


async def _test(ground: Ground, deadline: float, on_check: Callable[[str], None]) -> list[Finding]:
    findings: list[Finding] = []
    results: dict[str, Result] = {}
    for check in CHECKS:
        if ground.version not in check.versions or (check.for_filter and ground.read_filter is None):
            continue
        hindrance = _hindrance(check, results)
        if hindrance is None:
            on_check(f"MQTT {'5' if ground.version == 5 else '3.1.1'}: {check.name}")
            result = await _make(check, ground, deadline)
        else:
            result = hindrance
        results[check.name] = result
        meaning = check.passed if result.outcome is Outcome.PASSED else check.otherwise
        findings.append(Finding(check.name, result, meaning if result.outcome.was_tested else ""))
    return findings


async def _make(check: Check, ground: Ground, deadline: float) -> Result:
    task = asyncio.current_task()
    if task is not None and task.cancelling():  # Ctrl-C that `asyncio.wait_for` of Python 3.11 kept to itself
        raise asyncio.CancelledError
    if asyncio.get_running_loop().time() >= deadline:
        return Result(Outcome.NOT_TESTED, "the time was up")
    try:
        async with asyncio.timeout_at(deadline):
            return await check.run(ground)
    except TimeoutError:
        return Result(Outcome.NOT_TESTED, "the time was up")
    except aiomqtt.MqttError as error:
        return failed(_told(error))


async def _find_writable_prefix(ground: Ground, name: str, *, but: str) -> str | None:
    """Return a prefix below which a message of the user comes back to it; None when there is none.

    Args:
        ground: Of a version in which it does not come back below the prefix of the probe.
        name: Last level of the topics that are tried, which no application reads.
        but: The prefix of the probe.
    """
    username = ground.target.username or ""
    candidates = [_CONTROL_TOPIC]
    if username and not username.startswith("$") and not set(username) & set("+#\0"):
        candidates.append(username)  # many brokers give each user a branch of its name
    for candidate in candidates:
        if candidate == but:
            continue
        try:
            async with asyncio.timeout(_CANDIDATE_S):
                if (await retained.try_control_topic(ground, f"{candidate}/{name}")).outcome is Outcome.PASSED:
                    return candidate
        except (TimeoutError, aiomqtt.MqttError):
            continue
    return None


def _hindrance(check: Check, results: dict[str, Result]) -> Result | None:
    """Return the result of a check whose needs did not pass; None when they did."""
    for name in check.needs:
        outcome = results[name].outcome
        if not outcome.was_tested:
            return Result(outcome, f"it needs: {name}")
        if outcome is not Outcome.PASSED:
            return Result(Outcome.NOTHING_TO_TEST, f"it needs: {name}")
    return None


async def _clean_up(ground: Ground) -> str:
    """Clean up in a task of its own, so that Ctrl-C does not cut it short."""
    cleaning = asyncio.create_task(ground.clean_up(), name="probe: clean up")
    try:
        async with asyncio.timeout(_CLEAN_UP_S):
            return await asyncio.shield(cleaning)
    except TimeoutError:
        cleaning.cancel()
        return f"retained messages below {ground.root}/"
    except asyncio.CancelledError:
        await asyncio.wait([cleaning], timeout=_CLEAN_UP_S)
        raise


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error in a callback, except those of aiomqtt for a socket that was closed meanwhile."""
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno == errno.EBADF):
        loop.default_exception_handler(context)


def _connected(ground: Ground) -> Finding:
    return Finding(CONNECT, passed("accepted"), f"version = {ground.version}")


def _refused(error: aiomqtt.MqttError) -> Finding:
    return Finding(CONNECT, not_available(_told(error)), "a link cannot use this version")


def _code(error: aiomqtt.MqttError) -> int | None:
    """Return the Reason Code of a refused CONNECT; None when the primary did not answer with one."""
    code = error.rc if isinstance(error, MqttConnectError) else None
    return code if code is None or isinstance(code, int) else code.value


def _told(error: aiomqtt.MqttError) -> str:
    cause = error.__context__  # aiomqtt keeps an error of the system there
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
    return text[:1].lower() + text[1:]


def _error(
    address: str, refusals: Sequence[aiomqtt.MqttError], *, has_tls: bool
) -> PrimaryRefused | PrimaryUnreachable:
    """Return the error for a primary that accepted no version."""
    coded = [(code, error) for error in refusals if (code := _code(error)) is not None]
    told = [one for one in coded if one[0] not in _UNSUPPORTED] or coded
    if told:
        code, error = told[0]
        return PrimaryRefused(
            f"{address} refuses the connection: {_told(error)}",
            reason_code=code,
            hint="Give --username, and --password-file or --password-env, of a user that may connect",
        )
    if isinstance(refusals[0].__context__, OSError):
        return PrimaryUnreachable(
            f"cannot connect to {address}: {_told(refusals[0])}", hint="Check the address, and that the primary runs"
        )
    return PrimaryUnreachable(
        f"{address} does not answer as an MQTT server: {_told(refusals[0])}",
        hint="Check that an MQTT listener is there; it may want a client certificate (--client-certificate-file)"
        if has_tls
        else "Check that it is the address of an MQTT listener without TLS; one with TLS needs mqtts://",
    )
