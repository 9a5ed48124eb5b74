"""Rights of a link in the syntax of a broker's access rules, to be pasted into its file.

Text of the configuration stands in these files as it is, or escaped as the file's syntax has it; text that a syntax
cannot carry is refused, never widened or left out.
"""

from __future__ import annotations

import enum
import html
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fanout.escaping import printable, toml_string

if TYPE_CHECKING:
    from fanout.config import LinkConfig
    from fanout.link.rights import PrimaryKind, Right

__all__ = ["AclSyntax", "AclUnwritable", "acl_text", "syntax_of"]


class AclSyntax(enum.StrEnum):
    """Brokers whose access rules can be written."""

    MOSQUITTO = "mosquitto"
    FLASHMQ = "flashmq"
    EMQX = "emqx"
    HIVEMQ = "hivemq"
    FANOUT = "fanout"
    LIST = "list"
    """No broker: access and Topic Filter, for people and other brokers."""


class AclUnwritable(ValueError):
    """A text that a syntax cannot carry.

    Attributes:
        text: The user name or Topic Filter.
        reason: Why not; a phrase.
    """

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)
        self.text = text
        self.reason = reason

    def __str__(self) -> str:
        """Return both in a sentence."""
        return f'"{printable(self.text)}" cannot be written there: {self.reason}'


def syntax_of(server: str) -> AclSyntax:
    """Return the syntax for a server by its own description, else the plain list."""
    known = (AclSyntax.MOSQUITTO, AclSyntax.FLASHMQ, AclSyntax.EMQX, AclSyntax.HIVEMQ, AclSyntax.FANOUT)
    return next((one for one in known if server.lower().startswith(one)), AclSyntax.LIST)


def acl_text(link: LinkConfig, *, node_id: str, syntax: AclSyntax, in_pool: bool = False) -> str:
    """Return the rights of a link's user, and of its `audit_username`, as lines of text, each with its purpose.

    Args:
        link: The link.
        node_id: This node.
        syntax: The syntax.
        in_pool: True if the node is a member of a pool.

    Raises:
        AclUnwritable: The syntax cannot carry a user name or Topic Filter.
    """
    from fanout.link.rights import audit_rights, link_rights

    write, title = _WRITERS[syntax], f"link {link.name} of node {node_id}"
    rights = link_rights(link, node_id=node_id, primary=_KINDS.get(syntax, "other"), in_pool=in_pool)
    lines = write(rights, link, title)
    if asked := audit_rights(link):
        auditor = replace(link, name=f"{link.name}-audit", username=link.audit_username, audit_username=None)
        lines += write(asked, auditor, f"audit_username of {title}")
    return "\n".join(lines) + "\n"


def _mosquitto(rights: Sequence[Right], link: LinkConfig, title: str) -> list[str]:
    """Write lines of `acl_file`; nothing can be escaped there, and blanks at both ends of a text are lost."""
    lines = [f"# {title}"]
    if link.username is None:
        lines.append(f"# {_NO_USER}: as it is, for clients without a user, above the first line 'user'")
    else:
        lines.append(f"user {_plain_line(link.username)}")
    for right in rights:
        lines.append(f"# {_comment(right)}")
        lines.append(f"topic {right.access} {_plain_line(right.filter)}")
    return lines


def _plain_line(text: str) -> str:
    if text != text.strip():
        raise AclUnwritable(text, "the file does not keep blanks at the begin or end")
    if printable(text) != text:
        raise AclUnwritable(text, "the file has no escapes for invisible characters")
    return text


def _emqx(rights: Sequence[Right], link: LinkConfig, title: str) -> list[str]:
    """Write Erlang terms of `acl.conf`."""
    who = "all" if link.username is None else f"{{username, {_erlang(link.username)}}}"
    lines = [f"%% {title}; above the rules that deny"]
    if link.username is None:
        lines.append(f"%% {_NO_USER}: 'all' are all clients")
    for right in rights:
        action = "subscribe" if right.access == "read" else "publish"
        lines.append(f"%% {_comment(right)}")
        lines.append(f"{{allow, {who}, {action}, [{_emqx_filter(right.filter)}]}}.")
    return lines


def _emqx_filter(topic_filter: str) -> str:
    # A filter with a placeholder, or with "eq " in front, means something else there unless it is compared as it is.
    if "${" in topic_filter or topic_filter.startswith("eq "):
        return f"{{eq, {_erlang(topic_filter)}}}"
    return _erlang(topic_filter)


def _erlang(text: str) -> str:
    def character(one: str) -> str:
        if one in '"\\':
            return f"\\{one}"
        return one if " " <= one <= "~" else f"\\x{{{ord(one):x}}}"

    return f'"{"".join(map(character, text))}"'


def _hivemq(rights: Sequence[Right], link: LinkConfig, title: str) -> list[str]:
    """Write a role for `credentials.xml` of HiveMQ's File RBAC extension."""
    lines = [_xml_comment(f"{title}; give this role to {_user(link)}"), "<role>"]
    lines += [f"  <id>{_xml(f'fanout-{link.name}')}</id>", "  <permissions>"]
    for right in rights:
        activity = "SUBSCRIBE" if right.access == "read" else "PUBLISH"
        if "${{" in right.filter:
            raise AclUnwritable(right.filter, "HiveMQ takes ${{ for a placeholder")
        lines.append(f"    {_xml_comment(_comment(right))}")
        lines.append(f"    <permission><topic>{_xml(right.filter)}</topic><activity>{activity}</activity></permission>")
    return [*lines, "  </permissions>", "</role>"]


def _xml(text: str) -> str:
    if printable(text) != text:
        raise AclUnwritable(text, "XML 1.0 cannot carry all control characters")
    return html.escape(text, quote=False)


def _xml_comment(text: str) -> str:
    return f"<!-- {_xml(text).replace('--', '- -')} -->"  # a comment may not contain two hyphens


def _fanout(rights: Sequence[Right], link: LinkConfig, title: str) -> list[str]:
    """Write tables `[[access.rule]]`; the first that fits decides, so they stand before rules that deny."""
    lines = [f"# {title}; above the rules that deny"]
    if link.username is None:
        lines.append(f'# {_NO_USER}: user = "" are clients without a user')
    for right in rights:
        lines += [
            f"# {_comment(right)}",
            "[[access.rule]]",
            f'allow = "{right.access}"',
            f"user = {_rule_user(link.username or '')}",
            f"filter = {toml_string(right.filter.replace('%', '%%'))}",
        ]
    return lines


def _rule_user(username: str) -> str:
    if "*" in username:
        raise AclUnwritable(username, "no rule can name a user with * in it")
    return toml_string(username)


def _list(rights: Sequence[Right], link: LinkConfig, title: str) -> list[str]:
    lines = [f"{title}, {_user(link)}"]
    lines += [f"{right.access:5} {printable(right.filter)}  ({_comment(right)})" for right in rights]
    return lines


def _user(link: LinkConfig) -> str:
    return "clients without a user" if link.username is None else f"the user {printable(link.username)}"


def _comment(right: Right) -> str:
    return f"{right.purpose}; without it: {right.missing}"


_NO_USER: Final = "The link has no username; write the name that the primary takes from its certificate, or leave it"
_KINDS: Final[dict[AclSyntax, PrimaryKind]] = {AclSyntax.MOSQUITTO: "mosquitto", AclSyntax.FANOUT: "fanout"}
_WRITERS: Final[dict[AclSyntax, Callable[[Sequence[Right], LinkConfig, str], list[str]]]] = {
    AclSyntax.MOSQUITTO: _mosquitto,
    AclSyntax.FLASHMQ: _mosquitto,
    AclSyntax.EMQX: _emqx,
    AclSyntax.HIVEMQ: _hivemq,
    AclSyntax.FANOUT: _fanout,
    AclSyntax.LIST: _list,
}
