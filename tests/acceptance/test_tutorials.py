"""The first tutorials, as a reader goes through them: a secondary, and a report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.tutorial import blocks, run

NOT_RUN = ("git clone ", "pip install ")
"""What installs: the tests run in what is installed."""
STAYS = re.compile(r"^fanout (?:primary|secondary|tap) .+$", re.MULTILINE)
"""A command that goes on in a shell of its own, on the pages."""
PRIMARY = "fanout primary --config configs/primary.toml"
STOPPED = "fanout ready\ncurl -i http://127.0.0.1:8080/readyz\n"
PRIMARY_READY = "fanout ready --wait 60 127.0.0.1:8079\n"


def until(command: str) -> str:
    """Return lines that repeat a command, as a person does, until it does what the page says, for half a minute."""
    return f"for n in {{1..60}}; do if {command}; then break; fi; sleep 0.5; done\n"


def script(page: str) -> str:
    """Return the commands of a page: those that stay run beside the others, and a reader takes a message and ends."""
    text = "\n".join(block for block in blocks(page, "sh") if not block.startswith(NOT_RUN))
    text = text.replace("mosquitto_sub", "mosquitto_sub -C 1 -W 30")
    return STAYS.sub(r"\g<0> &", text)


def first_secondary() -> str:
    """Return the commands of the first page; its reader stops the primary with Ctrl-C, and starts it again."""
    text = script("first-secondary.md")
    assert text.count(f"{PRIMARY} &\n") == text.count(STOPPED) == 1
    begins, ends = f"{PRIMARY} &\nprimary=$!\n{PRIMARY_READY}", "kill $primary\nwait $primary\n"
    stopped = STOPPED.replace("fanout ready\n", f"{until('! fanout ready > /dev/null')}fanout ready && exit 1\n")
    text = text.replace(f"{PRIMARY} &\n", begins)
    return text.replace(STOPPED, f"{ends}{stopped}{begins}fanout ready --wait 60\n")


def first_report() -> str:
    """Return the commands of the second page, after those of the first that it names; the secondary ends first."""
    publishing, reports = script("first-report.md").split("\n\n", 1)
    [init] = re.findall(r"^fanout init .+$", script("first-secondary.md"), re.MULTILINE)
    begins = f"{PRIMARY} &\n{PRIMARY_READY}{init}\nfanout secondary --config secondary.toml &\nsecondary=$!\n"
    return f"{begins}fanout ready --wait 60\n{publishing}\nkill $secondary\nwait $secondary\n{reports}"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_commands_lead_to_a_secondary(tmp_path: Path) -> None:
    """Each says what its page promises; the first that fails ends them."""
    told = run(first_secondary(), tmp_path, "curl", "mosquitto_sub", timeout=500)
    assert "plant/line-1/temperature 21.5\n" in told
    assert told.count(" (secondary) is ready") == 2  # its name is that of the machine
    assert "HTTP/1.1 503" in told
    assert " has ended\n" in told


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_commands_lead_to_a_report(tmp_path: Path) -> None:
    """Both kinds of it, and a tap that runs from then on; the minute of updates is long enough to be judged."""
    told = run(first_report(), tmp_path, "mosquitto_pub", timeout=500)
    assert told.count("COMPLETE  the one secondary got everything\ncompared with primary-1") == 2, told
    assert "tap-1 (tap) is ready" in told
    assert "compared with tap-1, counted in order" in told
    assert (tmp_path / "report.html").exists()
