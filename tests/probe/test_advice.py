"""From findings to settings."""

from __future__ import annotations

import pytest

from fanout.config import NodeConfig, parse_config
from fanout.probe.advice import Advice, advise
from fanout.probe.catalogue import CHECKS, CONNECT
from fanout.probe.results import Finding, Outcome, ProbeReport, Result, VersionReport

ADDRESS = "mqtt://127.0.0.1:1883"


def version(number: int, **outcomes: Result | Outcome) -> VersionReport:
    """Return a report in which everything passed but what is named, with `_` for a blank."""
    named = {name.replace("_", " "): value for name, value in outcomes.items()}
    findings = [Finding(CONNECT, named.get(CONNECT, Result(Outcome.PASSED, "")), "")]  # type: ignore[arg-type]
    for check in CHECKS:
        if number in check.versions and not check.for_filter:
            result = named.get(check.name, Result(Outcome.PASSED, ""))
            findings.append(Finding(check.name, result if isinstance(result, Result) else Result(result, ""), ""))
    return VersionReport(number, tuple(findings))


def advice_for(*versions: VersionReport, read_filter: str | None = None, **keys: str) -> Advice:
    """Return the advice for a primary that was found so."""
    return advise(ProbeReport(ADDRESS, "", versions, True, ""), read_filter=read_filter, keys=keys)


def link_of(advice: Advice) -> NodeConfig:
    """Return the advised configuration as a secondary would read it."""
    return parse_config(advice.toml, path="advice.toml", role="secondary")


def test_primary_that_does_everything_gets_the_strongest_evidence() -> None:
    """MQTT 5, marker, QoS 1, and nothing else to configure."""
    advice = advice_for(version(5), version(4))
    (link,) = link_of(advice).links
    assert advice.can_replicate
    assert (link.version, link.min_evidence, link.selectors[0].filter, link.selectors[0].qos) == (5, "marker", "#", 1)
    assert (str(link.primaries[0]), link.audit_interval_s) == (ADDRESS, None)


def test_identity_and_filter_go_into_the_settings() -> None:
    """Quotes in a user name are escaped."""
    advice = advice_for(version(5), read_filter="plant/+/temp", username='a "b"', password_file="secrets/p")
    (link,) = link_of(advice).links
    assert (link.username, str(link.password_file)) == ('a "b"', "secrets/p")
    assert link.selectors[0].filter == "plant/+/temp"


def test_primary_without_mqtt_5_gets_a_link_over_3_1_1() -> None:
    """The bridge bit where it works, else every message counts as retained."""
    refused = VersionReport(5, (Finding(CONNECT, Result(Outcome.NOT_AVAILABLE, ""), ""),))
    (link,) = link_of(advice_for(refused, version(4))).links
    assert (link.version, link.retain_policy, link.selectors[0].qos) == (4, "bridge", 0)
    (link,) = link_of(advice_for(refused, version(4, RETAIN_of_updates=Outcome.FAILED))).links
    assert link.retain_policy == "keep"


def test_bridge_bit_that_costs_the_evidence_is_left() -> None:
    """Without a fence of the primary's, the evidence needs a connection to which the link's own messages come back."""
    costs = {"control,_bridge_bit": Outcome.FAILED}
    (link,) = link_of(advice_for(version(4, **{"$SYS_version": Outcome.NOT_AVAILABLE}, **costs))).links
    assert (link.retain_policy, link.min_evidence) == ("keep", "marker")
    (link,) = link_of(advice_for(version(4, **costs))).links
    assert (link.retain_policy, link.min_evidence) == ("bridge", "barrier")


EARLY = Result(Outcome.FAILED, "behind 1 of 5,000", 1)
NEVER = Result(Outcome.FAILED, "it does not come")
AEDES: dict[str, Result | Outcome] = {
    "$SYS_version": Outcome.NOT_AVAILABLE,
    "control,_bridge_bit": Outcome.FAILED,
    "barrier": Result(Outcome.FAILED, "behind 0 of 5,000", 0),
    "marker": EARLY,
}
ACTIVEMQ: dict[str, Result | Outcome] = {
    "$SYS_version": Outcome.NOT_AVAILABLE,
    "RETAIN_of_updates": Outcome.FAILED,
    "control,_bridge_bit": Outcome.NOT_AVAILABLE,
    "SUBACK_first": Result(Outcome.FAILED, "behind 131 of 5,000", 131),
    "barrier": Result(Outcome.FAILED, "behind 131 of 5,000", 131),
}


@pytest.mark.parametrize("found", [AEDES, ACTIVEMQ], ids=["Aedes", "ActiveMQ"])
def test_primary_whose_answers_overtake_gets_two_pass(found: dict[str, Result | Outcome]) -> None:
    """One answer that comes behind the set is not enough where another, that a link awaits too, does not."""
    refused = VersionReport(5, (Finding(CONNECT, Result(Outcome.NOT_AVAILABLE, ""), ""),))
    advice = advice_for(refused, version(4, **found))
    (link,) = link_of(advice).links
    assert (advice.evidence, advice.can_replicate, advice.is_proved) == ("two-pass", True, False)
    assert (link.version, link.retain_policy, link.min_evidence) == (4, "keep", "two-pass")
    assert "never ready" in advice.reason
    assert "cut short alike" in advice.reason
    assert advice.reason.endswith(f"(barrier: {found['barrier'].seen})")  # type: ignore[union-attr]


def test_version_with_proof_goes_before_one_without() -> None:
    """Two passes over MQTT 5 are less than a marker over MQTT 3.1.1."""
    advice = advice_for(version(5, barrier=EARLY), version(4))
    assert (advice.evidence, link_of(advice).links[0].version) == ("marker", 4)
    assert advice_for(version(5, barrier=EARLY)).evidence == "two-pass"


def test_marker_that_comes_early_is_no_part_of_the_evidence() -> None:
    """What proves the set is behind it; the marker came as well, so nobody waits for it in vain."""
    assert advice_for(version(5, marker=EARLY)).evidence == "barrier"
    assert advice_for(version(5, marker=EARLY, fence=EARLY)).evidence == "two-pass"


@pytest.mark.parametrize("what", ["SUBACK_first", "fence", "barrier", "marker"])
def test_what_never_comes_is_waited_for_in_vain(what: str) -> None:
    """A link gives such a set up each time, whatever evidence is allowed."""
    advice = advice_for(version(5, **{what: NEVER}))
    assert not advice.can_replicate
    assert f"({what.replace('_', ' ')}: it does not come)" in advice.reason


def test_retained_messages_that_come_once_prove_nothing() -> None:
    """A second pass brings nothing, so none confirms the first."""
    assert advice_for(version(5, set_again=Outcome.FAILED)).evidence is None


def test_mqtt_5_without_retain_as_published_is_left_for_3_1_1() -> None:
    """A replica would keep its first values."""
    advice = advice_for(version(5, RETAIN_of_updates=Outcome.FAILED), version(4))
    assert advice.can_replicate
    assert link_of(advice).links[0].version == 4
    assert not advice_for(version(5, RETAIN_of_updates=Outcome.FAILED)).can_replicate


@pytest.mark.parametrize(
    ("findings", "reason"),
    [
        ({"retained_message": Outcome.NOT_AVAILABLE}, "there is no retained set to replicate"),
        ({"retained_by_#": Outcome.FAILED}, "filters with wildcards do not bring the retained set"),
        ({"large_set,_QoS_0": Result(Outcome.FAILED, "200 of 5,000 came")}, "whole (200 of 5,000 came)"),
        ({"$SYS_version": Result(Outcome.FAILED, "it closes")}, "cannot begin an epoch (it closes)"),
        ({"control_message": Outcome.NOT_PERMITTED}, "give --prefix where it may, or --filter"),
    ],
)
def test_what_a_link_cannot_do_without(findings: dict[str, Result | Outcome], reason: str) -> None:
    """The verdict is no, says why, and the settings are still a legal configuration."""
    advice = advice_for(version(5, **findings))
    assert not advice.can_replicate
    assert reason in advice.reason
    assert link_of(advice).links


def test_prefix_that_the_user_may_write_is_named() -> None:
    """So that nobody has to look it up in the primary's access rules."""
    report = version(5, control_message=Outcome.NOT_PERMITTED)
    advice = advice_for(VersionReport(5, report.findings, "fanout/control"))
    assert not advice.can_replicate
    assert "give --prefix fanout/control, below which it may, or --filter" in advice.reason


def test_wildcards_that_could_not_be_tested_leave_live_messages() -> None:
    """Without a retained message there is no set for a filter with wildcards either."""
    advice = advice_for(
        version(5, retained_message=Outcome.NOT_AVAILABLE, **{"retained_by_#": Outcome.NOTHING_TO_TEST})
    )
    assert link_of(advice).links[0].selectors[0].live_only


def test_evidence_behind_a_short_set_is_a_warning() -> None:
    """A primary that cuts sets short and answers everything else would make a link ready too early."""
    short, early = Result(Outcome.FAILED, "1,000 of 5,000 came"), Result(Outcome.FAILED, "", 1_000)
    found = {"large_set,_QoS_0": short, "fence": early, "barrier": early, "marker": early}
    assert "take the part for the whole" in advice_for(version(5, **found)).reason
    lost = Result(Outcome.FAILED, "it does not come")
    assert "take the part for the whole" not in advice_for(version(5, **{**found, "fence": lost})).reason


def test_wildcards_without_a_retained_set_leave_live_messages() -> None:
    """What comes by a filter with wildcards is live only, and the settings say so."""
    advice = advice_for(version(5, **{"retained_by_#": Outcome.FAILED}))
    assert link_of(advice).links[0].selectors[0].live_only


def test_weaker_evidence_and_missing_parts_are_configured() -> None:
    """Each finding has its key."""
    (link,) = link_of(
        advice_for(
            version(
                5,
                marker=EARLY,
                clear_forwarded=Outcome.FAILED,
                Retain_Handling_2=Outcome.FAILED,
                session_kept=Result(Outcome.PASSED, "", 60),
                **{"large_set,_QoS_0": Result(Outcome.PASSED, "", 4.2)},
            )
        )
    ).links
    assert (link.min_evidence, link.audit_interval_s, link.session_expiry_s) == ("barrier", 300.0, 60)
    assert (link.snapshot_quiet_s, link.selectors[0].qos) == (13.0, 0)
    (link,) = link_of(advice_for(version(5, set_again=Outcome.FAILED))).links
    assert (link.audit_interval_s, link.sample_topics) == (0, 0)


def test_user_that_may_only_read_is_judged_by_its_filter() -> None:
    """What was seen of the given filter is enough for a link, if there is a fence that it need not publish."""
    report = version(5, control_message=Outcome.NOT_PERMITTED, marker=Outcome.NOT_PERMITTED)
    read = Finding("set of --filter", Result(Outcome.PASSED, "3 topics"), "")
    advice = advice_for(VersionReport(5, (*report.findings, read)), read_filter="plant/#")
    assert advice.is_proved
    assert link_of(advice).links[0].min_evidence == "barrier"
    unfenced = version(5, control_message=Outcome.NOT_PERMITTED, **{"$SYS_version": Outcome.NOT_AVAILABLE})
    advice = advice_for(VersionReport(5, (*unfenced.findings, read)), read_filter="plant/#")
    assert (advice.evidence, link_of(advice).links[0].min_evidence) == ("two-pass", "two-pass")
    assert "no retained message that could be asked for" in advice.reason
