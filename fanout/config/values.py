"""Kinds of values of the configuration: type, limits, syntax. Pydantic reads them from the annotations.

Owns the legality of one value, and the words for its faults where Pydantic has none.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetPydanticSchema, Strict
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from fanout.config.address import (
    Address,
    parse_http_listen,
    parse_listen,
    parse_listener,
    parse_peer,
    parse_primary,
)
from fanout.errors import FanoutError, SelectorInvalid
from fanout.mqtt.data_representation import MAX_STRING_BYTES
from fanout.selection import check_filter, check_prefix

__all__ = [
    "FAULT",
    "GIB",
    "KIB",
    "MIB",
    "NAME_CHARACTERS_MAX",
    "ByteCount",
    "ByteCountOrZero",
    "CertificateDigests",
    "ClientId",
    "ControlTopic",
    "Count",
    "DaysOrZero",
    "EnvironmentName",
    "Exclude",
    "Flag",
    "HookUrl",
    "HostName",
    "HttpAddress",
    "ListUrl",
    "ListenAddresses",
    "ListenerAddress",
    "MemberCount",
    "MessageCount",
    "Name",
    "Network",
    "NetworkAddress",
    "Origin",
    "PacketBytes",
    "PathText",
    "PayloadBytes",
    "PeerAddress",
    "PeerAddresses",
    "Percent",
    "PositiveUint16",
    "Prefix",
    "PrimaryAddresses",
    "Qos",
    "SampleCount",
    "Seconds",
    "SecondsOrZero",
    "SelectedFilter",
    "ServerReference",
    "SessionExpiry",
    "StoreUri",
    "Uint16",
    "Uint32",
    "UserName",
    "converted",
    "fault",
    "parsed",
]

FAULT = "fanout_fault"
"""The Pydantic error type of faults found by the validators here; their context has `problem` and `hint`."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_DAY_S = 86_400
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
NAME_CHARACTERS_MAX: Final = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVER_REFERENCE = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
"""A server in a Server Reference (MQTT 5, section 4.11)."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STORE_SCHEMES = ("s3", "gs", "hdfs", "file")
_HTTP_HOST = re.compile(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

T = TypeVar("T")
S = TypeVar("S")


def fault(problem: str, hint: str) -> PydanticCustomError:
    """Return the error of a value that is not legal, in the words of a `ConfigFault`."""
    return PydanticCustomError(FAULT, "{problem}", {"problem": problem, "hint": hint})


def parsed(parse: Callable[[str], T]) -> BeforeValidator:
    """Make a validator of a function from the text in the file."""

    def validate(value: object) -> T:
        if not isinstance(value, str):
            raise PydanticKnownError("string_type")
        try:
            return parse(value)
        except FanoutError as error:
            raise fault(error.message, error.hint) from error

    return BeforeValidator(validate, json_schema_input_type=str)


def _checked(check: Callable[[str], None]) -> BeforeValidator:
    """Make a validator of a function that raises when the text is not legal."""

    def parse(text: str) -> str:
        check(text)
        return text

    return parsed(parse)


def converted(section: type[S], convert: Callable[[S], T]) -> GetPydanticSchema:
    """Make an annotation that reads a table as `section` and converts it."""

    def schema(_source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(convert, handler(section))

    return GetPydanticSchema(schema)


def _check_name(text: str) -> None:
    if not _NAME.fullmatch(text):
        raise fault(
            f'"{text}" cannot be part of file names and Client Identifiers',
            "Use 1 to 64 letters (A to Z), digits, '-', '_' or '.', and begin with a letter or digit.",
        )


def _check_host_name(text: str) -> None:
    if not _HOST_NAME.fullmatch(text):
        raise fault(
            f'"{text}" is not the name of a host',
            'Write the name alone, without http:// and port, such as "edge-1.example.org".',
        )


def _check_user_name(text: str) -> None:
    if not text:
        raise fault("it is empty", "Write the User Name, or remove the line.")
    _check_client_id(text)


def _check_client_id(text: str) -> None:
    if "\0" in text or len(text.encode()) > MAX_STRING_BYTES:
        raise fault(
            "it is too long for MQTT, or contains the character U+0000",
            f"Use at most {MAX_STRING_BYTES} bytes, without that character.",
        )


def is_server_reference(text: str) -> bool:
    """Return whether a text names servers as clients read them: `host` or `host:port`, with one blank between."""
    return bool(text) and all(_SERVER_REFERENCE.fullmatch(each) for each in text.split(" "))


def _check_server_reference(text: str) -> None:
    if not is_server_reference(text):
        raise fault(
            f'"{text}" does not name servers as clients read them',
            'Write host or host:port, several with one blank between, as in "edge-2:1883 edge-3:1883".',
        )


def _check_environment_name(text: str) -> None:
    if not _ENVIRONMENT_NAME.fullmatch(text):  # the message leaves the text out: it may be the password itself
        raise fault(
            "this is not the name of an environment variable",
            'Write the name, such as "PLANT_PASSWORD", and put the password into that variable.',
        )


def _check_path(text: str) -> None:
    if not text or "\0" in text:
        problem = "it contains the character U+0000" if text else "it is empty"
        raise fault(problem, "Write a path; a relative one is relative to the current directory.")


_CONTROL_TOPIC_BYTES_MAX: Final = 1024
"""Names of nodes and links follow it, and a Topic Name has at most 65,535 bytes."""


def _check_control_topic(text: str) -> None:
    if not text or "+" in text or "#" in text or text.startswith("$") or text.endswith("/"):
        raise fault(
            f'"{text}" is not a topic below which the node can publish',
            'Use one without wildcards, without "$" in front and "/" at the end, as in "fanout/control".',
        )
    if len(text.encode()) > _CONTROL_TOPIC_BYTES_MAX:
        raise fault(f"it is longer than {_CONTROL_TOPIC_BYTES_MAX} bytes", 'Use a short one, as "fanout/control".')
    check_filter(text)


def _check_selected_filter(text: str) -> None:
    check_filter(text)
    first = text.partition("/")[0]
    if first == "$share":
        raise SelectorInvalid(
            f'"{text}" is a shared subscription: each of its messages reaches only one subscriber',
            hint="Remove $share and the group in front: a replica needs every message.",
        )
    if first == "$SYS":
        raise SelectorInvalid(
            f'"{text}" selects topics in which the primary describes itself, which is not true of this node',
            hint="Remove the selector, and read these topics at the primary.",
        )


def _parse_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise fault(
            f'"{text}" is neither an IP address nor a network',
            'Write it as in "10.0.0.7" or "10.0.0.0/24"; a network has no bits set after its prefix.',
        ) from error


def _check_origin(text: str) -> None:
    if text != "*" and not _ORIGIN.fullmatch(text):
        raise fault(
            f'"{text}" is not the origin of a web page',
            'Write it as browsers do, as in "https://plant.example" or "http://10.0.0.7:8080", in small letters '
            'and without a path; "*" allows every page.',
        )


def _check_store_uri(text: str) -> None:
    scheme, _, rest = text.partition("://")
    place = rest.partition("?")[0]
    if "@" in place.partition("/")[0]:  # the message leaves the text out: it may be the secret itself
        raise fault(
            "it has credentials in it",
            "Leave them out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or use the "
            "machine's role.",
        )
    if scheme not in _STORE_SCHEMES or not place.strip("/") or (scheme == "file") != place.startswith("/"):
        raise fault(
            f'"{text}" names no place that files can be shipped to',
            'Write it as in "s3://bucket/prefix", "gs://bucket/prefix", "hdfs://host:port/path" or "file:///mnt/logs".',
        )


def _parse_digest(text: str) -> str:
    digest = text.replace(":", "").lower()
    if not _DIGEST.fullmatch(digest):
        raise fault(
            f'"{text}" is not a SHA-256 digest of a certificate',
            "Write 64 hexadecimal digits, with or without colons, as `openssl x509 -fingerprint -sha256` prints it.",
        )
    return digest


def _http_url(text: str, *, example: str = "http://127.0.0.1:9000/mqtt") -> str:
    if "@" in text:  # checked first, and without the text, which may contain a password
        raise fault("the address contains a user name or a password", "Write only the scheme, host, port and path.")
    as_in = f'Write it as in "{example}".'
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise fault(f'"{text}" is not an address', as_in) from None
    if parts.scheme not in ("http", "https") or not _HTTP_HOST.fullmatch(parts.hostname or "") or port == 0:
        raise fault(f'"{text}" is not an address of HTTP', as_in)
    if parts.fragment or not all("!" <= character <= "~" for character in text):
        raise fault(f'"{text}" contains a "#", a blank or a character that is not ASCII', as_in)
    return text


def _not_empty(addresses: tuple[Address, ...]) -> tuple[Address, ...]:
    if not addresses:
        raise fault("the list is empty", "Write at least one address.")
    return addresses


def _one_or_several(value: object) -> object:
    return value if isinstance(value, list) else (value,)


Name: TypeAlias = Annotated[str, _checked(_check_name)]
UserName: TypeAlias = Annotated[str, _checked(_check_user_name)]
ClientId: TypeAlias = Annotated[str, _checked(_check_client_id)]
ServerReference: TypeAlias = Annotated[str, _checked(_check_server_reference)]
EnvironmentName: TypeAlias = Annotated[str, _checked(_check_environment_name)]
StoreUri: TypeAlias = Annotated[str, _checked(_check_store_uri)]
CertificateDigests: TypeAlias = Annotated[
    tuple[Annotated[str, parsed(_parse_digest)], ...],
    BeforeValidator(_one_or_several, json_schema_input_type=str | list[str]),
]
PathText: TypeAlias = Annotated[Path, _checked(_check_path)]

ControlTopic: TypeAlias = Annotated[str, _checked(_check_control_topic)]
SelectedFilter: TypeAlias = Annotated[str, _checked(_check_selected_filter)]
Exclude: TypeAlias = Annotated[str, _checked(check_filter)]
Prefix: TypeAlias = Annotated[str, _checked(check_prefix)]

# It may be empty beside [[server.listener]], which the rules check.
ListenAddresses: TypeAlias = tuple[Annotated[Address, parsed(parse_listen)], ...]
ListenerAddress: TypeAlias = Annotated[Address, parsed(parse_listener)]
NetworkAddress: TypeAlias = Annotated[Network, parsed(_parse_network)]
HookUrl: TypeAlias = Annotated[str, parsed(_http_url)]
ListUrl: TypeAlias = Annotated[
    str, parsed(partial(_http_url, example="http://127.0.0.1:18083/api/v5/mqtt/retainer/messages"))
]
Origin: TypeAlias = Annotated[str, _checked(_check_origin)]
HostName: TypeAlias = Annotated[str, _checked(_check_host_name)]
HttpAddress: TypeAlias = Annotated[Address, parsed(parse_http_listen)]
PeerAddress: TypeAlias = Annotated[Address, parsed(parse_peer)]
PeerAddresses: TypeAlias = tuple[PeerAddress, ...]
PrimaryAddresses: TypeAlias = Annotated[
    tuple[Annotated[Address, parsed(parse_primary)], ...],
    BeforeValidator(_one_or_several, json_schema_input_type=str | list[str]),
    AfterValidator(_not_empty),
]

Flag: TypeAlias = Annotated[bool, Strict()]
Percent: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=100)]
Qos: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=2)]
SampleCount: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=1_000)]
Uint16: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=65_535)]
PositiveUint16: TypeAlias = Annotated[int, Strict(), Field(ge=1, le=65_535)]
Uint32: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=0xFFFF_FFFF)]
# 0xFFFFFFFF would mean that the session never expires (MQTT 5, section 3.1.2.11.2), without a bound.
SessionExpiry: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=0xFFFF_FFFE)]
Count: TypeAlias = Annotated[int, Strict(), Field(ge=1, le=1_000_000_000)]
MemberCount: TypeAlias = Annotated[int, Strict(), Field(ge=1, le=64)]
ByteCount: TypeAlias = Annotated[int, Strict(), Field(ge=KIB, le=1024 * GIB)]
ByteCountOrZero: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=1024 * 1024 * GIB)]
# Four MiB below the largest Remaining Length (MQTT 5, section 1.5.5): a packet may grow by a prefix, a stamp, and a
# Subscription Identifier for each subscription of a client.
PacketBytes: TypeAlias = Annotated[int, Strict(), Field(ge=KIB, le=252 * 1024 * KIB)]
MessageCount: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=1_000_000_000)]
PayloadBytes: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=268_435_455)]
DaysOrZero: TypeAlias = Annotated[float, Strict(), Field(ge=0, le=36_500, allow_inf_nan=False)]
Seconds: TypeAlias = Annotated[float, Strict(), Field(ge=0.01, le=_DAY_S, allow_inf_nan=False)]
SecondsOrZero: TypeAlias = Annotated[float, Strict(), Field(ge=0, le=_DAY_S, allow_inf_nan=False)]
