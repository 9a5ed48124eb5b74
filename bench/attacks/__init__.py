"""Attacks on a started node: one module a family, which knows nothing of the others.

Each module has `async def run(target: Target) -> Verdict`, and `NEEDS`, the fields of the target that it cannot do
without; `GROWTH_MIB`, if the node may take memory for it. Its docstring's first line says what it does.
`bench.attacks.ordinary` measures what an ordinary client notices meanwhile.
"""
