"""What leaves nodes is what was published: 2,000 messages, 6,000 with `--long`; `python -m tests.fuzz` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.campaign import chain_of_nodes
from tests.support.examples import examples

MESSAGES = examples(6_000)
SEED = 20_261_122


@pytest.mark.timeout(600)
async def test_hostile_messages_through_a_chain(tmp_path: Path) -> None:
    """Any properties, marks of nodes too, come out at 0, 1 and 2 nodes as they were published, or are refused."""
    with chain_of_nodes(tmp_path, seed=SEED) as campaign:
        await campaign.run(MESSAGES)
    assert not campaign.findings, "\n".join(campaign.findings[:3])
    assert campaign.messages >= MESSAGES
    assert campaign.received > 15 * MESSAGES, "readers of every kind"
    assert all(set(one.refused) <= {0x99} for one in campaign.publishers), "but for false Payload Format Indicators"
    assert campaign.publishers[0].refused[0x99] > 0
