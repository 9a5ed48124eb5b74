"""One topic at all members of a pool: each explains it, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fanout.api.topic_facts import TopicExplanation
from fanout.api.topic_verdict import explain as judge
from fanout.cli.asking.client import NodeClient, pool_clients
from fanout.errors import FanoutError

__all__ = ["TopicInPool", "explain_in_pool"]

_LOOKS: Final = 3
"""Looks at members with different values, each equal to that of its primary. The value may just have changed."""
_OF_TWO: Final = "members hold different values, each that of its primary: they replicate different brokers"


@dataclass(frozen=True, slots=True)
class TopicInPool:
    """A topic, as the members of a pool explain it."""

    found: Mapping[str, TopicExplanation]
    """Member to its explanation; the member that was asked for the pool comes first."""
    left_out: Mapping[str, str]
    """Member that did not explain it, to the reason."""
    of_two_primaries: bool
    """True if members hold different values, each that of its primary, at different addresses."""

    @property
    def worst(self) -> str:
        """The member to look at: the first whose finding is not that all is well; else the first one."""
        return next((name for name, one in self.found.items() if one.verdict.kind != "equal"), next(iter(self.found)))

    @property
    def together(self) -> tuple[str, ...]:
        """Findings that no member can make alone, a sentence each, without a full stop."""
        return tuple(
            filter(
                None,
                (
                    _lost_on_the_way(self.found),
                    _OF_TWO if self.of_two_primaries else "",
                    _other_primaries(self.found),
                ),
            )
        )


def explain_in_pool(url: str, topic: str, *, client_id: str | None, token_file: Path | None) -> TopicInPool:
    """Let all members of a pool explain a topic, side by side.

    Args:
        url: HTTP address of one of them.
        topic: The topic, the same at all.
        client_id: The client that does not get it; None for none.
        token_file: Token of all of them; None for none.

    Raises:
        NodeUnreachable: The node at the address does not answer.
        RequestRefused: It is in no pool, or refuses.
    """
    with pool_clients(url, token_file=token_file) as (pool, asked, left_out):

        def explained(node: NodeClient) -> Callable[[], TopicExplanation]:
            return lambda: node.explain(topic, client_id=client_id)

        looks: list[Mapping[str, TopicExplanation]] = []
        while len(looks) < _LOOKS and (not looks or _are_of_two(looks[-1])):
            with ThreadPoolExecutor(len(asked)) as threads:
                waiting = {name: threads.submit(explained(node)) for name, node in asked.items()}
            found: dict[str, TopicExplanation] = {}
            for name, answer in waiting.items():
                error = answer.exception()
                if error is None:
                    found[name] = answer.result()
                elif name == pool.node or not isinstance(error, FanoutError):
                    raise error
                else:
                    left_out[name] = error.message
                    del asked[name]
            looks.append(found)
        stays = any(len({_digest(look[name]) for look in looks}) == 1 for name in found)
    return TopicInPool(_without_missing_sessions(found), dict(sorted(left_out.items())), stays and _are_of_two(found))


def _without_missing_sessions(found: Mapping[str, TopicExplanation]) -> Mapping[str, TopicExplanation]:
    """Return the explanations. A client without a session is a finding only if no member has one of it."""
    clients = [one.facts.client for one in found.values()]
    if not any(client is not None and client.session for client in clients):
        return found
    judged = {}
    for name, one in found.items():
        client = one.facts.client
        if client is not None and not client.session:
            one = judge(one.facts.model_copy(update={"client": None}))
        judged[name] = one
    return judged


def _lost_on_the_way(found: Mapping[str, TopicExplanation]) -> str:
    """Return a sentence if an update came to some members only: to which, and when. Else return an empty text."""
    lacking = [name for name, one in found.items() if one.verdict.kind in {"differs", "absent"}]
    came = {
        name: value.received
        for name, one in found.items()
        if one.verdict.kind in {"equal", "client"} and (value := one.facts.value) is not None and value.received
    }
    if not lacking or not came:
        return ""
    first = min(came.values())
    return (
        f"{', '.join(came)} got the value of the primary at {first:%Y-%m-%d %H:%M:%S} UTC and {', '.join(lacking)} did"
        f" not: it was lost between the primary and {', '.join(lacking)}"
    )


def _digest(one: TopicExplanation) -> str | None:
    return None if one.facts.value is None else one.facts.value.digest


def _are_of_two(found: Mapping[str, TopicExplanation]) -> bool:
    """Return True if members hold different values, each that of its primary, whose addresses differ."""
    equal = [one for one in found.values() if one.verdict.kind in {"equal", "client"}]
    return len(set(map(_digest, equal))) > 1 and len({one.facts.link.primary for one in equal if one.facts.link}) > 1


def _other_primaries(found: Mapping[str, TopicExplanation]) -> str:
    """Return a sentence if members have different addresses of the primary. Else return an empty text."""
    at: dict[str, list[str]] = {}
    for name, one in found.items():
        if one.facts.link is not None:
            at.setdefault(one.facts.link.primary, []).append(name)
    if len(at) < 2:
        return ""
    told = "; ".join(f"{primary} of {', '.join(names)}" for primary, names in at.items())
    return f"Not all members have the same address of the primary: {told}"
