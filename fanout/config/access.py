"""Settings of access control: `[access]`, its tables and `[access.http]`, legal values, rules between keys.

The dataclasses are in the style of `fanout.config.settings`, which includes `AccessConfig`: Pydantic reads the
annotations when a file is loaded, and a class that is built directly is not validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, Strict

from fanout.access.filters import RuleFilter, covers
from fanout.access.rules import ANY, DECISIONS_MAX, Direction, Rule
from fanout.config.values import ByteCount, Count, HookUrl, PathText, Seconds, SecondsOrZero, fault, parsed
from fanout.errors import ConfigFault
from fanout.mqtt.data_representation import MAX_STRING_BYTES

__all__ = [
    "AccessConfig",
    "AnonymousPolicy",
    "HookAction",
    "HookConfig",
    "QuotaSection",
    "RuleSection",
    "find_access_faults",
    "rules_of",
]

AnonymousPolicy: TypeAlias = Literal["loopback", "always", "never"]
"""Clients that may connect without a verified user.

loopback: those of this machine, through a listener that only this machine reaches.
always:   all.
never:    none.
"""
HookAction: TypeAlias = Literal["connect", "subscribe", "publish"]
"""Actions that the HTTP hook can decide on."""

_STRICT = ConfigDict(extra="forbid")


def _rule_filter(text: str) -> str:
    RuleFilter(text)
    return text


def _rule_user(text: str) -> str:
    if "\0" in text or len(text.encode()) > MAX_STRING_BYTES or ("*" in text and text != ANY):
        raise fault(
            f'"{text[:60]}" is not a user name; only "*" alone stands for others',
            'Write one name, "*" for every client, or "" for clients without a user.',
        )
    return text


def _client_ids(text: str) -> str:
    if not text or "\0" in text or len(text.encode()) > MAX_STRING_BYTES:
        raise fault(
            "no Client Identifier can match it: it is empty, too long, or contains the character U+0000",
            'Write an identifier, in which "*" stands for any characters.',
        )
    return text


def _some(actions: tuple[HookAction, ...]) -> tuple[HookAction, ...]:
    if not actions:
        raise fault("the list is empty: the hook would never be asked", "Name an action, or remove [access.http].")
    return actions


RuleFilterText: TypeAlias = Annotated[str, parsed(_rule_filter)]
RuleUser: TypeAlias = Annotated[str, parsed(_rule_user)]
ClientIds: TypeAlias = Annotated[str, parsed(_client_ids)]
HookActions: TypeAlias = Annotated[tuple[HookAction, ...], AfterValidator(_some)]
Few: TypeAlias = Annotated[int, Strict(), Field(ge=1, le=256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSection:
    """`[[access.rule]]`: one rule for topics; `rules_of` makes a `fanout.access.rules.Rule` of it."""

    __pydantic_config__ = _STRICT

    filter: RuleFilterText
    """Topic Filter that it decides on; `%u` is the client's user, `%c` its Client Identifier, `%%` a per cent sign."""
    allow: Direction | None = None
    """Allowed action: "read", "write" or "all"; this or `deny`."""
    deny: Direction | None = None
    """Denied action."""
    user: RuleUser = ANY
    """User that it is for: a name, "*" for every client, or "" for clients without a user."""
    client_id: ClientIds = ANY
    """Client Identifiers that it is for; "*" stands for any characters."""
    max_age_s: SecondsOrZero = 0.0
    """Bound on the age of what waits for clients that it lets read, in all their subscriptions; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedSection:
    """`[[access.reserved]]`: Client Identifiers that one user may have, and no other client."""

    __pydantic_config__ = _STRICT

    client_id: ClientIds = "fanout-*"
    """The identifiers, those of nodes by default; "*" stands for any characters."""
    user: RuleUser = ""
    """The user, which must be named; several tables with the same identifiers are for several users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSection:
    """`[[access.quota]]`: bounds on what one user may have at this node; the first table that fits a user counts."""

    __pydantic_config__ = _STRICT

    user: RuleUser = ANY
    """User that it is for: a name, "*" for every user by itself, or "" for all clients without a user together."""
    sessions_max: Count | None = None
    """Sessions of the user; None for four fifths of `server.sessions_max`."""
    connections_max: Count | None = None
    """Network Connections of the user, and as many streams over HTTP; None for four fifths of
    `server.connections_max`, and for the share of streams that every user has."""
    subscriptions_max: Count = 1_000_000
    """Subscriptions of all sessions of the user."""
    retained_topics_max: Count | None = None
    """Retained values of this node's own topics that the user published; None for four fifths of
    `server.retained_topics_max`."""
    retained_bytes_max: ByteCount | None = None
    """Bytes of their topics, payloads and properties; None for four fifths of `server.retained_bytes_max`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookConfig:
    """`[access.http]`: a service that is asked."""

    __pydantic_config__ = _STRICT

    url: HookUrl
    """Address that questions are posted to."""
    actions: HookActions = ("connect",)
    """Actions to ask about: "connect", "subscribe", "publish"."""
    timeout_s: Seconds = 3.0
    """Time for an answer, with the wait for a free request; a later answer counts as a refusal."""
    requests_max: Few = 32
    """Requests at a time."""
    queue_max: Count = 1_000
    """Questions that may wait for a free request; more are refused."""
    remember_s: SecondsOrZero = 30.0
    """Time for which an answer is remembered; 0 asks each time."""
    remembered_max: Count = 10_000
    """Answers that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """`[access]`: who may connect, and who may read and write which topics.

    Without the section its defaults hold: clients of this machine may do everything, others nothing.
    """

    __pydantic_config__ = _STRICT

    anonymous: AnonymousPolicy = "loopback"
    """Clients that may connect without a verified user; see `AnonymousPolicy`."""
    password_file: PathText | None = None
    """Users and the hashes of their passwords, made by `fanout passwd`; None for none."""
    password_checks_max: Few = 2
    """Passwords checked at a time; each takes one core, and 19 MiB."""
    password_queue_max: Count = 1_000
    """Clients whose password may wait for its check; more are told that the server is busy."""
    password_remember_s: SecondsOrZero = 60.0
    """Time for which the outcome of a check is remembered; 0 checks each time."""
    password_remembered_max: Count = 10_000
    """Number of remembered outcomes: of matches, and the same of mismatches."""
    decisions_max: Count = DECISIONS_MAX
    """Decisions on topics of PUBLISH packets that are remembered, for all clients together."""
    http: HookConfig | None = None
    """`[access.http]`; None when absent: no service is asked."""
    quotas: Annotated[tuple[QuotaSection, ...], Field(alias="quota")] = ()
    """Tables `[[access.quota]]`, in order; for a user without one the defaults hold, if clients may have users."""
    reserved: tuple[ReservedSection, ...] = ()
    """Tables `[[access.reserved]]`; with none every client may have every Client Identifier."""
    rules: Annotated[tuple[RuleSection, ...], Field(alias="rule")] = ()
    """Tables `[[access.rule]]`, in order; with none everything is allowed, with one the rest is denied."""


def rules_of(config: AccessConfig) -> tuple[Rule, ...]:
    """Return the rules of a configuration without faults."""
    return tuple(
        Rule(
            allows=section.deny is None,
            direction=section.allow or section.deny or "all",
            filter=section.filter,
            user=section.user,
            client_id=section.client_id,
            max_age_s=section.max_age_s,
        )
        for section in config.rules
    )


def find_access_faults(config: AccessConfig) -> list[ConfigFault]:
    """Return all faults between the keys of `[access]`."""
    reserved = [
        ConfigFault(
            f"access.reserved[{index}].user",
            "it is not one user, so nothing is reserved",
            "Name the user that the identifiers are for.",
        )
        for index, section in enumerate(config.reserved)
        if section.user in ("", ANY)
    ]
    return reserved + [fault for index in range(len(config.rules)) for fault in _rule_faults(config.rules, index)]


def _rule_faults(rules: tuple[RuleSection, ...], index: int) -> Iterator[ConfigFault]:
    rule, key = rules[index], f"access.rule[{index}]"
    if rule.allow is None and rule.deny is None:
        yield ConfigFault(f"{key}.allow", "is missing", 'Add allow = "read", "write" or "all", or deny.')
    elif rule.allow is not None and rule.deny is not None:
        yield ConfigFault(f"{key}.deny", "allow is given too", "Keep one of them; write two rules for both.")
    elif rule.max_age_s and rule.allow not in ("read", "all"):
        yield ConfigFault(f"{key}.max_age_s", "the rule lets nobody read", "Put it into a rule that allows to read.")
    for other_index, other in enumerate(rules[:index]):
        if _decides_all(other, rule):
            yield ConfigFault(
                f"{key}.filter",
                f'"{rule.filter}" is never reached: access.rule[{other_index}], "{other.filter}", comes first and '
                "decides on all of it",
                f"Put it before access.rule[{other_index}], or remove it: the first rule that fits decides.",
            )
            return


def _decides_all(first: RuleSection, later: RuleSection) -> bool:
    """Return True if `first` leaves nothing to decide for `later`, for any client."""
    return (
        (first.allow or first.deny) in ("all", later.allow or later.deny)
        and first.user in (ANY, later.user)
        and first.client_id in (ANY, later.client_id)
        and not RuleFilter(first.filter).placeholders  # placeholders limit it to clients whose names can be filled in
        and covers(first.filter, later.filter)
    )
