"""Attacks on a started node: one module a family, which knows nothing of the others.

Each module has `async def run(target: Target) -> Verdict`; its docstring's first line says what it does.
`bench.attacks.ordinary` measures what an ordinary client notices meanwhile.
"""

from __future__ import annotations

ATTACKS: dict[str, str] = {
    "memory before CONNECT": "bench.attacks.memory_before_connect",
    "User Properties": "bench.attacks.user_properties",
    "wrong passwords": "bench.attacks.passwords",
    "Will Messages at once": "bench.attacks.wills",
}
"""By name: the module with `run(target) -> Verdict`."""
