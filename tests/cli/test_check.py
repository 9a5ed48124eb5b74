"""`fanout check`."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.config import NodeConfig, loading, rules
from tests.access.pieces import cheap_hash
from tests.cli.processes import run_fanout
from tests.support.certificates import Authority

SECONDARY = """
[node]
id = "edge-1"

[server]
listen = ["mqtt://127.0.0.1:1884"]

[http]
listen = "127.0.0.1:8080"

[log]
directory = "var/replication-log"

[[link]]
name = "plant"
primary = ["mqtt://127.0.0.1:1883", "mqtt://127.0.0.2:1883"]
username = "edge"

[[link.selector]]
filter = "plant/#"
exclude = ["plant/debug/#", "plant/tmp/#"]

[[link.selector]]
filter = "office/+/state"
qos = 0
prefix = "hq/"
writes = "forward"
"""

SUMMARY = """\
{path} has no faults for a secondary

node    edge-1
data    var/lib
serves  mqtt://127.0.0.1:1884
http    http://127.0.0.1:8080
log     var/replication-log

LINK   PRIMARY                MQTT  CLIENT ID            USER
plant  mqtt://127.0.0.1:1883  5     fanout-edge-1-plant  edge
       mqtt://127.0.0.2:1883

LINK   SELECTOR        EXCEPT         QOS  PREFIX  WRITES
plant  plant/#         plant/debug/#    1  -       reject
                       plant/tmp/#
plant  office/+/state  -                0  hq/     forward
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the path of a sound configuration."""
    path = tmp_path / "node.toml"
    path.write_text(SECONDARY)
    return path


def test_sound_configuration_is_summarised(config: Path) -> None:
    """A configuration without faults: exit 0 and what it would run, defaults included."""
    answer = run_fanout("check", str(config), "--role", "secondary")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == SUMMARY.format(path=config)


def test_smallest_configuration(runner: CliRunner, config: Path) -> None:
    """Without a role only what holds for each is checked; what is off is said to be off."""
    config.write_text('[node]\nid = "edge-1"\n[server]\n')
    answer = runner.invoke(app, ["check", str(config)])
    assert answer.exit_code == 0
    assert answer.stdout == (
        f"{config} has no faults\n\n"
        "node    edge-1\ndata    var/lib\nserves  mqtt://127.0.0.1:1884\nhttp    off\nlog     off\n"
    )


def test_all_faults_at_once(config: Path) -> None:
    """Each fault has its key and a hint, on standard error; exit 2; nothing on standard output."""
    config.write_text(SECONDARY.replace('id = "edge-1"', 'id = "edge 1"\ncolour = "red"').replace("qos = 0", "qos = 3"))
    answer = run_fanout("check", str(config))
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"error: {config}: 3 faults\n")
    for key in ("node.id", "node.colour", "link[0].selector[1].qos"):
        assert f"\n  {key}: " in answer.stderr


def test_the_place_that_the_log_is_shipped_to_is_shown(runner: CliRunner, config: Path) -> None:
    """Below the log's own directory."""
    config.write_text(SECONDARY.replace("[[link]]", '[log.ship]\nto = "s3://bucket/logs"\n\n[[link]]', 1))
    answer = runner.invoke(app, ["check", str(config)])
    assert "log         var/replication-log\nshipped to  s3://bucket/logs\n" in answer.stdout, answer.output


def test_role_is_checked(runner: CliRunner, config: Path) -> None:
    """A primary has no links; saying so needs the role."""
    answer = runner.invoke(app, ["check", str(config), "--role", "primary"])
    assert answer.exit_code == 2
    assert "primary" in answer.stderr


def test_overlap_shows_its_witness(runner: CliRunner, config: Path) -> None:
    """Two selectors that share a topic are refused with such a topic."""
    config.write_text(SECONDARY.replace('"office/+/state"', '"plant/+/state"').replace('prefix = "hq/"\n', ""))
    answer = runner.invoke(app, ["check", str(config)])
    assert answer.exit_code == 2
    assert "plant/" in answer.stderr


def test_acl_prints_the_rules_of_each_link_and_nothing_else(runner: CliRunner, config: Path) -> None:
    """To be pasted into a file; in Mosquitto's syntax unless another is asked for, a blank line between links."""
    other = '[[link]]\nname = "labs"\nprimary = "mqtt://127.0.0.3"\n[[link.selector]]\nfilter = "labs/#"\n'
    config.write_text(SECONDARY + other)
    answer = runner.invoke(app, ["check", str(config), "--acl"])
    assert (answer.exit_code, answer.stderr) == (0, "")
    first, second = answer.stdout.split("\n\n")
    assert first.startswith("# link plant of node edge-1\nuser edge\n")
    assert "\ntopic write office/+/state\n" in first
    assert second.startswith("# link labs of node edge-1\n")
    answer = runner.invoke(app, ["check", str(config), "--acl", "--for", "emqx"])
    assert '\n{allow, {username, "edge"}, publish, ["office/+/state"]}.\n' in answer.stdout


def test_acl_of_a_member_of_a_pool_has_the_heartbeats_of_the_others(runner: CliRunner, config: Path) -> None:
    """At which members compare what they hold."""
    before = runner.invoke(app, ["check", str(config), "--acl"]).output
    config.write_text('[pool]\npeers = ["127.0.0.1:9202"]\n' + config.read_text())
    answer = runner.invoke(app, ["check", str(config), "--acl"])
    assert answer.exit_code == 0, answer.output
    added = set(answer.output.splitlines()) - set(before.splitlines())
    assert any("fanout/control/+/" in line for line in added), added
    assert len(added) <= 2


def test_acl_that_cannot_be_written_is_a_fault(runner: CliRunner, config: Path) -> None:
    """No part of it is printed: a file with half of the rights would be believed. Every link is named at once."""
    spoilt = SECONDARY.replace('username = "edge"', 'username = "edge "')
    other = spoilt[spoilt.index("[[link]]") :].replace('"plant"', '"labs"').replace("plant/", "labs/")
    config.write_text(spoilt + other.replace("office", "home").replace("hq/", "h2/"))
    answer = runner.invoke(app, ["check", str(config), "--acl"])
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert 'link[0]: "edge " cannot be written there' in answer.stderr
    assert "link[1]: " in answer.stderr
    assert "--for list" in answer.stderr


def test_acl_of_a_node_without_links(runner: CliRunner, config: Path) -> None:
    """A primary needs no rights anywhere."""
    config.write_text(SECONDARY[: SECONDARY.index("[[link]]")])
    answer = runner.invoke(app, ["check", str(config), "--acl"])
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "A node without links needs no rights" in answer.stderr


def test_missing_file(runner: CliRunner, tmp_path: Path) -> None:
    """A file that is not there is a fault like any other."""
    answer = runner.invoke(app, ["check", str(tmp_path / "none.toml")])
    assert answer.exit_code == 2
    assert "cannot read the configuration file" in answer.stderr


def test_unknown_role_is_a_usage_error(runner: CliRunner, config: Path) -> None:
    """The roles that exist are named."""
    answer = runner.invoke(app, ["check", str(config), "--role", "tertiary"])
    assert answer.exit_code == 2
    assert "secondary" in answer.stderr


FILES = """
[node]
id = "edge-1"

[server]
listen = []

[[server.listener]]
address = "mqtts://127.0.0.1:8883"
certificate_file = "{0}/server.pem"
key_file = "{0}/server.key"

[[server.listener]]
address = "wss://127.0.0.1:8884"
certificate_file = "{0}/server.pem"
key_file = "{0}/server.key"
client_ca_file = "{0}/ca.pem"

[access]
password_file = "{0}/users"

[[link]]
name = "plant"
primary = "mqtt://127.0.0.1:1883"
username = "edge"
password_file = "{0}/plant"
count_url = "http://127.0.0.1:18083/api/v5/mqtt/retainer/messages"
count_key_file = "{0}/emqx"

[[link.selector]]
filter = "plant/#"
"""


@pytest.fixture
def with_files(config: Path) -> Path:
    """Return the path of a sound configuration that names files beside it, all of which are there."""
    directory = config.parent
    Authority(directory).issue("server")
    (directory / "users").write_text(f"alice:{cheap_hash(b'wonder')}\n")
    (directory / "plant").write_text("secret\n")
    (directory / "emqx").write_text("key:secret\n")
    for name in ("users", "plant", "emqx"):
        (directory / name).chmod(0o600)
    config.write_text(FILES.format(directory))
    return config


def test_files_that_are_named_are_opened(runner: CliRunner, with_files: Path) -> None:
    """Where all of them can be used there is nothing to say."""
    answer = runner.invoke(app, ["check", str(with_files), "--role", "secondary"])
    assert (answer.exit_code, answer.stderr) == (0, "")


def test_every_file_that_cannot_be_used_is_a_fault(with_files: Path) -> None:
    """Each with its key, what is wrong and what to do, all at once; no secret is shown."""
    directory = with_files.parent
    (directory / "server.key").write_bytes((directory / "ca.key").read_bytes())
    (directory / "ca.pem").write_text("rubbish")
    (directory / "users").write_text("alice:wonder\n\nbob\n")
    (directory / "plant").unlink()
    (directory / "emqx").write_text("wonder\n")
    answer = run_fanout("check", str(with_files))
    assert (answer.returncode, answer.stdout) == (2, "")
    lines = answer.stderr.splitlines()
    assert lines[0] == f"error: {with_files}: 7 faults"
    mismatch = f"the key in {directory}/server.key does not belong to the certificate in {directory}/server.pem"
    assert lines[1::2][:3] == [
        f"  server.listener[0].key_file: {mismatch}",
        f"  server.listener[1].key_file: {mismatch}",
        f"  server.listener[1].client_ca_file: {directory}/ca.pem has no certificates in PEM",
    ]
    assert lines[7].startswith(f"  access.password_file: {directory}/users, line 1: ")
    assert lines[9].startswith(f"  access.password_file: {directory}/users, line 3: ")
    assert lines[11].startswith(f"  link[0].password_file: {directory}/plant: cannot read the password")
    assert lines[13] == f"  link[0].count_key_file: {directory}/emqx: has no key:secret in it"
    assert all(hint.startswith("    ") and hint.endswith(".") for hint in lines[2::2])
    assert "wonder" not in answer.stderr


def test_files_need_not_be_at_hand(runner: CliRunner, with_files: Path) -> None:
    """A configuration can be checked on another machine."""
    for path in with_files.parent.iterdir():
        if path != with_files:
            path.unlink()
    assert runner.invoke(app, ["check", str(with_files)]).exit_code == 2
    answer = runner.invoke(app, ["check", str(with_files), "--no-files"])
    assert (answer.exit_code, answer.stderr) == (0, "")


def test_the_example_passes_through_a_pipe(runner: CliRunner) -> None:
    """Files that a configuration on standard input names are opened if that is asked for."""
    example = runner.invoke(app, ["config", "example"]).stdout
    answer = runner.invoke(app, ["check", "-"], input=example)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("standard input has no faults\n")
    faulty = runner.invoke(app, ["check", "-", "--files"], input=example)
    assert faulty.exit_code == 2
    assert faulty.stderr.startswith("error: standard input: ")
    assert runner.invoke(app, ["check", "-", "--members", "2"], input=example).exit_code == 2
    assert runner.invoke(app, ["check", "-"], input="[node").exit_code == 2


def test_a_pipe_without_end_is_refused(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is read than the limit and one byte."""
    monkeypatch.setattr(loading, "CONFIG_BYTES_MAX", 1000)
    parsed: list[int] = []
    parse = loading.parse_bytes

    def note(data: bytes, *, path: str, role: rules.Role | None = None) -> NodeConfig:
        parsed.append(len(data))
        return parse(data, path=path, role=role)

    monkeypatch.setattr(loading, "parse_bytes", note)
    answer = runner.invoke(app, ["check", "-"], input=b"#" * 5000)
    assert parsed == [1001]
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "it is larger than 1,000 bytes" in answer.stderr


LINK_FILES = """
[node]
id = "edge-1"

[server]

[[link]]
name = "plant"
primary = "mqtts://127.0.0.1:8883"
ca_file = "{0}/ca.pem"
client_certificate_file = "{0}/edge.pem"
client_key_file = "{0}/edge.key"

[[link.selector]]
filter = "plant/#"
"""


def test_files_of_a_link_with_tls_are_opened(runner: CliRunner, config: Path) -> None:
    """A certificate that expires within 30 days is a warning, another key a fault."""
    directory = config.parent
    authority = Authority(directory)
    config.write_text(LINK_FILES.format(directory))
    hour, day = timedelta(hours=1), timedelta(days=1)
    for valid, told in (
        ((-hour, 40 * day), ""),
        (
            (-hour, 29 * day),
            f"link[0].client_certificate_file: {directory}/edge.pem: its certificate expires on ",
        ),
        (
            (-day, -hour),
            f"link[0].client_certificate_file: {directory}/edge.pem: its certificate has expired on ",
        ),
    ):
        authority.issue("edge", valid=valid)
        answer = runner.invoke(app, ["check", str(config)])
        assert answer.exit_code == 0
        assert (f"  {told}" in answer.stderr) if told else (answer.stderr == "")
    (directory / "edge.key").write_bytes((directory / "ca.key").read_bytes())
    (directory / "ca.pem").write_text("rubbish")
    answer = runner.invoke(app, ["check", str(config)])
    assert answer.exit_code == 2
    assert answer.stderr.splitlines()[1::2] == [
        f"  link[0].ca_file: {directory}/ca.pem has no certificates in PEM",
        f"  link[0].client_key_file: the key in {directory}/edge.key does not belong to the certificate in "
        f"{directory}/edge.pem",
    ]


def test_files_that_do_no_good_are_a_warning(runner: CliRunner, with_files: Path) -> None:
    """A password file without users, or that everybody can read, is legal."""
    users = with_files.parent / "users"
    users.write_text("# nobody yet\n")
    users.chmod(0o604)
    answer = runner.invoke(app, ["check", str(with_files)])
    assert answer.exit_code == 0
    assert answer.stderr.startswith(f"warning: {with_files}: 2 warnings\n")
    assert f"  access.password_file: {users}: it has no users\n" in answer.stderr
    assert f"  access.password_file: {users}: everybody on this machine can read it\n" in answer.stderr


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("http.token_file", "[http]\ntoken_file = {}\n"),
        (
            "link[0].password_file",
            '[[link]]\nname = "a"\nprimary = "mqtt://127.0.0.1"\nusername = "u"\npassword_file = {}\n',
        ),
    ],
)
def test_a_secret_that_others_can_read_is_a_warning(runner: CliRunner, tmp_path: Path, key: str, section: str) -> None:
    """Whichever it is; the file is used all the same."""
    secret, file = tmp_path / "secret", tmp_path / "edge.toml"
    secret.write_text("a-secret-of-24-characters")
    link = "" if "link" in key else '[[link]]\nname = "a"\nprimary = "mqtt://127.0.0.1"\n'
    selector = '[[link.selector]]\nfilter = "plant/#"\n'
    file.write_text(f'[node]\nid = "edge"\n[log]\n{section.format(json.dumps(str(secret)))}{link}{selector}')
    for mode, warned in ((0o640, False), (0o644, True)):
        secret.chmod(mode)
        answer = runner.invoke(app, ["check", str(file)])
        assert answer.exit_code == 0, answer.stderr
        assert (f"  {key}: {secret}: everybody on this machine can read it\n" in answer.stderr) is warned


def test_listener_that_admits_nobody_is_a_warning(runner: CliRunner, config: Path) -> None:
    """The listener's key, why nobody gets in, and the keys that let somebody in."""
    config.write_text('[node]\nid = "a"\n[server]\nlisten = ["mqtt://127.0.0.1:1883", "mqtt://0.0.0.0:1884"]\n')
    answer = runner.invoke(app, ["check", str(config), "--role", "primary"])
    assert answer.exit_code == 0
    head, where, hint = answer.stderr.splitlines()
    assert head == f"warning: {config}: 1 warning"
    assert where.startswith("  server.listen[1]: no client can connect to mqtt://0.0.0.0:1884: ")
    for key in ("access.password_file", "client_ca_file", "[access.http]", "access.anonymous"):
        assert key in hint


POOL = """
[node]
id = "edge-1"

[server]

[pool]
listen = "0.0.0.0:9201"
{0}

[[link]]
name = "plant"
primary = "mqtt://127.0.0.1:1883"

[[link.selector]]
filter = "plant/#"
"""


def test_files_of_a_pool_are_opened(runner: CliRunner, config: Path) -> None:
    """A token that is none, a CA that is none and a certificate that expires are told with their keys."""
    directory = config.parent
    token = directory / "token"
    Authority(directory).issue("edge", valid=(timedelta(hours=-1), timedelta(days=20)))
    files = "\n".join(
        f'{key} = "{directory}/{name}"'
        for key, name in (
            ("token_file", "token"),
            ("certificate_file", "edge.pem"),
            ("key_file", "edge.key"),
            ("client_ca_file", "ca.pem"),
        )
    )
    config.write_text(POOL.format(f'peers = ["edge-2:9201"]\n{files}'))
    token.write_text("a-token-of-the-pool\n")
    answer = runner.invoke(app, ["check", str(config)])
    assert answer.exit_code == 0
    assert "pool    0.0.0.0:9201\n" in answer.stdout
    assert f"  pool.certificate_file: {directory}/edge.pem: its certificate expires on " in answer.stderr
    token.write_text("short")
    (directory / "ca.pem").write_text("rubbish")
    answer = runner.invoke(app, ["check", str(config)])
    assert answer.exit_code == 2
    assert [line.partition(":")[0].strip() for line in answer.stderr.splitlines()[1::2]] == [
        "pool.client_ca_file",
        "pool.token_file",
    ]


def test_pool_that_is_hardly_meant_is_a_warning(runner: CliRunner, config: Path) -> None:
    """One without other members, and a token that everybody on the way can read."""
    token = config.parent / "token"
    token.write_text("a-token-of-the-pool\n")
    config.write_text(POOL.format(f'token_file = "{token}"'))
    answer = runner.invoke(app, ["check", str(config), "--role", "secondary"])
    assert answer.exit_code == 0
    assert "  pool.peers: no other member is known: " in answer.stderr
    assert "  pool.token_file: members show each other the token unencrypted, " in answer.stderr


@pytest.mark.timeout(60)
def test_named_pipes_and_devices_are_refused_and_not_opened(tmp_path: Path, runner: CliRunner) -> None:
    """As the configuration, and in the place of any file that it names: nobody waits, and each is named."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, reason in ((pipe, "named pipe"), (Path("/dev/zero"), "device"), (tmp_path, "directory")):
        answer = runner.invoke(app, ["check", str(path)])
        assert answer.exit_code == 2
        assert reason in answer.stderr
        assert str(path) in answer.stderr
    config = tmp_path / "secondary.toml"
    config.write_text(
        SECONDARY.replace('username = "edge"', f'username = "edge"\npassword_file = "{pipe}"')
        + f'\n[access]\npassword_file = "{pipe}"\n'
    )
    answer = runner.invoke(app, ["check", str(config)])
    assert answer.exit_code == 2
    for key in ("access.password_file", "link[0].password_file"):
        assert f"{key}: {pipe}: it is a named pipe" in answer.stderr
    config.write_text("#" * (16 * 1024 * 1024 + 1))
    assert "larger than" in runner.invoke(app, ["check", str(config)]).stderr
