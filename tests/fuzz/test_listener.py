"""A short run of spoilt conversations with a listening node; `python -m tests.fuzz` has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.listener import fuzzed_node

CONVERSATIONS = 1_000
SEED = 20_240_607


@pytest.mark.timeout(600)
async def test_spoilt_conversations(tmp_path: Path) -> None:
    """A node survives clients that send rubbish, and serves one that does not all the while."""
    with fuzzed_node(tmp_path, seed=SEED) as campaign:
        await campaign.run(CONVERSATIONS)
    assert not campaign.findings, "\n".join(campaign.findings[:5])
    assert campaign.witnessed > 0
    assert {"closed", "0x81", "0x82"} <= set(campaign.ends)
