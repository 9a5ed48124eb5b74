"""Age bound of a subscriber on a thin line, and the User Properties with which it asks for one in SUBSCRIBE.

The server confirms the bound in SUBACK with the same properties. A broker that does not know them ignores them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["AGE_MAX_S", "MAX_AGE", "MAX_AGE_QOS", "AgeBound"]

MAX_AGE: Final = "fanout-max-age-s"
"""Name of the User Property with the greatest age, in seconds."""
MAX_AGE_QOS: Final = "fanout-max-age-qos"
"""Name of the User Property with the highest QoS at which older values may be left out; 0 without it."""
AGE_MAX_S: Final = 3_600.0
"""Greatest age that can be asked for."""
_NUMBER_MAX: Final = 16  # characters


@dataclass(frozen=True, slots=True)
class AgeBound:
    """Bound on the age of what waits for a subscriber."""

    max_age_s: float
    """Greatest age in seconds, above 0."""
    qos_max: int = 0
    """Highest QoS at which a message may be left out for a newer one of its topic: 0 or 1."""

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """The User Properties that ask for it, and confirm it."""
        asked = ((MAX_AGE, f"{self.max_age_s:g}"),)
        return (*asked, (MAX_AGE_QOS, str(self.qos_max))) if self.qos_max else asked

    def tightened(self, other: AgeBound | None) -> AgeBound:
        """Return the bound that satisfies another one too; what either allows to be left out may be."""
        if other is None:
            return self
        return AgeBound(min(self.max_age_s, other.max_age_s), max(self.qos_max, other.qos_max))

    @classmethod
    def asked_by(cls, properties: tuple[tuple[str, str], ...]) -> AgeBound | None:
        """Return the bound that the User Properties of a SUBSCRIBE ask for; None if they ask for none.

        An age that is no number above 0, or above `AGE_MAX_S`, asks for none.
        """
        if not properties:
            return None
        asked = dict(properties)
        text = asked.get(MAX_AGE, "")
        try:
            age_s = float(text) if len(text) <= _NUMBER_MAX else math.nan
        except ValueError:
            return None
        return cls(age_s, int(asked.get(MAX_AGE_QOS) == "1")) if 0 < age_s <= AGE_MAX_S else None
