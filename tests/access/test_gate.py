"""Tests of `fanout.access.gate`: who gets in, by what, and what a replacement changes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
from structlog.testing import CapturingLogger

from fanout.access import password_checks
from fanout.access.gate import Gate, is_loopback
from fanout.access.identity import Credentials, Identity, Means
from fanout.access.password_checks import PasswordOutcome
from fanout.access.passwords import PasswordFile
from fanout.config.access import AccessConfig, AnonymousPolicy, HookConfig, ReservedSection, RuleSection
from fanout.mqtt.reason_codes import ReasonCode
from tests.access.pieces import ManualClock, as_logger, cheap_hash, credentials, seen
from tests.access.service import Service, open_service
from tests.support.waiting import wait_until

FROM_AFAR = {"address": "10.0.0.7", "local": False}


def password_file(users: Mapping[str, bytes], exposure: str = "") -> PasswordFile:
    """Return a file with these users."""
    file = PasswordFile(exposure=exposure)
    for user, password in users.items():
        file = file.with_user(user, cheap_hash(password))
    return replace(file, exposure=exposure)


ALICE = password_file({"alice": b"secret"})


@contextlib.asynccontextmanager
async def open_gate(
    config: AccessConfig | None = None, *, passwords: PasswordFile | None = None, logger: CapturingLogger | None = None
) -> AsyncIterator[Gate]:
    """Give a gate that is closed afterwards."""
    gate = Gate(
        config or AccessConfig(),
        passwords=passwords,
        monotonic=ManualClock(),
        logger=as_logger(logger or CapturingLogger()),
    )
    try:
        yield gate
    finally:
        await gate.close()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Return a service that allows everything."""
    async with open_service() as service:
        yield service


async def admitted(gate: Gate, shown: Credentials) -> Identity:
    """Let a client in."""
    identity = await gate.authenticate(shown)
    assert isinstance(identity, Identity), identity
    return identity


def from_afar(username: str | None = None, password: bytes | None = None) -> Credentials:
    """Return what a client of another machine shows."""
    return credentials(username, password, address="10.0.0.7", local=False)


@pytest.mark.parametrize(
    ("policy", "address", "local", "expected"),
    [
        ("loopback", "127.0.0.1", True, True),
        ("loopback", "::1", True, True),
        ("loopback", "", True, True),  # a Unix socket
        ("loopback", "10.0.0.7", True, False),  # told by a proxy on this machine
        ("loopback", "127.0.0.1", False, False),  # through a listener that others reach too
        ("loopback", "10.0.0.7", False, False),
        ("always", "10.0.0.7", False, True),
        ("never", "127.0.0.1", True, False),
    ],
)
async def test_the_policy_for_anonymous_clients(
    policy: AnonymousPolicy, address: str, local: bool, expected: bool
) -> None:
    """By default only this machine, through a listener that only this machine reaches."""
    async with open_gate(AccessConfig(anonymous=policy)) as gate:
        answer = await gate.authenticate(credentials(address=address, local=local))
        if expected:
            assert answer == Identity(client_id="sensor-1", address=address, local=local)
        else:
            assert answer is ReasonCode.NOT_AUTHORIZED


async def test_a_name_that_nobody_can_verify_does_not_count() -> None:
    """Without a file and a hook the client is anonymous, whatever it calls itself."""
    async with open_gate() as gate:
        identity = await admitted(gate, credentials("admin", b"x"))
        assert (identity.user, identity.means) == ("", Means.ANONYMOUS)
        assert await gate.authenticate(from_afar("admin", b"x")) is ReasonCode.NOT_AUTHORIZED


async def test_a_user_of_the_file_needs_its_password() -> None:
    """From anywhere; a wrong one is refused even where anonymous clients are not."""
    async with open_gate(passwords=ALICE) as gate:
        identity = await admitted(gate, from_afar("alice", b"secret"))
        assert (identity.user, identity.means, identity.superuser) == ("alice", Means.PASSWORD, False)
        for user, password in [("alice", b"wrong"), ("alice", None), ("bob", b"secret"), ("", b"secret"), ("", b"")]:
            refused = await gate.authenticate(credentials(user, password))
            assert refused is ReasonCode.BAD_USER_NAME_OR_PASSWORD, (user, password)
        assert (await admitted(gate, credentials(""))).means is Means.ANONYMOUS
        assert await gate.authenticate(from_afar()) is ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("client_id", "user", "admitted"),
    [
        ("fanout-edge-1-plant", "alice", True),
        ("fanout-edge-1-plant", "bob", False),
        ("fanout-edge-1-plant", "", False),
        ("x-fanout-edge-1", "bob", True),
        ("door", "carol", True),
        ("door", "alice", False),
    ],
)
async def test_reserved_client_identifiers_are_for_their_user(client_id: str, user: str, admitted: bool) -> None:
    """Others get 0x85, with a right password too; several tables are for several users."""
    reserved = (
        ReservedSection(client_id="fanout-*", user="alice"),
        ReservedSection(client_id="door", user="bob"),
        ReservedSection(client_id="door", user="carol"),
    )
    users = password_file({"alice": b"1", "bob": b"1", "carol": b"1"})
    async with open_gate(AccessConfig(anonymous="always", reserved=reserved), passwords=users) as gate:
        shown = credentials(user or None, b"1" if user else None, client_id=client_id)
        answer = await gate.authenticate(shown)
        assert isinstance(answer, Identity) == admitted
        assert admitted or answer is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        assert gate.figures()["refused_total"] == ({} if admitted else {"client_identifier_not_valid": 1})
        if not user:
            assert gate.authenticate_now(shown) is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


async def test_a_certificate_is_enough() -> None:
    """Its user counts, not the User Name beside it, and no password is asked for."""
    async with open_gate(AccessConfig(anonymous="never"), passwords=ALICE) as gate:
        shown = credentials("alice", b"wrong", certificate_user="edge", **FROM_AFAR)  # type: ignore[arg-type]
        identity = await admitted(gate, shown)
        assert (identity.user, identity.means) == ("edge", Means.CERTIFICATE)


async def test_the_hook_is_asked_for_users_that_the_file_does_not_have(service: Service) -> None:
    """A user of the file is the file's business."""
    async with open_gate(AccessConfig(http=HookConfig(url=service.url)), passwords=ALICE) as gate:
        assert (await admitted(gate, from_afar("alice", b"secret"))).means is Means.PASSWORD
        assert await gate.authenticate(from_afar("alice", b"wrong")) is ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert service.asked == []
        identity = await admitted(gate, from_afar("bob", b"hello"))
        assert (identity.user, identity.means) == ("bob", Means.HOOK)
        [question] = service.asked
        assert (question["username"], question["password"]) == ("bob", "hello")


async def test_what_the_hook_says_of_a_client(service: Service) -> None:
    """It can name the user, as for a token without a User Name, and a superuser."""
    service.answer = {"allow": True, "superuser": True, "user": "carol"}
    async with open_gate(AccessConfig(http=HookConfig(url=service.url))) as gate:
        identity = await admitted(gate, from_afar(None, b"token"))
        assert (identity.user, identity.superuser) == ("carol", True)
        service.answer = {"allow": False}
        assert await gate.authenticate(from_afar("bob", b"x")) is ReasonCode.NOT_AUTHORIZED
        assert await gate.authenticate(from_afar("bob", b"\xff")) is ReasonCode.BAD_USER_NAME_OR_PASSWORD


async def test_an_anonymous_client_needs_the_policy_and_the_hook(service: Service) -> None:
    """Where the policy says no, the hook is not asked."""
    async with open_gate(AccessConfig(http=HookConfig(url=service.url))) as gate:
        assert await gate.authenticate(from_afar()) is ReasonCode.NOT_AUTHORIZED
        assert service.asked == []
        identity = await admitted(gate, credentials())
        assert (identity.user, identity.means) == ("", Means.HOOK)
        service.answer = {"allow": False}
        assert await gate.authenticate(credentials(client_id="s2")) is ReasonCode.NOT_AUTHORIZED


async def test_a_hook_that_is_not_asked_to_connect_verifies_nobody(service: Service) -> None:
    """It decides on topics only."""
    config = AccessConfig(http=HookConfig(url=service.url, actions=("publish",)))
    async with open_gate(config) as gate:
        assert (await admitted(gate, credentials("bob", b"x"))).means is Means.ANONYMOUS
        assert service.asked == []


async def test_a_failing_hook_asks_the_client_to_come_again(service: Service) -> None:
    """Unavailable, or busy when too many wait; never admitted."""
    service.status = 500
    config = AccessConfig(http=HookConfig(url=service.url, requests_max=1, queue_max=1))
    async with open_gate(config) as gate:
        assert await gate.authenticate(from_afar("bob", b"x")) is ReasonCode.SERVER_UNAVAILABLE
        service.open.clear()
        waiting = [asyncio.create_task(gate.authenticate(from_afar(f"bob-{n}", b"x"))) for n in range(2)]
        await wait_until(lambda: gate.figures()["hook_waiting"] == 2)
        assert await gate.authenticate(from_afar("eve", b"x")) is ReasonCode.SERVER_BUSY
        service.open.set()
        assert set(await asyncio.gather(*waiting)) == {ReasonCode.SERVER_UNAVAILABLE}


async def test_closing_refuses_those_who_wait(service: Service) -> None:
    """For the hook, and for a password."""
    service.open.clear()
    async with open_gate(AccessConfig(http=HookConfig(url=service.url))) as gate:
        waiting = asyncio.create_task(gate.authenticate(from_afar("bob", b"x")))
        await wait_until(lambda: len(service.asked) == 1)
    assert await waiting is ReasonCode.SERVER_UNAVAILABLE


async def test_checks_that_cannot_be_done_ask_the_client_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many wait: busy. Argon2 gets no memory: unavailable."""
    let_go = threading.Event()

    def fail(_stored: str, _password: bytes) -> PasswordOutcome:
        assert let_go.wait(30)
        return PasswordOutcome.FAILED

    monkeypatch.setattr(password_checks, "_verify", fail)
    config = AccessConfig(password_checks_max=1, password_queue_max=1)
    async with open_gate(config, passwords=ALICE) as gate:
        waiting = [asyncio.create_task(gate.authenticate(from_afar("alice", b"%d" % n))) for n in range(2)]
        await wait_until(lambda: gate.figures()["password_waiting"] == 2)
        assert await gate.authenticate(from_afar("alice", b"secret")) is ReasonCode.SERVER_BUSY
        let_go.set()
        assert set(await asyncio.gather(*waiting)) == {ReasonCode.SERVER_UNAVAILABLE}


async def test_a_replacement_says_what_changed() -> None:
    """Nothing, the rules, the policy, the hook, and users that are gone or have another password."""
    async with open_gate(passwords=password_file({"alice": b"a", "bob": b"b", "carol": b"c"})) as gate:
        same = gate.replace(AccessConfig(), passwords=password_file({"carol": b"c", "bob": b"b", "alice": b"a"}))
        assert not same.sessions_to_check
        assert not same.hook
        change = gate.replace(
            AccessConfig(
                anonymous="never",
                rules=(RuleSection(filter="a", allow="read"),),
                http=HookConfig(url="http://127.0.0.1:1/", actions=("publish",)),
            ),
            passwords=password_file({"alice": b"a", "bob": b"new", "dave": b"d"}),
        )
        assert (change.anonymous, change.rules, change.hook) == (True, True, True)
        assert change.users_revoked == {"bob", "carol"}
        assert change.sessions_to_check
        gone = gate.replace(AccessConfig(), passwords=None)
        assert gone.users_revoked == {"alice", "bob", "dave"}


async def test_who_may_stay_after_a_replacement() -> None:
    """An identity that rests on nothing any more has to go; the others stay."""
    config = AccessConfig(anonymous="always")
    async with open_gate(config, passwords=password_file({"alice": b"a", "bob": b"b", "carol": b"c"})) as gate:
        alice, bob, carol = [
            await admitted(gate, credentials(user, user[:1].encode())) for user in ("alice", "bob", "carol")
        ]
        nobody, stranger = await admitted(gate, credentials()), await admitted(gate, from_afar())
        edge = await admitted(gate, credentials(certificate_user="edge"))
        everybody = (alice, bob, carol, nobody, stranger, edge)
        assert all(gate.admits(identity) for identity in everybody)
        gate.replace(AccessConfig(), passwords=password_file({"alice": b"a", "bob": b"new"}))
        assert [gate.admits(identity) for identity in everybody] == [True, False, False, True, False, True]
        gate.replace(AccessConfig(anonymous="never"), passwords=None)
        assert [gate.admits(identity) for identity in everybody] == [False, False, False, False, False, True]


async def test_the_owner_of_a_moved_session_is_judged_by_this_gate() -> None:
    """Its proof is the password that this node has stored; who could not connect here has no rights here either."""
    alice = Identity(client_id="c", user="alice", means=Means.PASSWORD)
    nobody = Identity(client_id="c", address="10.0.0.7")
    edge = Identity(client_id="c", user="edge", means=Means.CERTIFICATE)
    async with open_gate(passwords=ALICE) as gate:
        access = gate.authorize_moved(alice)
        assert access is not None
        assert access.identity == replace(alice, proof=ALICE.users["alice"])
        assert gate.admits(access.identity)
        assert gate.authorize_moved(replace(alice, user="bob")) is None
        assert gate.authorize_moved(nobody) is None
        assert gate.authorize_moved(edge) is not None
    async with open_gate(AccessConfig(anonymous="always")) as gate:
        assert gate.authorize_moved(alice) is None
        assert gate.authorize_moved(nobody) is not None


async def test_a_password_that_changes_during_its_check_does_not_admit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is checked again, against the file in force."""
    let_go = threading.Event()
    real = password_checks._verify

    def held(stored: str, password: bytes) -> PasswordOutcome:
        assert let_go.wait(30)
        return real(stored, password)

    monkeypatch.setattr(password_checks, "_verify", held)
    async with open_gate(AccessConfig(), passwords=ALICE) as gate:
        waiting = asyncio.create_task(gate.authenticate(from_afar("alice", b"secret")))
        await wait_until(lambda: gate.figures()["password_waiting"] == 1)
        gate.replace(AccessConfig(), passwords=password_file({"alice": b"new"}))
        let_go.set()
        assert await waiting is ReasonCode.BAD_USER_NAME_OR_PASSWORD
        let_go.clear()
        waiting = asyncio.create_task(gate.authenticate(from_afar("alice", b"new")))
        await wait_until(lambda: gate.figures()["password_waiting"] == 1)
        gate.replace(AccessConfig(), passwords=None)
        let_go.set()
        assert await waiting is ReasonCode.SERVER_BUSY


async def test_replacing_the_hook_lets_its_questions_finish(service: Service) -> None:
    """Clients on their way in are answered, and the counts go on."""
    service.open.clear()
    config = AccessConfig(http=HookConfig(url=service.url))
    async with open_gate(config) as gate:
        waiting = asyncio.create_task(gate.authenticate(from_afar("bob", b"x")))
        await wait_until(lambda: len(service.asked) == 1)
        assert gate.replace(AccessConfig(http=HookConfig(url=service.url, timeout_s=9)), passwords=None).hook
        again = asyncio.create_task(gate.authenticate(from_afar("bob", b"x")))
        await wait_until(lambda: len(service.asked) == 2)
        service.open.set()
        assert [isinstance(answer, Identity) for answer in await asyncio.gather(waiting, again)] == [True, True]
        assert gate.figures()["hook_asked_total"] == 2
        gate.replace(AccessConfig(), passwords=None)
        figures = gate.figures()
        assert (figures["hook_asked_total"], figures["hook_waiting"]) == (2, 0)


async def test_figures(service: Service) -> None:
    """What came in and by what, what was refused and why."""
    config = AccessConfig(
        http=HookConfig(url=service.url), rules=(RuleSection(filter="a", allow="all"),), decisions_max=5
    )
    async with open_gate(config, passwords=ALICE) as gate:
        identity = await admitted(gate, from_afar("alice", b"secret"))
        await admitted(gate, from_afar("alice", b"secret"))
        await admitted(gate, from_afar("bob", b"x"))
        await admitted(gate, credentials(certificate_user="edge"))
        await gate.authenticate(from_afar("alice", b"wrong"))
        await gate.authenticate(from_afar())
        service.status = 500
        await gate.authenticate(from_afar("eve", b"x"))
        gate.authorize(identity).may_publish(b"a")
        figures = gate.figures()
    assert figures["admitted_total"] == {"anonymous": 0, "password": 2, "certificate": 1, "hook": 1}
    assert figures["refused_total"] == {"bad_user_name_or_password": 1, "not_authorized": 1, "server_unavailable": 1}
    assert (figures["password_checks_total"], figures["password_remembered_total"], figures["password_waiting"]) == (
        2,
        1,
        0,
    )
    assert (figures["hook_asked_total"], figures["hook_remembered_total"], figures["hook_waiting"]) == (2, 0, 0)
    assert figures["hook_failures_total"]["status"] == 1
    assert (figures["rules"], figures["users"], figures["decisions"]) == (1, 1, 1)


async def test_an_exposed_file_is_told() -> None:
    """At the start and at each replacement, with what to do."""
    logger = CapturingLogger()
    async with open_gate(passwords=password_file({}, "everybody can read it"), logger=logger) as gate:
        gate.replace(AccessConfig(), passwords=password_file({}))
    [(level, event, fields)] = seen(logger)
    assert (level, event, fields["reason"]) == ("warning", "password_file_exposed", "everybody can read it")


def test_secrets_do_not_show() -> None:
    """A password or a hash does not get into a log line by way of a value's text."""
    shown = repr(credentials("alice", b"secret")) + repr(Identity(client_id="s1", proof="$argon2id$"))
    assert "secret" not in shown
    assert "argon2id" not in shown


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("::ffff:10.0.0.7", False),
        ("2001:db8::1", False),
        ("edge-1", False),
        ("", False),
    ],
)
def test_what_is_loopback(host: str, expected: bool) -> None:
    """Addresses that no other machine reaches."""
    assert is_loopback(host) is expected


async def test_nobody_is_asked_for_what_is_known_at_once(service: Service) -> None:
    """Certificates and plain anonymous clients are decided, and counted, without waiting; the rest is not."""
    certified = credentials("x", b"y", certificate_user="carol")
    async with open_gate(passwords=ALICE) as gate:
        anonymous = gate.authenticate_now(credentials())
        assert isinstance(anonymous, Identity)
        assert anonymous.means is Means.ANONYMOUS
        assert gate.authenticate_now(from_afar()) is ReasonCode.NOT_AUTHORIZED
        known = gate.authenticate_now(certified)
        assert isinstance(known, Identity)
        assert known.user == "carol"
        assert gate.authenticate_now(credentials("alice", b"secret")) is None
        figures = gate.figures()
        assert (figures["admitted_total"]["anonymous"], figures["admitted_total"]["certificate"]) == (1, 1)
        assert figures["refused_total"] == {"not_authorized": 1}
    async with open_gate(AccessConfig(http=HookConfig(url=service.url))) as gate:
        assert gate.authenticate_now(credentials()) is None
        assert gate.authenticate_now(from_afar()) is ReasonCode.NOT_AUTHORIZED
        assert sum(gate.figures()["admitted_total"].values()) == 0
