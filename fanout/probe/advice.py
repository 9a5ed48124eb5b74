"""Advice from a probe: the configuration of a secondary, as TOML that `fanout check` accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fanout.escaping import toml_string
from fanout.link.model.evidence import Evidence
from fanout.probe.results import ProbeReport, Trial

__all__ = ["Advice", "advise"]

_TWO_PASS_MEANS: Final = (
    'only with min_evidence = "two-pass": a set counts as complete if it was taken twice with the same topics, each'
    " time until nothing new came for a while; one that is cut short at the same place each time passes too"
)


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for the configuration."""

    trial: Trial
    """The trial that the advice follows from."""
    reason: str
    """The reason; one sentence without a full stop."""
    toml: str
    """A whole configuration of a secondary."""


def advise(
    report: ProbeReport,
    *,
    topic_filters: Sequence[str],
    keys: Mapping[str, str | bool],
    node_id: str = "edge-1",
    listen: str = "mqtt://127.0.0.1:1884",
    http_listen: str = "127.0.0.1:8080",
) -> Advice:
    """Return the settings for a link to a primary, as a whole configuration with comments.

    Args:
        report: The probe.
        topic_filters: The Topic Filters of the selectors, at least one.
        keys: Keys of the link that are known already, such as `username`.
        node_id: Node identifier.
        listen: Address of the MQTT listener.
        http_listen: Address of the HTTP interface.
    """
    best = report.best
    with_settings = f"a link can replicate {' and '.join(topic_filters)} from it over {best.settings.text}"
    if best.is_proved:
        reason = f"{with_settings}, with the evidence {best.evidence}"
    elif best.is_usable:
        why = next((one.seen for one in best.findings if one.check == "evidence"), "")
        reason = f"{with_settings}, {_TWO_PASS_MEANS} ({why})"
    else:
        reason = f"a link does not become ready over {best.settings.text}: {best.reason or 'it was not tried'}"
    lines = [
        "# A secondary. Every key, with its default and unit: fanout config example",
        "",
        "[node]",
        f"id = {_quoted(node_id)}  # unique among the nodes of this primary",
        "",
        "[server]",
        "# Clients of this machine are let in. For others, listen at another address and add users: [access].",
        f"listen = [{_quoted(listen)}]",
        "",
        "[http]",
        f"listen = {_quoted(http_listen)}  # a page for browsers, fanout ready and the load balancer; of this machine",
        "",
        "[log]",
        'directory = "var/replication-log"  # what was applied, and when: fanout report reads it',
        "keep_days = 7",
        "",
        "[[link]]",
        'name = "primary"',
        f"primary = {_quoted(report.address)}",
        *(f"{key} = {_quoted(value)}" for key, value in keys.items()),
        *_link_keys(best),
    ]
    for topic_filter in topic_filters:
        lines += ["", "[[link.selector]]", f"filter = {_quoted(topic_filter)}"]
        lines += [f"qos = {1 if best.settings.version == 5 else 0}"]
    return Advice(best, reason, "\n".join(lines) + "\n")


def _quoted(value: str | bool) -> str:
    return toml_string(value) if isinstance(value, str) else str(value).lower()


def _link_keys(trial: Trial) -> Iterator[str]:
    settings = trial.settings
    yield f"version = {settings.version}"
    if settings.version == 4:
        yield f'retain_policy = "{"keep" if settings.keeps else "bridge"}"'
        if settings.keeps:
            yield "# Every live message counts as retained until an audit: select topics on which all messages are."
    if trial.evidence is Evidence.TWO_PASS:
        yield 'min_evidence = "two-pass"'
        yield "# No proof: a set that is cut short at the same place in two passes counts as complete. With the rights"
        yield "# that fanout check --acl prints there may be one: fanout probe tells."
    if settings.quiet_s is not None:
        yield f"snapshot_quiet_s = {settings.quiet_s:.1f}  # the primary makes pauses within a set"
