"""Settings of a link that a probe tries, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fanout.config import LinkConfig

__all__ = ["PATIENT_QUIET_S", "Settings", "settings_for"]

PATIENT_QUIET_S = 20.0
"""`snapshot_quiet_s` at a primary that makes longer pauses than the default allows."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that depend on the primary."""

    version: int
    """5, or 4 for MQTT 3.1.1."""
    keeps: bool = False
    """True if every live message counts as retained (`retain_policy = "keep"`)."""
    quiet_s: float | None = None
    """`snapshot_quiet_s`; None for the default."""

    @property
    def text(self) -> str:
        """The settings in words."""
        version = "MQTT 5" if self.version == 5 else "MQTT 3.1.1"
        policy = {(4, False): ", bridge bit", (4, True): ", without the bridge bit"}.get((self.version, self.keeps), "")
        return f"{version}{policy}" + (f", snapshot_quiet_s = {self.quiet_s:g}" if self.quiet_s else "")

    def apply(self, link: LinkConfig) -> LinkConfig:
        """Return a link with these settings, which accepts any evidence and is quick to notice and to retry."""
        return replace(
            link,
            version=5 if self.version == 5 else 4,
            retain_policy="keep" if self.keeps else "bridge",
            snapshot_quiet_s=self.quiet_s or link.snapshot_quiet_s,
            min_evidence="quiet",
            heartbeat_s=1.0,
            retry_min_s=0.2,
            retry_max_s=1.0,
            connect_timeout_s=5.0,
            sample_topics=0,
        )


def settings_for(version: int) -> Iterator[Settings]:
    """Yield the settings to try with a protocol version, the best first."""
    yield Settings(version)
    if version == 4:
        yield Settings(version, keeps=True)
