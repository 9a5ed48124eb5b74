"""Rule filters: Topic Filters in which `%u` and `%c` stand for the client's User Name and Client Identifier.

Owns their form and their substitution. A name comes from outside and must never make a rule wider, so it is filled in
only when it is one plain level, or part of one (MQTT 5, section 4.7.1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fanout.errors import AccessRuleInvalid, SelectorInvalid
from fanout.selection import FILTER_BYTES_MAX, check_filter, common_filter

__all__ = ["NOTHING", "Nothing", "RuleFilter", "covers"]

_PLACEHOLDER = re.compile(r"%(.?)", re.DOTALL)
_CANNOT_BE_FILLED_IN = re.compile("[+#/\0\ud800-\udfff]")  # UTF-8 has no surrogates
_NAMES = {"u": "User Name", "c": "Client Identifier"}


class Nothing:
    """Type of `NOTHING`: the rule names something that the client does not have."""


NOTHING = Nothing()
"""The only instance."""


@dataclass(frozen=True, slots=True)
class RuleFilter:
    """A Topic Filter with placeholders: `%u` the user, `%c` the Client Identifier, `%%` a per cent sign.

    Raises:
        AccessRuleInvalid: When it is not legal. A level holds at most one placeholder: with two, different
            clients could share it, such as the user "a" with the identifier "bc" and "ab" with "c".
    """

    text: str

    def __post_init__(self) -> None:
        for level in self.text.split("/"):
            signs = _PLACEHOLDER.findall(level)
            if any(sign not in ("u", "c", "%") for sign in signs):
                raise AccessRuleInvalid(
                    f'"%" in "{self.text}" is not %u (the user) or %c (the Client Identifier)',
                    hint="Write %% for a per cent sign.",
                )
            if sum(sign != "%" for sign in signs) > 1:
                raise AccessRuleInvalid(
                    f'"{level}" in "{self.text}" has more than one of %u and %c, so that clients could share it',
                    hint='Put a "/" between them.',
                )
        sample = self._filled_in({"u": "u", "c": "c"})
        try:
            check_filter(sample)
        except SelectorInvalid as error:
            raise AccessRuleInvalid(error.message, hint=error.hint) from error
        if sample.startswith("$share/"):
            raise AccessRuleInvalid(
                f'"{self.text}" is a Shared Subscription; rules are about topics',
                hint="Remove $share and the group in front: the rule then holds for shared ones too.",
            )

    @property
    def placeholders(self) -> frozenset[str]:
        """The placeholders in it, of "u" and "c"."""
        return frozenset(_PLACEHOLDER.findall(self.text)) - {"%"}

    def fill_in(self, *, user: str, client_id: str) -> str | Nothing | None:
        """Return the Topic Filter for one client.

        Args:
            user: Its user; empty when it has none.
            client_id: Its Client Identifier; empty when it has none.

        Returns:
            The filter; NOTHING when a name is missing; None when a name cannot be filled in, because it has a wildcard,
            a "/" or U+0000, begins with "$" where the filter begins, or makes the filter too long.
        """
        placeholders = self.placeholders
        names = {"u": user, "c": client_id}
        if any(not names[sign] for sign in placeholders):
            return NOTHING
        if any(_CANNOT_BE_FILLED_IN.search(names[sign]) for sign in placeholders):
            return None
        filled_in = self._filled_in(names)
        if not placeholders:
            return filled_in
        begins_otherwise = filled_in.startswith("$") and not self.text.startswith("$")
        too_long = len(filled_in.encode()) > FILTER_BYTES_MAX
        return None if begins_otherwise or too_long else filled_in

    def _filled_in(self, names: dict[str, str]) -> str:
        values = {**names, "%": "%"}
        return _PLACEHOLDER.sub(lambda match: values[match[1]], self.text)


def covers(wide: str, narrow: str) -> bool:
    """Tell whether `wide` matches every topic that the Topic Filter `narrow` matches."""
    return common_filter(wide, narrow) == common_filter(narrow, narrow)
