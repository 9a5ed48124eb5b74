"""Tests of `fanout.config.rules`: what is wrong between keys, each rule by itself."""

from __future__ import annotations

import pytest

from fanout.config import Role, parse_config
from fanout.config.rules import OVERLAPS_SHOWN_MAX, find_faults
from tests.config.faults import LINK, NODE, SELECTOR, SERVER, faults_of

LOG = "[log]\n"


def link(name: str, *filters: str, primary: str = "mqtt://primary-host", more: str = "") -> str:
    """Return a link with a selector for each filter; a filter may bring further lines."""
    selectors = "".join(f"[[link.selector]]\nfilter = {text}\n" for text in filters)
    return f'[[link]]\nname = "{name}"\nprimary = "{primary}"\n{more}{selectors}'


class TestRoles:
    """What each role needs and must not have."""

    @pytest.mark.parametrize(
        ("role", "text"),
        [
            ("primary", SERVER),
            ("primary", SERVER + LOG + "[http]\n"),
            ("secondary", SERVER + LINK + SELECTOR),
            ("secondary", SERVER + LOG + LINK + SELECTOR),
            ("tap", LOG + LINK + SELECTOR),
            ("tap", "[http]\n" + LOG + LINK + SELECTOR),
            (None, SERVER),
            (None, SERVER + LINK + SELECTOR),
            (None, LOG + LINK + SELECTOR),
        ],
    )
    def test_a_file_that_fits_has_no_faults(self, role: Role | None, text: str) -> None:
        """The sections that a role needs are enough."""
        assert faults_of(NODE + text, role=role) == []

    @pytest.mark.parametrize(
        ("role", "text", "faults"),
        [
            ("primary", SERVER + LINK + SELECTOR, {"link": "a primary has no links"}),
            ("primary", LOG, {"server": "a primary serves clients, and there is no [server]"}),
            (
                "secondary",
                LOG,
                {
                    "link": "a secondary replicates a primary, and there is no [[link]]",
                    "server": "a secondary serves clients, and there is no [server]",
                },
            ),
            ("tap", LOG, {"link": "a tap replicates a primary, and there is no [[link]]"}),
            ("tap", LINK + SELECTOR, {"log": "a tap exists to write a log, and there is no [log]"}),
            ("tap", SERVER + LOG + LINK + SELECTOR, {"server": "a tap serves no clients"}),
            (None, LOG, {"": "the node would do nothing: it has neither [server] nor [[link]]"}),
            (None, LINK + SELECTOR, {"": "the links lead nowhere: there is neither [server] nor [log]"}),
        ],
    )
    def test_a_file_that_does_not_fit_is_told_all_of_it(
        self, role: Role | None, text: str, faults: dict[str, str]
    ) -> None:
        """Each missing and each superfluous section is a fault."""
        found = faults_of(NODE + text, role=role)
        assert {key: problem for key, problem, _ in found} == faults
        assert all(hint for _, _, hint in found)


class TestRetained:
    """Values that are on the disk only must not be in memory for another reason."""

    def test_disc_only_refuses_what_has_every_topic_in_memory(self) -> None:
        """Each key that would is named, with what to do; with another storage it is fine."""
        keys = 'count_url = "http://127.0.0.1:18083/api/v5/mqtt/retainer/messages"\n'
        text = f'{NODE}{SERVER}{LINK}{keys}{SELECTOR}[retained]\nstorage = "disc_only"\n'
        found = faults_of(text)
        assert [key for key, _, _ in found] == ["link[0].count_url"]
        assert all('retained.storage is "disc_only"' in problem and '"disc"' in hint for _, problem, hint in found)
        assert faults_of(text.replace("disc_only", "disc")) == []


class TestSessions:
    """Sessions on disk need values on disk."""

    def test_what_sessions_on_disk_need_is_named(self) -> None:
        """Each key that is in the way is a fault, with what to do; without all of them it is fine."""
        text = f'{NODE}{SERVER}{LINK}{SELECTOR}[sessions]\nstorage = "disc"\n'
        ((key, problem, hint),) = faults_of(text)
        assert key == "sessions.storage"
        assert 'retained.storage is "ram"' in problem
        assert hint
        text += '[retained]\nstorage = "disc"\n'
        assert faults_of(text) == []
        assert faults_of(text + '[pool]\nlisten = "127.0.0.1:9201"\npeers = ["127.0.0.1:9202"]\n') == []

    def test_a_tap_has_no_sessions(self) -> None:
        """Without [server] there is nothing to store."""
        text = f'{NODE}{LINK}{SELECTOR}[log]\ndirectory = "log"\n[sessions]\nstorage = "disc"\n'
        assert [problem for _, problem, _ in faults_of(text)] == ["a node that serves no clients has no sessions"]


class TestPrefixes:
    """A prefix must not give topics of a primary the names of the node's control topics."""

    @pytest.mark.parametrize(
        ("prefix", "filter_", "is_fault"),
        [("fanout/", "#", True), ("fanout/", "+/n/p", True), ("fanout/", "plant/#", False), ("", "#", False)],
    )
    def test_names_of_control_topics(self, prefix: str, filter_: str, is_fault: bool) -> None:
        """They are where the nodes below publish their heartbeats."""
        text = f'{NODE}{SERVER}{LINK}[[link.selector]]\nfilter = "{filter_}"\nprefix = "{prefix}"\n'
        faults = faults_of(text)
        assert [key for key, _, _ in faults] == ["link[0].selector[0].prefix"] * is_fault


class TestListeners:
    """Listeners must not take each other's port, nor a link lead back to the node."""

    @pytest.mark.parametrize(
        ("listener", "faults"),
        [
            (
                'address = "mqtts://127.0.0.1:8883"',
                {
                    "certificate_file": "is missing, and mqtts:// needs it",
                    "key_file": "is missing, and mqtts:// needs it",
                },
            ),
            (
                'address = "ws://a:80"\ncertificate_file = "c"\nclient_ca_file = "a"',
                {
                    "certificate_file": "it is for TLS, and ws://a:80 has none",
                    "client_ca_file": "it is for TLS, and ws://a:80 has none",
                },
            ),
            (
                'address = "wss://a"\ncertificate_file = "c"\nkey_file = "k"\nrequire_client_certificate = true',
                {"require_client_certificate": "nothing says which certificates are valid: client_ca_file is missing"},
            ),
            (
                'address = "unix:///a"\nproxy_protocol_from = ["10.0.0.1"]',
                {"proxy_protocol_from": "clients of a Unix socket have no address that could be trusted"},
            ),
            (
                'address = "mqtt://a"\nproxy_protocol_from = ["10.0.0.1/8", "10.0.0.0/8", "::1"]',
                {"proxy_protocol_from[0]": '"10.0.0.1/8" is neither an IP address nor a network'},
            ),
            (
                'address = "mqtts://a"\nrequire_client_certificate = 1',
                {"require_client_certificate": "must be true or false, but is the number 1"},
            ),
        ],
    )
    def test_the_keys_of_a_listener_belong_together(self, listener: str, faults: dict[str, str]) -> None:
        """What its scheme needs is there, and nothing else; a faulty value hides what rests on it."""
        found = faults_of(f"{NODE}[server]\n[[server.listener]]\n{listener}\n")
        assert {key: problem for key, problem, _ in found} == {
            f"server.listener[0].{key}": problem for key, problem in faults.items()
        }
        assert all(hint for _, _, hint in found)

    def test_the_plain_list_may_be_empty_beside_a_table(self) -> None:
        """One listener is enough, wherever it stands."""
        table = '[[server.listener]]\naddress = "unix:///run/mqtt.sock"\n'
        assert faults_of(f"{NODE}[server]\nlisten = []\n{table}") == []
        assert [fault[0] for fault in faults_of(f"{NODE}[server]\nlisten = []\n")] == ["server.listen"]

    def test_two_listeners_on_one_path_clash(self) -> None:
        """A Unix socket is opened once."""
        text = f'{NODE}[server]\nlisten = ["unix:///a", "unix:///b"]\n[[server.listener]]\naddress = "unix:///a"\n'
        assert faults_of(text) == [
            (
                "server.listener[0].address",
                "/a cannot be opened beside server.listen[0], /a",
                "Choose another path for one of them.",
            )
        ]

    @pytest.mark.parametrize(
        ("mqtt", "http", "beside"),
        [
            ("mqtt://127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1:8080"),
            ("mqtt://0.0.0.0:8080", "127.0.0.1:8080", "0.0.0.0:8080"),
            ("mqtt://127.0.0.1:8080", "0.0.0.0:8080", "127.0.0.1:8080"),
            ("mqtt://localhost:8080", "127.0.0.1:8080", "localhost:8080"),
            ("mqtt://[::]:8080", "[::1]:8080", "[::]:8080"),
            ("mqtt://0.0.0.0:8080", "edge.local:8080", "0.0.0.0:8080"),
        ],
    )
    def test_mqtt_and_http_on_one_port_clash(self, mqtt: str, http: str, beside: str) -> None:
        """The second listener could not be opened."""
        text = f'{NODE}[server]\nlisten = ["{mqtt}"]\n[http]\nlisten = "{http}"\n'
        assert faults_of(text) == [
            (
                "http.listen",
                f"{http} cannot be opened beside server.listen[0], {beside}",
                "Choose another port for one of them.",
            )
        ]

    def test_two_mqtt_listeners_on_one_port_clash(self) -> None:
        """Each pair is compared."""
        text = f'{NODE}[server]\nlisten = ["mqtt://a:1", "mqtt://b:1", "mqtt://a:1"]\n'
        assert [fault[0] for fault in faults_of(text)] == ["server.listen[2]"]

    @pytest.mark.parametrize(
        ("mqtt", "http"),
        [
            ("mqtt://127.0.0.1:8081", "127.0.0.1:8080"),
            ("mqtt://127.0.0.2:8080", "127.0.0.1:8080"),
            ("mqtt://127.0.0.1:0", "127.0.0.1:0"),
            ("mqtt://0.0.0.0:8080", "[::]:8080"),
            ("mqtt://0.0.0.0:8080", "[::1]:8080"),
            ("mqtt://10.0.0.1:8080", "0.0.0.0:8081"),
        ],
    )
    def test_listeners_that_do_not_meet_pass(self, mqtt: str, http: str) -> None:
        """Other ports, other hosts, the other family, and ports that the system chooses; loopback or not."""
        assert faults_of(f'{NODE}[server]\nlisten = ["{mqtt}"]\n[http]\nlisten = "{http}"\n') == []

    @pytest.mark.parametrize(
        ("listen", "primary"),
        [
            ("mqtt://127.0.0.1:1884", "mqtt://127.0.0.1:1884"),
            ("mqtt://127.0.0.1:1884", "mqtt://localhost:1884"),
            ("mqtt://0.0.0.0:1884", "mqtt://127.0.0.1:1884"),
            ("mqtt://[::]:1884", "mqtt://localhost:1884"),
        ],
    )
    def test_a_link_to_the_node_itself_is_refused(self, listen: str, primary: str) -> None:
        """The shortest cycle is found from the addresses alone."""
        text = f'{NODE}[server]\nlisten = ["{listen}"]\n' + link("plant", '"plant/#"', primary=primary)
        assert faults_of(text) == [
            (
                "link[0].primary",
                f"{primary} is this node's own listener",
                "Write the address of another node: a node cannot replicate itself.",
            )
        ]

    @pytest.mark.parametrize("primary", ["mqtt://127.0.0.1:1885", "mqtt://primary-host:1884", "mqtt://10.0.0.1:1884"])
    def test_a_link_to_another_node_passes(self, primary: str) -> None:
        """Another port or a host that may be another machine is no cycle."""
        text = f'{NODE}[server]\nlisten = ["mqtt://0.0.0.0:1884"]\n' + link("plant", '"a"', primary=primary)
        assert faults_of(text) == []


def test_the_low_mark_is_not_above_the_high_mark() -> None:
    """Else a connection would never get messages again."""
    assert faults_of(f"{NODE}{SERVER}write_buffer_low_bytes = 2048\nwrite_buffer_high_bytes = 2047\n") == [
        (
            "server.write_buffer_low_bytes",
            "2048 is more than the high mark, 2047",
            "Choose a value that is at most write_buffer_high_bytes.",
        )
    ]
    assert faults_of(f"{NODE}{SERVER}write_buffer_low_bytes = 2048\nwrite_buffer_high_bytes = 2048\n") == []


def test_a_shared_port_is_one_of_members_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs a TCP port, peers that may share it, and a system that can."""
    listener = '[[server.listener]]\nshare_port = true\naddress = "mqtt://127.0.0.1:1885"\n'
    pool = '[pool]\npeers = ["127.0.0.1:9202"]\n'
    text = f"{NODE}{SERVER}{listener}{LINK}{SELECTOR}"
    key = "server.listener[0].share_port"
    assert faults_of(text + pool) == []
    [(found, problem, hint)] = faults_of(text)
    assert (found, problem) == (key, "only members of one pool share a port, and pool.peers names no members")
    assert "fanout secondary --members" in hint
    for address in ("mqtt://127.0.0.1:0", "unix:///run/mqtt.sock"):
        [(found, problem, _)] = faults_of(text.replace("mqtt://127.0.0.1:1885", address) + pool)
        assert (found, problem) == (key, f"{address} is no port that several processes can share")
    monkeypatch.setattr("sys.platform", "win32")
    problem = "processes can share a port on Linux only, and this is win32"
    assert faults_of(text + pool) == [(key, problem, "Remove the line.")]


def test_a_link_of_a_member_of_a_pool_has_no_bound_on_the_age() -> None:
    """Heartbeats that overtake values are no places that members have in common."""
    text = f"{NODE}{SERVER}{LINK}max_age_s = 2.0\n{SELECTOR}"
    assert faults_of(text) == []
    [(key, problem, hint)] = faults_of(f'{text}[pool]\npeers = ["127.0.0.1:9202"]\n')
    assert (key, hint) == ("link[0].max_age_s", "Remove the line, or [pool].")
    assert "heartbeats" in problem


def test_workers_are_members_of_a_pool_now() -> None:
    """The key of an older version is named with what to do, whatever its value."""
    for number in (1, 2):
        [(key, problem, hint)] = faults_of(f"{NODE}[server]\nworkers = {number}\n{LINK}{SELECTOR}")
        assert (key, problem) == ("server.workers", "several processes serve clients as a pool on this machine now")
        assert '"fanout secondary --members"' in hint


class TestLinks:
    """Names, identifiers, passwords and pauses of links."""

    def test_two_links_have_two_names(self) -> None:
        """A name that is taken is told once, with the first that has it."""
        text = "".join(link("plant", f'"{name}"', primary=f"mqtt://{name}") for name in "abc")
        name = '"plant" is also the name of link[0]'
        assert faults_of(NODE + SERVER + text) == [
            ("link[1].name", name, "Choose another name."),
            ("link[2].name", name, "Choose another name."),
        ]

    def test_a_key_for_the_list_needs_the_list(self) -> None:
        """Alone it would do nothing; a faulty address of the list is the only fault."""
        key = 'count_key_file = "secrets/emqx"\n'
        assert faults_of(NODE + SERVER + link("one", '"a"', more=key)) == [
            ("link[0].count_key_file", "it is for count_url, which is missing", "Add count_url, or remove the line.")
        ]
        more = key + 'count_url = "{}"\n'
        assert faults_of(NODE + SERVER + link("one", '"a"', more=more.format("http://emqx/list"))) == []
        [fault] = faults_of(NODE + SERVER + link("one", '"a"', more=more.format("emqx/list")))
        assert fault[0] == "link[0].count_url"

    def test_a_password_of_the_other_user_needs_that_user(self) -> None:
        """Alone it would do nothing."""
        key = 'audit_password_file = "secrets/auditor"\n'
        problem = ("link[0].audit_password_file", "it is for audit_username, which is missing")
        assert faults_of(NODE + SERVER + link("one", '"a"', more=key)) == [
            (*problem, "Add audit_username, or remove the line.")
        ]
        assert faults_of(NODE + SERVER + link("one", '"a"', more=key + 'audit_username = "auditor"\n')) == []

    def test_the_other_user_is_another_one(self) -> None:
        """The link's own user sees no more than the link."""
        users = 'username = "edge"\naudit_username = "edge"\n'
        [fault] = faults_of(NODE + SERVER + link("one", '"a"', more=users))
        assert fault[:2] == (
            "link[0].audit_username",
            "it is the username of the link, which sees no more than the link",
        )

    def test_keys_of_tls_need_an_address_with_tls(self) -> None:
        """One address of several is enough; each key that would do nothing is told."""
        keys = (
            'ca_file = "ca.pem"\n',
            'server_certificate_sha256 = "' + "0" * 64 + '"\n',
            'client_certificate_file = "c.pem"\nclient_key_file = "c.key"\n',
            "tls_insecure = true\n",
        )
        for more in keys:
            named = [line.partition(" ")[0] for line in more.splitlines()]
            assert faults_of(NODE + SERVER + link("one", '"a"', more=more)) == [
                (
                    f"link[0].{name}",
                    "it is for TLS, and mqtt://primary-host:1883 has none",
                    "Write mqtts:// in primary, or remove the line.",
                )
                for name in named
            ]
            for primary in ("mqtts://primary-host", "wss://primary-host/mqtt", 'mqtt://a", "mqtts://b'):
                text = link("one", '"a"', more=more).replace('"mqtt://primary-host"', f'["{primary}"]')
                assert faults_of(NODE + SERVER + text) == []

    def test_one_key_says_which_primary_is_trusted(self) -> None:
        """A CA, a pinned certificate, or nothing verified: not two of them."""
        pin = 'server_certificate_sha256 = "' + "0" * 64 + '"\n'
        more = f'ca_file = "ca.pem"\n{pin}tls_insecure = true\n'
        why = "is given too, and each says by itself which certificate of the primary is trusted"
        assert faults_of(NODE + SERVER + link("one", '"a"', primary="mqtts://a", more=more)) == [
            (f"link[0].{key}", f"ca_file {why}", f"Keep ca_file or {key}, not both.")
            for key in ("server_certificate_sha256", "tls_insecure")
        ]

    def test_a_client_certificate_needs_its_key(self) -> None:
        """And a key its certificate."""
        for name, other in (
            ("client_key_file", "client_certificate_file"),
            ("client_certificate_file", "client_key_file"),
        ):
            more = f'{other} = "c.pem"\n'
            assert faults_of(NODE + SERVER + link("one", '"a"', primary="mqtts://a", more=more)) == [
                (
                    f"link[0].{name}",
                    f"is missing, and {other} needs it",
                    f"Add {name}, the path of a PEM file; one file may hold both.",
                )
            ]

    def test_a_link_that_could_announce_nothing_is_told(self) -> None:
        """Each selector may keep out what the primary has; one that does not is enough, retained_only too."""
        keys = ("live_only = true", "max_payload = 5", 'content = ["json"]')
        choosy = "".join(f'[[link.selector]]\nfilter = "{index}/#"\n{key}\n' for index, key in enumerate(keys))
        more = f"announce_missing = true\n{choosy}"
        faults = faults_of(NODE + SERVER + LINK + more)
        assert [key for key, _, _ in faults] == ["link[0].announce_missing"]
        assert "live_only, content or max_payload" in faults[0][1]
        for other in ("", "retained_only = true\n"):
            assert faults_of(f'{NODE}{SERVER}{LINK}{more}[[link.selector]]\nfilter = "other"\n{other}') == []

    def test_evidence_that_cannot_come_is_not_asked_for(self) -> None:
        """A manifest needs MQTT 5; such a node would never be ready."""
        asked = link("one", '"a"', more='min_evidence = "manifest"\n')
        assert faults_of(NODE + SERVER + asked) == []
        assert faults_of(NODE + SERVER + link("one", '"a"', more='min_evidence = "manifest"\nversion = 4\n')) == [
            (
                "link[0].min_evidence",
                '"manifest" needs MQTT 5, and with version = 4 the node would never be ready',
                "Remove version, or write a weaker evidence.",
            )
        ]

    def test_two_links_to_one_primary_have_two_client_identifiers(self) -> None:
        """With one identifier the primary would let them throw each other out for ever."""
        same = 'client_id = "edge"\n'
        one = link("one", '"a"', more=same)
        assert faults_of(NODE + SERVER + one + link("two", '"b"', more=same)) == [
            (
                "link[1].client_id",
                '"edge" is also the client_id of link[0], and their primary would close each connection '
                "when the other opens",
                "Choose another client_id, or remove the line.",
            )
        ]
        assert faults_of(NODE + SERVER + one + link("two", '"b"', primary="mqtt://other", more=same)) == []

    def test_a_password_has_one_source(self) -> None:
        """A file or a variable, not both."""
        text = link("plant", '"a"', more='username = "u"\npassword_file = "f"\npassword_env = "E"\n')
        assert faults_of(NODE + SERVER + text) == [
            (
                "link[0].password_env",
                "password_file is given too",
                "Keep password_file or password_env, not both.",
            )
        ]

    @pytest.mark.parametrize("source", ['password_file = "f"\n', 'password_env = "E"\n'])
    def test_mqtt_3_1_1_has_no_password_without_a_user_name(self, source: str) -> None:
        """MQTT 5 allows it [MQTT-3.1.2-22 of 3.1.1]."""
        assert faults_of(NODE + SERVER + link("plant", '"a"', more=source)) == []
        assert faults_of(NODE + SERVER + link("plant", '"a"', more="version = 4\n")) == []
        assert faults_of(NODE + SERVER + link("plant", '"a"', more="version = 4\nusername = 'u'\n" + source)) == []
        assert faults_of(NODE + SERVER + link("plant", '"a"', more="version = 4\n" + source)) == [
            (
                "link[0].username",
                "is missing, and MQTT 3.1.1 (version = 4) allows no password without a User Name",
                "Add username.",
            )
        ]

    def test_the_first_pause_is_not_longer_than_the_longest(self) -> None:
        """Both are compared whether written or left to the default."""
        assert faults_of(NODE + SERVER + link("plant", '"a"', more="retry_max_s = 0.25\n")) == [
            (
                "link[0].retry_min_s",
                "0.5 is more than retry_max_s, 0.25",
                "Choose a first pause that is at most the longest.",
            )
        ]

    def test_a_link_has_a_selector(self) -> None:
        """Without one it would replicate nothing."""
        assert faults_of(NODE + SERVER + LINK) == [
            (
                "link[0].selector",
                'the link "plant" has no selector',
                'Add [[link.selector]] below it, with a filter such as "plant/#".',
            )
        ]


class TestExcludes:
    """An exclude takes something away, and leaves something."""

    def test_an_exclude_outside_the_filter_is_refused(self) -> None:
        """It is probably misspelt."""
        text = link("plant", '"plant/#"\nexclude = ["plant/debug/#", "plnt/debug/#", "+"]')
        assert faults_of(NODE + SERVER + text) == [
            (
                "link[0].selector[0].exclude[1]",
                '"plnt/debug/#" excludes nothing: no topic of "plant/#" matches it',
                "Correct it, or remove it.",
            )
        ]

    def test_excluding_what_a_wildcard_never_matches_is_told_as_needless(self) -> None:
        """A leading wildcard leaves `$SYS` out by itself [MQTT-4.7.2-1]."""
        text = link("plant", '"#"\nexclude = ["$SYS/#"]')
        assert faults_of(NODE + SERVER + text) == [
            (
                "link[0].selector[0].exclude[0]",
                '"$SYS/#" excludes nothing: no topic of "#" matches it',
                'Remove it: a leading wildcard matches no topic that begins with "$".',
            )
        ]

    def test_excludes_that_leave_nothing_are_refused(self) -> None:
        """Together they may take away what none takes away alone."""
        text = link("plant", '"a/#"\nexclude = ["a", "a/+", "+/+/+/#"]')
        assert faults_of(NODE + SERVER + text) == [
            (
                "link[0].selector[0].exclude",
                'nothing of "a/#" is left after these excludes',
                "Narrow the excludes, or remove the selector.",
            )
        ]


class TestOverlaps:
    """Overlaps name both selectors, a topic, and what to write."""

    def test_an_overlap_in_one_link_shows_the_exclude_that_ends_it(self) -> None:
        """The intersection of the filters is what one of them has to exclude."""
        text = link("plant", '"a/+/c"', '"a/b/#"')
        assert faults_of(NODE + SERVER + text) == [
            (
                "link[0].selector[1].filter",
                '"a/b/#" overlaps link[0].selector[0].filter = "a/+/c" (link "plant"): '
                'both would replicate the topic "a/b/c"',
                'Add "a/b/c" to the exclude of link[0].selector[0] or of link[0].selector[1], '
                "or narrow one of the filters.",
            )
        ]

    def test_the_exclude_is_never_the_whole_of_a_filter(self) -> None:
        """The wider filter gets the exclude; of two that are equal one goes."""
        hints = [hint for _, _, hint in faults_of(NODE + SERVER + link("plant", '"a/b"', '"a/#"', '"a/#"'))]
        assert hints == [
            'Add "a/b" to the exclude of link[0].selector[1], or narrow one of the filters.',
            'Add "a/b" to the exclude of link[0].selector[2], or narrow one of the filters.',
            "Remove one of them, or narrow its filter.",
        ]

    def test_the_exclude_that_is_shown_ends_the_overlap(self) -> None:
        """Following the hint makes the file right."""
        assert faults_of(NODE + SERVER + link("plant", '"a/+/c"\nexclude = ["a/b/c"]', '"a/b/#"')) == []
        assert faults_of(NODE + SERVER + link("plant", '"a/+/c"', '"a/b/#"\nexclude = ["a/b/c"]')) == []

    def test_an_overlap_of_two_links_to_one_primary_is_told_as_such(self) -> None:
        """A prefix does not help where the topics are the same at the primary."""
        text = link("one", '"a/+/c"') + link("two", '"a/b/#"\nprefix = "two/"')
        [(key, problem, hint)] = faults_of(NODE + SERVER + text)
        assert key == "link[1].selector[0].filter"
        assert problem == (
            '"a/b/#" with the prefix "two/" overlaps link[0].selector[0].filter = "a/+/c" (link "one"): '
            'both would replicate the topic "a/b/c"'
        )
        assert hint.startswith('Add "a/b/c" to the exclude of link[0].selector[0] or of link[1].selector[0]')

    def test_an_overlap_of_two_primaries_shows_a_prefix_that_ends_it(self) -> None:
        """Two primaries may have the same topics when a prefix parts them here."""
        one = link("one", '"a/+/c"')
        assert faults_of(NODE + SERVER + one + link("two", '"a/b/#"', primary="mqtt://other")) == [
            (
                "link[1].selector[0].filter",
                '"a/b/#" overlaps link[0].selector[0].filter = "a/+/c" (link "one"): '
                'both would serve the local topic "a/b/c"',
                'Give one of them another prefix, such as "one/", or narrow one of the filters.',
            )
        ]
        parted = link("two", '"a/b/#"\nprefix = "one/"', primary="mqtt://other")
        assert faults_of(NODE + SERVER + one + parted) == []

    def test_links_that_share_one_of_their_addresses_share_the_primary(self) -> None:
        """Lists of addresses are compared address by address, with the default port."""
        one = link("one", '"a"').replace('"mqtt://primary-host"', '["mqtt://x", "mqtt://y"]')
        two = link("two", '"a"\nprefix = "two/"', primary="mqtt://Y:1883")
        assert [key for key, _, _ in faults_of(NODE + SERVER + one + two)] == ["link[1].selector[0].filter"]

    def test_very_many_overlaps_are_summed_up(self) -> None:
        """The first ones are told one by one, the rest as a number."""
        found = faults_of(NODE + SERVER + link("plant", *['"a"'] * 20))
        assert len(found) == OVERLAPS_SHOWN_MAX + 1
        assert found[-1] == (
            "link",
            "140 more pairs of selectors overlap",
            "Correct the first ones, then check again.",
        )


def test_the_rules_find_nothing_in_a_right_configuration() -> None:
    """The function is pure: it takes a configuration and returns a list."""
    config = parse_config(NODE + SERVER + LINK + SELECTOR, path="edge.toml")
    assert find_faults(config, role="secondary") == []
    assert [fault.key for fault in find_faults(config, role="primary")] == ["link"]


def test_faults_of_access_are_told_with_the_others() -> None:
    """Rules that nothing reaches, and what is wrong elsewhere, come in one list; a faulty rule hides neither."""
    text = f"""{NODE}[server]
write_buffer_low_bytes = 2_000_000
[[access.rule]]
allow = "all"
filter = "#"
[[access.rule]]
deny = "read"
filter = "plant/#"
"""
    assert [key for key, _, _ in faults_of(text)] == ["server.write_buffer_low_bytes", "access.rule[1].filter"]
    keys = [key for key, _, _ in faults_of(text.replace('"#"', '"a#"'))]
    assert keys == ["access.rule[0].filter", "server.write_buffer_low_bytes"]
