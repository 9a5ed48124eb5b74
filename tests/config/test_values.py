"""Tests of `fanout.config.values`: what one value may be, seen through a file."""

from __future__ import annotations

import pytest

from fanout.config import parse_config
from tests.config.faults import LINK, NODE, SELECTOR, SERVER, faults_of

NAME_HINT = "Use 1 to 64 letters (A to Z), digits, '-', '_' or '.', and begin with a letter or digit."
TOPIC_HINT = 'Use one without wildcards, without "$" in front and "/" at the end, as in "fanout/control".'


@pytest.mark.parametrize("name", ["a", "Edge-1", "0", "a.b_c-d", "x" * 64])
def test_names_that_fit_everywhere_pass(name: str) -> None:
    """Node and link names are letters, digits and three signs."""
    assert faults_of(f'[node]\nid = "{name}"\n{SERVER}') == []


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "-a", "ä", "a:b", "x" * 65, "a\\n"])
def test_names_that_do_not_fit_are_refused(name: str) -> None:
    """A name ends in file names and Client Identifiers."""
    problem = f'"{name}" cannot be part of file names and Client Identifiers'
    assert faults_of(f'[node]\nid = "{name}"\n{SERVER}') == [("node.id", problem, NAME_HINT)]


def link_with(line: str) -> str:
    """Return a configuration with one line more in its link."""
    return f"{NODE}{SERVER}{LINK}{line}\n{SELECTOR}"


def selector_with(line: str) -> str:
    """Return a configuration with one line more in its selector."""
    return f"{NODE}{SERVER}{LINK}{SELECTOR}{line}\n"


@pytest.mark.parametrize(
    ("line", "key", "problem", "hint"),
    [
        ('username = ""', "username", "it is empty", "Write the User Name, or remove the line."),
        (
            'client_id = "a\\u0000"',
            "client_id",
            "it is too long for MQTT, or contains the character U+0000",
            "Use at most 65535 bytes, without that character.",
        ),
        (
            f'username = "{"ü" * 32_768}"',
            "username",
            "it is too long for MQTT, or contains the character U+0000",
            "Use at most 65535 bytes, without that character.",
        ),
        (
            'password_env = "s3cret!"',
            "password_env",
            "this is not the name of an environment variable",
            'Write the name, such as "PLANT_PASSWORD", and put the password into that variable.',
        ),
        (
            'password_file = ""',
            "password_file",
            "it is empty",
            "Write a path; a relative one is relative to the current directory.",
        ),
        (
            'password_file = "a\\u0000"',
            "password_file",
            "it contains the character U+0000",
            "Write a path; a relative one is relative to the current directory.",
        ),
        *(
            (
                f'control_topic = "{topic}"',
                "control_topic",
                f'"{topic}" is not a topic below which the node can publish',
                TOPIC_HINT,
            )
            for topic in ("", "a/+", "a/#", "$a/b", "a/")
        ),
        (
            'control_topic = "a\\u0000"',
            "control_topic",
            "it contains the character U+0000, which MQTT does not allow",
            "Remove that character.",
        ),
        (
            "session_expiry_s = 4_294_967_295",
            "session_expiry_s",
            "4294967295 is too large; the largest value is 4294967294",
            "The default is 300.",
        ),
    ],
)
def test_a_link_refuses_what_mqtt_or_the_system_cannot_use(line: str, key: str, problem: str, hint: str) -> None:
    """Each value of a link is checked by itself; what may be a password is not repeated."""
    assert faults_of(link_with(line)) == [(f"link[0].{key}", problem, hint)]


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        (
            "$share/group/a/#",
            '"$share/group/a/#" is a shared subscription: each of its messages reaches only one subscriber',
            "Remove $share and the group in front: a replica needs every message.",
        ),
        (
            "$SYS",
            '"$SYS" selects topics in which the primary describes itself, which is not true of this node',
            "Remove the selector, and read these topics at the primary.",
        ),
        (
            "$SYS/#",
            '"$SYS/#" selects topics in which the primary describes itself, which is not true of this node',
            "Remove the selector, and read these topics at the primary.",
        ),
    ],
)
def test_a_selector_refuses_filters_that_are_no_selection(text: str, problem: str, hint: str) -> None:
    """Shared subscriptions and the primary's own statistics cannot be replicated."""
    configuration = f'{NODE}{SERVER}{LINK}[[link.selector]]\nfilter = "{text}"\n'
    assert faults_of(configuration) == [("link[0].selector[0].filter", problem, hint)]


def test_a_selector_below_a_dollar_is_allowed() -> None:
    """Only `$SYS` and `$share` are refused; other such topics may be of use."""
    assert faults_of(f'{NODE}{SERVER}{LINK}[[link.selector]]\nfilter = "$devices/#"\n') == []
    assert faults_of(f'{NODE}{SERVER}{LINK}[[link.selector]]\nfilter = "$SYSTEM/#"\n') == []


@pytest.mark.parametrize(
    ("line", "key", "problem"),
    [
        ('exclude = ["plant/a", "plant#"]', "exclude[1]", '"#" in "plant#" is not the whole last level'),
        ('prefix = "p"', "prefix", 'the prefix "p" does not end with "/"'),
    ],
)
def test_a_selector_refuses_what_the_rules_of_filters_refuse(line: str, key: str, problem: str) -> None:
    """Excludes and prefixes follow `fanout.selection`."""
    [(at, why, hint)] = faults_of(selector_with(line))
    assert (at, why) == (f"link[0].selector[0].{key}", problem)
    assert hint


def test_a_primary_is_one_address_or_several() -> None:
    """Each address of a list is checked; a single one is named without an index."""
    scheme = 'the scheme "tcp" is not supported'
    one = LINK.replace("mqtt://primary-host", "tcp://a")
    several = LINK.replace('"mqtt://primary-host"', '["mqtt://a", "tcp://b"]')
    assert [fault[:2] for fault in faults_of(NODE + SERVER + one + SELECTOR)] == [("link[0].primary", scheme)]
    assert [fault[:2] for fault in faults_of(NODE + SERVER + several + SELECTOR)] == [("link[0].primary[1]", scheme)]


def test_a_pin_is_one_digest_or_several() -> None:
    """As OpenSSL prints them, or as plain digits; kept in one spelling."""
    pin = "AB:" * 31 + "cd"
    for text, pins in ((f'"{pin}"', 1), (f'["{pin}", "{"0" * 64}"]', 2)):
        more = f"server_certificate_sha256 = {text}\n"
        config = parse_config(NODE + SERVER + LINK.replace("mqtt:", "mqtts:") + more + SELECTOR, path="edge.toml")
        assert config.links[0].server_certificate_sha256 == ("ab" * 31 + "cd", "0" * 64)[:pins]
    [(key, problem, hint)] = faults_of(NODE + SERVER + LINK + f'server_certificate_sha256 = "{pin}0"\n' + SELECTOR)
    assert key == "link[0].server_certificate_sha256"
    assert problem == f'"{pin}0" is not a SHA-256 digest of a certificate'
    assert "openssl x509" in hint


@pytest.mark.parametrize("line", ["primary = 1883", "primary = {}", 'primary = [["mqtt://a"]]'])
def test_a_primary_of_another_type_is_refused(line: str) -> None:
    """An address is text."""
    [(key, problem, _)] = faults_of(NODE + SERVER + f'[[link]]\nname = "a"\n{line}\n' + SELECTOR)
    assert key.startswith("link[0].primary")
    assert problem.startswith("must be text in quotes, but is ")


@pytest.mark.parametrize("text", ["https://plant.example", "http://10.0.0.7:8080", "http://[2001:db8::7]", "*"])
def test_origin_of_a_web_page(text: str) -> None:
    """As a browser writes it, or all of them."""
    assert faults_of(f'{NODE}[server]\nwebsocket_origins = ["{text}"]\n') == []


@pytest.mark.parametrize("text", ["plant.example", "https://plant.example/", "https://Plant.example", "http://a:0", ""])
def test_origin_that_no_browser_sends(text: str) -> None:
    """It would never match."""
    ((key, problem, _),) = faults_of(f'{NODE}[server]\nwebsocket_origins = ["{text}"]\n')
    assert (key, problem) == ("server.websocket_origins[0]", f'"{text}" is not the origin of a web page')


@pytest.mark.parametrize("text", ["edge-2", "edge-2:1883", "10.0.0.2:1883 edge-3.plant", "[fd00::7]:1883"])
def test_server_references_that_clients_understand_pass(text: str) -> None:
    """Hosts with or without a port, one blank between (MQTT 5, section 4.11)."""
    assert faults_of(f'{NODE}{SERVER}server_reference = "{text}"\n') == []


@pytest.mark.parametrize("text", ["", "mqtt://edge-2", "edge-2:port", "edge-2  edge-3", "edge-2,edge-3"])
def test_server_references_that_no_client_understands_are_refused(text: str) -> None:
    """With an example."""
    [(key, problem, _)] = faults_of(f'{NODE}{SERVER}server_reference = "{text}"\n')
    assert (key, problem) == ("server.server_reference", f'"{text}" does not name servers as clients read them')


def test_kinds_of_content_are_three() -> None:
    """Others are refused with those that there are."""
    assert faults_of(selector_with('content = ["json", "binary", "text"]')) == []
    [(key, problem, hint)] = faults_of(selector_with('content = ["xml"]'))
    assert key == "link[0].selector[0].content[0]"
    assert '"xml" is not possible here' in problem
    assert hint == 'Use "json", "binary" or "text".'


def test_retained_only_and_live_only_leave_nothing() -> None:
    """One of them, or neither."""
    for line in ("retained_only = true", "live_only = true"):
        assert faults_of(selector_with(line)) == []
    [(key, problem, _)] = faults_of(selector_with("retained_only = true\nlive_only = true"))
    assert (key, problem) == (
        "link[0].selector[0].live_only",
        "retained_only is true too, and nothing would be left",
    )


def test_what_holds_no_values_has_no_fewest() -> None:
    """With live_only the node would never be ready."""
    assert faults_of(selector_with("min_topics = 5")) == []
    [(key, problem, _)] = faults_of(selector_with("live_only = true\nmin_topics = 5"))
    assert key == "link[0].selector[0].min_topics"
    assert "the node would never be ready" in problem


@pytest.mark.parametrize(
    "uri", ["s3://b", "s3://b/p?region=x&endpoint_override=h:1", "gs://b/p", "hdfs://h:1/p", "file:///p"]
)
def test_a_place_to_ship_to_is_a_uri(uri: str) -> None:
    """Object stores, HDFS and a mounted directory."""
    assert faults_of(f'{NODE}{SERVER}[log.ship]\nto = "{uri}"\n') == []


@pytest.mark.parametrize("uri", ["", "b/p", "s3:///p", "s3://", "http://b/p", "file://p", "file:///"])
def test_other_places_to_ship_to_are_refused(uri: str) -> None:
    """The fault shows what can be written."""
    (fault,) = faults_of(f'{NODE}{SERVER}[log.ship]\nto = "{uri}"\n')
    assert fault[:2] == ("log.ship.to", f'"{uri}" names no place that files can be shipped to')
    assert "s3://bucket/prefix" in fault[2]


def test_credentials_in_the_place_to_ship_to_are_refused() -> None:
    """They are not repeated, and the hint says where they belong."""
    (fault,) = faults_of(f'{NODE}{SERVER}[log.ship]\nto = "s3://KEY:s3cret@bucket/p"\n')
    assert fault[:2] == ("log.ship.to", "it has credentials in it")
    assert "AWS_SECRET_ACCESS_KEY" in fault[2]
    assert "s3cret" not in str(fault)
