"""Answers of a lying member that are small to send and large to read: lists, objects and sessions by the million."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from typing import Final

from bench.attacks.target import Target, Verdict
from fanout.durable.ownership.copy_messages import (
    COPY_BYTES_MAX,
    DOCUMENT_BYTES_MAX,
    decode_copy_answer,
    decode_inherit_answer,
)
from fanout.durable.ownership.move_messages import CLAIM, FETCH, PIECE, TAKE

__all__ = ["NEEDS", "run"]

NEEDS = ()
_READERS: Final[tuple[tuple[Callable[[bytes], object], int], ...]] = (
    *((call.decode_answers, call.answer_bytes_max) for call in (FETCH, PIECE, TAKE, CLAIM)),
    (decode_copy_answer, COPY_BYTES_MAX),
    (decode_inherit_answer, DOCUMENT_BYTES_MAX),
)
"""Reader of each answer, and the bytes that a member takes of it."""
_PIECES: Final = (b"[],", b'{"":[]},', b'"ab",', b"1,", b"null,", b"[" * 900 + b"]" * 900 + b",")
_CPU_S_MAX: Final = 0.5
_GROWTH_MIB_MAX: Final = 256


async def run(target: Target) -> Verdict:
    """Read each as a member does, in one turn of its event loop."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    worst_s = 0.0
    answers = 0
    for read, bytes_max in _READERS:
        for piece in (b"\0", *_PIECES):
            times = (bytes_max - 4) // len(piece)
            answer = piece * times if piece == b"\0" else b"[" + piece * times + b"1]"
            begun_s = time.thread_time()
            with contextlib.suppress(ValueError):  # as it should
                read(answer)
            worst_s = max(worst_s, time.thread_time() - begun_s)
            answers += 1
    growth_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    return Verdict(
        held=worst_s <= target.within(_CPU_S_MAX) and growth_mib <= _GROWTH_MIB_MAX,
        promise=f"none takes more than {_CPU_S_MAX:g} s of the processor or {_GROWTH_MIB_MAX} MiB",
        figures={"cpu_s_max": round(worst_s, 3), "growth_mib": round(growth_mib, 1), "answers": answers},
    )
