"""The long runs; the exit code is 1 when they found something.

`python -m tests.fuzz --inputs 1000000 --seed 1`: input that is spoilt. A part of the inputs (`--conversations`) are
whole conversations with a node that is started for it; the others go to the decoders.

`python -m tests.fuzz --inputs 0 --messages 1000000 --seed 1`: messages that are legal, and hostile, through a chain of
nodes, of which every byte that leaves a node is read by `tests.oracle`. Each 20,000 have a chain of their own, and the
next seed.

The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.codec import check_proxy_header, targets
from tests.fuzz.listener import fuzzed_node
from tests.oracle.campaign import chain_of_nodes

__all__ = ["main"]

_PROXY_STARTS = (b"PROXY ", b"PROXY TCP4 1.2.3.4 ", b"PROXY UNKNOWN", b"\r\n\r\n\0\r\nQUIT\n", b"")
_FINDINGS_MAX = 20
_PROGRESS_S = 30.0
_CHAIN_MESSAGES = 20_000


def main() -> None:
    """Run what the command line asks for and tell the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the codec and a listening node.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs in total (1000000)")
    parser.add_argument("--conversations", type=int, default=20_000, help="of these, conversations with a node (20000)")
    parser.add_argument("--seed", type=int, default=1, help="what the inputs are made from (1)")
    parser.add_argument("--messages", type=int, default=0, help="messages through a chain of nodes (0)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nodes are ended
    conversations = min(arguments.conversations, arguments.inputs)
    findings: list[str] = []
    if arguments.inputs > conversations:
        findings += _fuzz_codec(arguments.inputs - conversations, arguments.seed)
    if conversations:
        findings += _fuzz_listener(conversations, arguments.seed)
    if arguments.messages:
        findings += _fuzz_messages(arguments.messages, arguments.seed)
    for finding in findings[:_FINDINGS_MAX]:
        _say(f"FINDING: {finding}")
    tried = f"{arguments.inputs} inputs, {arguments.messages} messages"
    _say(f"{tried}, seed {arguments.seed}: {len(findings)} findings")
    sys.exit(1 if findings else 0)


def _fuzz_codec(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    decoders = targets()
    findings: list[str] = []
    begun = said = time.monotonic()
    for done in range(count):
        if done % 16 == 15:
            data = rng.choice(_PROXY_STARTS) + rng.randbytes(rng.randrange(40)) + rng.choice((b"", b"\r\n"))
            name = "PROXY header"
        else:
            target = rng.choice(decoders)
            data = target.input(rng)
            name = target.name
        try:
            if name == "PROXY header":
                check_proxy_header(data, lambda wanted: rng.randint(1, wanted))
            else:
                target.check(data, rng)
        except Exception as error:
            findings.append(f"{name}: {type(error).__name__}: {error} on {data!r}")
            if len(findings) >= _FINDINGS_MAX:
                break
        if time.monotonic() - said > _PROGRESS_S:
            said = time.monotonic()
            _say(f"codec: {done} inputs, {done / (said - begun):.0f}/s, {len(findings)} findings")
    took_s = time.monotonic() - begun
    _say(f"codec: {count} inputs in {took_s:.0f} s, {count / took_s:.0f}/s, {len(findings)} findings")
    return findings


def _fuzz_listener(count: int, seed: int) -> list[str]:
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each write to a socket that the node closed
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, fuzzed_node(Path(directory), seed=seed) as campaign:
        asyncio.run(campaign.run(count, parts=4))
    took_s = time.monotonic() - begun
    ends = ", ".join(f"{end}: {number}" for end, number in campaign.ends.most_common())
    resident = ", ".join(f"{one / 2**20:.1f}" for one in campaign.resident_bytes)
    _say(
        f"listener: {campaign.conversations} conversations in {took_s:.0f} s, {campaign.conversations / took_s:.0f}/s, "
        f"{len(campaign.findings)} findings; the witness had {campaign.witnessed} messages; MiB: {resident}; {ends}"
    )
    return campaign.findings


def _fuzz_messages(count: int, seed: int) -> list[str]:
    begun = time.monotonic()
    published = received = 0
    findings: list[str] = []
    for number, start in enumerate(range(0, count, _CHAIN_MESSAGES)):
        with (
            tempfile.TemporaryDirectory() as directory,
            chain_of_nodes(Path(directory), seed=seed + number) as campaign,
        ):
            asyncio.run(campaign.run(min(_CHAIN_MESSAGES, count - start)))
        published += campaign.messages
        received += campaign.received
        findings += campaign.findings
        took_s = time.monotonic() - begun
        _say(f"chain, seed {campaign.seed}: {published} messages, {received} deliveries in {took_s:.0f} s")
        if findings:
            break
    return findings


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
