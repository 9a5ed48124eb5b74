"""From trials to settings."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.config import NodeConfig, parse_config
from fanout.link.model.evidence import Evidence
from fanout.probe.advice import Advice, advise
from fanout.probe.results import ProbeReport, Trial
from fanout.probe.settings import Settings

ADDRESS = "mqtt://127.0.0.1:1883"


def trial(
    version: int = 5, evidence: Evidence | None = Evidence.MARKER, *, heartbeats: bool = True, **more: Any
) -> Trial:
    """Return a trial whose heartbeats came or not."""
    settings = Settings(version, **{key: more.pop(key) for key in ("keeps", "quiet_s") if key in more})
    made = Trial(settings, evidence=evidence, complete=True, **more)
    made.add("evidence", evidence is Evidence.MARKER, f"{evidence}")
    made.add("heartbeats", heartbeats, "")
    return made


def advice_for(*trials: Trial, topic_filter: str = "plant/#", **keys: str) -> Advice:
    """Return the advice for a primary at which these trials were made."""
    return advise(ProbeReport(ADDRESS, "", trials, True, ""), topic_filters=[topic_filter], keys=keys)


def config_of(advice: Advice) -> NodeConfig:
    """Return the advised configuration as a secondary would read it."""
    return parse_config(advice.toml, path="advice.toml", role="secondary")


def test_proof_needs_no_further_setting() -> None:
    """Version, filter and QoS, and an HTTP interface; nothing else to configure."""
    config = config_of(advice_for(trial()))
    (link,) = config.links
    assert (link.version, link.min_evidence, link.selectors[0].filter, link.selectors[0].qos) == (
        5,
        "barrier",
        "plant/#",
        1,
    )
    assert (str(link.primaries[0]), link.snapshot_quiet_s) == (ADDRESS, 5.0)
    assert config.http is not None
    assert str(config.http.listen) == "http://127.0.0.1:8080"


def test_identity_and_filter_go_into_the_settings() -> None:
    """Quotes in a user name are escaped."""
    (link,) = config_of(
        advice_for(trial(), topic_filter="plant/+/temp", username='a "b"', password_file="secrets/p")
    ).links
    assert (link.username, str(link.password_file)) == ('a "b"', "secrets/p")
    assert link.selectors[0].filter == "plant/+/temp"


def test_a_trial_with_proof_wins() -> None:
    """Over one that is of use without; and that over one that is of none."""
    useless = trial(evidence=None, reason="nothing listens")
    weak = trial(4, Evidence.TWO_PASS)
    proved = trial(4, Evidence.BARRIER, keeps=True)
    advice = advice_for(useless, weak, proved)
    (link,) = config_of(advice).links
    assert advice.trial is proved
    assert (link.version, link.retain_policy, link.selectors[0].qos) == (4, "keep", 0)
    assert advice_for(useless, weak).trial is weak


def test_without_proof_heartbeats_decide() -> None:
    """With the bridge bit a primary may not return them: lag would be unknown, and a stall not noticed."""
    bridge = trial(4, Evidence.TWO_PASS, heartbeats=False)
    keep = trial(4, Evidence.TWO_PASS, keeps=True)
    advice = advice_for(bridge, keep)
    (link,) = config_of(advice).links
    assert (link.retain_policy, link.min_evidence) == ("keep", "two-pass")
    assert 'only with min_evidence = "two-pass"' in advice.reason


def test_patience_is_a_setting() -> None:
    """As it was tried."""
    (link,) = config_of(advice_for(trial(4, keeps=True, quiet_s=20.0))).links
    assert link.snapshot_quiet_s == 20.0


def test_a_trial_that_was_accepted_tells_the_reason() -> None:
    """Not one whose version the primary does not have."""
    refused, unproved = trial(evidence=None, reason="refused"), trial(4, None, reason="no set", accepted=True)
    assert advice_for(refused, unproved).trial is unproved


@pytest.mark.parametrize("evidence", [None, Evidence.QUIET])
def test_a_primary_of_no_use_is_told_with_its_reason(evidence: Evidence | None) -> None:
    """The configuration is printed all the same, and is legal."""
    advice = advice_for(trial(evidence=evidence, reason="it is so"))
    assert not advice.trial.is_usable
    assert advice.reason == "a link does not become ready over MQTT 5: it is so"
    assert config_of(advice).links
