"""Gate: joins password file, HTTP hook and rules; decides who may connect, read and write.

Owns the order in which they are asked, and their replacement while clients are connected.

Authentication: a verified client certificate settles the identity. Otherwise a user of the password file needs its
password, and every other client that shows a User Name or a password is put to the hook, if it is asked for "connect".
Without a file and without a hook no name can be verified, and the client is anonymous. A client that shows nothing is
anonymous too, and a hook that is asked for "connect" must agree.

Authorization: the rules must allow a topic, and so must the hook where it is asked for "subscribe" or "publish". A
superuser, whom only the hook can name, may do everything.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fanout.access.authorization import Access
from fanout.access.client_ids import matches_pattern
from fanout.access.http_hook import FAILURES, Answer, HttpHook, Question
from fanout.access.identity import Credentials, Identity, Means
from fanout.access.password_checks import PasswordChecks, PasswordOutcome
from fanout.access.passwords import PasswordFile
from fanout.access.rules import ANY, RuleSet
from fanout.config.access import AccessConfig, HookAction, QuotaSection, rules_of
from fanout.mqtt.reason_codes import ReasonCode
from fanout.runtime.origin import origin_of

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["AccessChange", "Gate", "is_loopback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessChange:
    """Changes of a replacement; `Gate.admits` and `Access.lost` tell the consequence for one client."""

    anonymous: bool
    """True if the set of clients that may connect without a verified user has changed."""
    rules: bool
    """True if the rules have changed, so that subscriptions may be lost."""
    hook: bool
    """True if the hook or its actions have changed. Its answers for connected clients stand."""
    users_revoked: frozenset[str]
    """Users that are gone or have another password: their connections are no longer authenticated."""

    @property
    def sessions_to_check(self) -> bool:
        """True if any session may be affected."""
        return self.anonymous or self.rules or bool(self.users_revoked)


class Gate:
    """Decides who may connect, read and write.

    Attributes:
        config: The configuration in force.
        rules: The rules in force; another object when they are replaced.
        hook: The hook in force; None when there is none.
    """

    def __init__(
        self,
        config: AccessConfig,
        *,
        passwords: PasswordFile | None,
        monotonic: Callable[[], float],
        logger: FilteringBoundLogger,
    ) -> None:
        """Create a gate; threads and connections begin when they are needed.

        Args:
            config: The configuration.
            passwords: The content of `config.password_file`; None without that key.
            monotonic: Tells seconds of a clock that never goes back.
            logger: Takes log lines.
        """
        self.config = config
        self.rules = RuleSet(rules_of(config), decisions_max=config.decisions_max)
        self._passwords = passwords
        self._monotonic = monotonic
        self._logger = logger
        self._admitted = dict.fromkeys(Means, 0)
        self._refused: dict[ReasonCode, int] = {}
        self._former_hooks = _HookFigures()
        self._retiring: dict[HttpHook, asyncio.Task[None]] = {}
        self._checks = PasswordChecks(
            checks_max=config.password_checks_max,
            queue_max=config.password_queue_max,
            remember_s=config.password_remember_s,
            entries_max=config.password_remembered_max,
            monotonic=monotonic,
        )
        self._checks.resemble(passwords.users.values() if passwords else ())
        self.hook = self._new_hook()
        self._warn()

    async def authenticate(self, credentials: Credentials, *, connects: bool = True) -> Identity | ReasonCode:
        """Authenticate a client; cancelling it loses nothing.

        Args:
            credentials: Name, password and certificate of the client.
            connects: False for a user who asks over HTTP, with each request: it counts when it is refused only.

        Returns:
            Its identity; or the Reason Code that refuses it: BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED,
            CLIENT_IDENTIFIER_NOT_VALID (reserved for another user), SERVER_BUSY (too many wait), or SERVER_UNAVAILABLE
            (the hook or a check failed).
        """
        answer = self._reserve(await self._authenticate(credentials))
        if connects or isinstance(answer, ReasonCode):
            self._count(answer)
        return answer

    def authenticate_now(self, credentials: Credentials) -> Identity | ReasonCode | None:
        """Return the result of `authenticate` if it is known without waiting; otherwise None."""
        known = self._without_asking(credentials)
        if known is None:
            return None
        answer = self._reserve(known)
        self._count(answer)
        return answer

    @property
    def has_users(self) -> bool:
        """True if clients may have a user by a password or the hook; by a certificate they may in any case."""
        return self._passwords is not None or self.hook is not None

    def quota_of(self, user: str) -> QuotaSection | None:
        """Return the first table of quotas that fits a user, "" for clients without one; None without such a table."""
        return next((one for one in self.config.quotas if one.user in (ANY, user)), None)

    def authorize(self, identity: Identity) -> Access:
        """Return the rights of a client, to be kept with its session."""
        return Access(self, identity)

    def authorize_moved(self, identity: Identity) -> Access | None:
        """Return the rights of the client of a session that comes from another node; None when it may not be here.

        A proof stays where it was given: for a password the one stored at this node counts from now on. The client has
        to authenticate here before it gets the session.
        """
        if identity.means is Means.PASSWORD:
            stored = self._passwords.users.get(identity.user) if self._passwords is not None else None
            if stored is None:
                return None
            identity = dataclasses.replace(identity, proof=stored)
        return Access(self, identity) if self.admits(identity) else None

    def admits(self, identity: Identity) -> bool:
        """Tell whether a client that was admitted before may stay.

        The answer of a hook and a certificate stand until the end of the connection.
        """
        match identity.means:
            case Means.ANONYMOUS:
                return self._admits_anonymous(identity.address, local=identity.local)
            case Means.PASSWORD:
                return self._passwords is not None and self._passwords.users.get(identity.user) == identity.proof
            case _:
                return True

    def replace(self, config: AccessConfig, *, passwords: PasswordFile | None) -> AccessChange:
        """Apply another configuration; connections stay, and open questions are answered.

        `password_checks_max`, `password_queue_max`, `password_remember_s` and `password_remembered_max` stay as they
        were at the start.

        Args:
            config: The new configuration.
            passwords: The content of its password file.

        Returns:
            The changes, for existing sessions.
        """
        former, former_passwords = self.config, self._passwords
        change = AccessChange(
            anonymous=config.anonymous != former.anonymous,
            rules=config.rules != former.rules,
            hook=config.http != former.http,
            users_revoked=_revoked(former_passwords, passwords),
        )
        self.config = config
        self._passwords = passwords
        if change.rules or config.decisions_max != former.decisions_max:
            self.rules = RuleSet(rules_of(config), decisions_max=config.decisions_max)
        if passwords is not None:
            self._checks.resemble(passwords.users.values())
        if change.hook:
            hook, self.hook = self.hook, self._new_hook()
            if hook is not None:
                self._retire(hook)
        self._warn()
        return change

    async def close(self) -> None:
        """Drop open questions and checks, and end threads and connections."""
        await self._checks.close()
        if self.hook is not None:
            await self.hook.close()
        for task in list(self._retiring.values()):
            await task

    def figures(self) -> dict[str, Any]:
        """Return the figures of the gate at this moment, by their names in `fanout.api.models.AccessStatus`."""
        figures = _HookFigures.of(self._former_hooks, *self._retiring, *([self.hook] if self.hook else []))
        return {
            "admitted_total": {means.value: count for means, count in self._admitted.items()},
            "refused_total": {code.name.lower(): count for code, count in self._refused.items()},
            "password_checks_total": self._checks.checked_total,
            "password_remembered_total": self._checks.remembered_total,
            "password_waiting": self._checks.unfinished,
            "hook_asked_total": figures.asked_total,
            "hook_remembered_total": figures.remembered_total,
            "hook_waiting": self.hook.unfinished if self.hook else 0,
            "hook_failures_total": figures.failures_total,
            "rules": len(self.rules.rules),
            "users": len(self._passwords.users) if self._passwords else 0,
            "decisions": self.rules.remembered,
        }

    def hook_for(self, action: HookAction) -> HttpHook | None:
        """Return the hook if it is asked for `action`."""
        return self.hook if self.hook is not None and action in self.hook.config.actions else None

    # --- authentication ---

    async def _authenticate(self, credentials: Credentials) -> Identity | ReasonCode:
        answer = self._without_asking(credentials)
        if answer is not None:
            return answer
        hook = self.hook_for("connect")
        if _shows_something(credentials) or hook is None:
            return await self._verify(credentials)
        return await self._ask_to_connect(hook, credentials)

    def _without_asking(self, credentials: Credentials) -> Identity | ReasonCode | None:
        """Return the identity of a client that needs neither a password check nor the hook; else None."""
        if credentials.certificate_user:
            return _identity(credentials, means=Means.CERTIFICATE, user=credentials.certificate_user)
        hook = self.hook_for("connect")
        if _shows_something(credentials) and (self._passwords is not None or hook is not None):
            return None
        if not self._admits_anonymous(credentials.address, local=credentials.local):
            return ReasonCode.NOT_AUTHORIZED
        return None if hook is not None else _identity(credentials, means=Means.ANONYMOUS)

    def _reserve(self, answer: Identity | ReasonCode) -> Identity | ReasonCode:
        """Refuse a client whose Client Identifier is reserved for other users."""
        if isinstance(answer, ReasonCode) or answer.superuser:
            return answer
        users = [one.user for one in self.config.reserved if matches_pattern(one.client_id, answer.client_id)]
        return answer if not users or answer.user in users else ReasonCode.CLIENT_IDENTIFIER_NOT_VALID

    def _count(self, answer: Identity | ReasonCode) -> None:
        if isinstance(answer, ReasonCode):
            self._refused[answer] = self._refused.get(answer, 0) + 1
        else:
            self._admitted[answer.means] += 1

    def _admits_anonymous(self, address: str, *, local: bool) -> bool:
        policy = self.config.anonymous
        if policy == "loopback":
            # The address too: a proxy on this machine forwards the address of its client.
            return local and (not address or is_loopback(address))
        return policy == "always"

    async def _verify(self, credentials: Credentials) -> Identity | ReasonCode:
        user, password = credentials.username or "", credentials.password or b""
        passwords = self._passwords
        while passwords is not None:
            stored = passwords.users.get(user)
            if stored is None and self.hook_for("connect") is not None:
                break
            outcome = await self._checks.check(
                password, user=user, stored=stored, address=origin_of(credentials.address)
            )
            passwords = self._passwords
            if passwords is None or passwords.users.get(user) != stored:
                continue  # the file was replaced during the check
            if outcome is PasswordOutcome.MATCH and stored is not None:
                return _identity(credentials, means=Means.PASSWORD, user=user, proof=stored)
            return _REFUSALS[outcome]
        hook = self.hook_for("connect")
        if hook is None:  # file and hook were removed meanwhile
            return ReasonCode.SERVER_BUSY
        return await self._ask_to_connect(hook, credentials)

    async def _ask_to_connect(self, hook: HttpHook, credentials: Credentials) -> Identity | ReasonCode:
        password = credentials.password
        if password is not None and not _is_text(password):
            return ReasonCode.BAD_USER_NAME_OR_PASSWORD  # JSON could not carry it
        question = Question("connect", credentials.client_id, credentials.username or None, credentials.address)
        asked = hook.ask(question, password=password)
        if isinstance(asked, Answer):
            answer = asked
        else:
            await asyncio.wait([asked])
            answer = Answer(allow=False, failure="unreachable") if asked.cancelled() else asked.result()
        if answer.failure:
            return ReasonCode.SERVER_BUSY if answer.failure == "busy" else ReasonCode.SERVER_UNAVAILABLE
        if not answer.allow:
            return ReasonCode.NOT_AUTHORIZED
        user = answer.user or credentials.username or ""
        return _identity(credentials, means=Means.HOOK, user=user, superuser=answer.superuser)

    # --- internal ---

    def _new_hook(self) -> HttpHook | None:
        if self.config.http is None:
            return None
        return HttpHook(self.config.http, monotonic=self._monotonic, logger=self._logger)

    def _retire(self, hook: HttpHook) -> None:
        def retired(_task: asyncio.Task[None]) -> None:
            del self._retiring[hook]
            self._former_hooks = _HookFigures.of(self._former_hooks, hook)

        task = asyncio.create_task(hook.close(finish=True), name="access-hook-retires")
        self._retiring[hook] = task
        task.add_done_callback(retired)

    def _warn(self) -> None:
        if self._passwords is not None and self._passwords.exposure:
            self._logger.warning(
                "password_file_exposed",
                reason=self._passwords.exposure,
                path=str(self.config.password_file),
                hint="chmod o= on the file",
            )


@dataclass(frozen=True, slots=True)
class _HookFigures:
    """Figures of one or several hooks."""

    asked_total: int = 0
    remembered_total: int = 0
    failures_total: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES, 0))

    @classmethod
    def of(cls, *counted: _HookFigures | HttpHook) -> _HookFigures:
        """Return the sum of figures."""
        return cls(
            sum(each.asked_total for each in counted),
            sum(each.remembered_total for each in counted),
            {reason: sum(each.failures_total[reason] for each in counted) for reason in FAILURES},
        )


_REFUSALS = {
    PasswordOutcome.MATCH: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    PasswordOutcome.MISMATCH: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    PasswordOutcome.BUSY: ReasonCode.SERVER_BUSY,
    PasswordOutcome.FAILED: ReasonCode.SERVER_UNAVAILABLE,
}


@functools.lru_cache(maxsize=1024)  # asked for every client; the same few addresses come again
def is_loopback(host: str) -> bool:
    """Tell whether `host`, an IP address or a name, is certainly loopback."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback  # a dual-stack socket gives IPv4 peers this form
    return address.is_loopback


def _shows_something(credentials: Credentials) -> bool:
    return bool(credentials.username) or credentials.password is not None


def _identity(
    credentials: Credentials, *, means: Means, user: str = "", superuser: bool = False, proof: str = ""
) -> Identity:
    return Identity(
        client_id=credentials.client_id,
        user=user,
        address=credentials.address,
        local=credentials.local,
        means=means,
        superuser=superuser,
        proof=proof,
    )


def _revoked(former: PasswordFile | None, now: PasswordFile | None) -> frozenset[str]:
    users = now.users if now is not None else {}
    return frozenset(user for user, stored in (former.users if former else {}).items() if users.get(user) != stored)


def _is_text(password: bytes) -> bool:
    try:
        password.decode()
    except UnicodeDecodeError:
        return False
    return True
