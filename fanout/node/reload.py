"""Reload of a node's configuration: reads the file, lists the changes with their costs, and applies them.

SIGHUP, `POST /v1/reload` and `fanout reload` come here. A file with faults changes nothing. Changes that need a restart
are named before anything is done; then nothing is done, unless the caller wants the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from fanout.config import MemberNumber, NodeConfig, Role
from fanout.config.changes import Change, Cost, find_changes, merge
from fanout.config.loading import LoadedConfig, load_file
from fanout.config.rules import find_faults
from fanout.errors import ConfigError, ListenError, RequestRefused
from fanout.runtime.system_clock import Clock

__all__ = ["Reloaded", "ReloadedNode", "Reloads"]

_LOGGED_MAX: Final = 50
"""Changes that one log line names."""
_SHOWN_MAX: Final = 5
"""Keys that an error names."""


class ReloadedNode(Protocol):
    """The part of a node that a reload needs; `fanout.node.node.Node` has it."""

    config: NodeConfig
    """The configuration in force."""
    role: Role
    """Role of the node."""
    opening: str
    """Step of the start that is under way; empty once the node serves."""

    def read_files_again(self) -> None:
        """Read the files again that the configuration in force names, as far as a change needs no other step."""

    async def apply(self, config: NodeConfig) -> None:
        """Put a configuration in force whose changes a running node can take.

        Raises:
            ConfigError: A file that it names cannot be used; nothing has changed.
            ListenError: A listener cannot be opened; nothing has changed.
        """


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The outcome of a reload that was not refused."""

    changes: tuple[Change, ...]
    """The differences between the configuration in force before and the file."""
    digest: str
    """Digest of the file."""
    is_applied: bool
    """True if those that need no restart are in force; False for a dry run."""


class Reloads:
    """Reloads of one node, one at a time.

    Attributes:
        totals: Number of reloads by result: "applied", "refused" (changes need a restart) or "failed" (a fault in the
            file or in a file that it names); without dry runs.
        read_ns: When the configuration in force was read, Unix time in nanoseconds.
        digest: Digest of the file that it was read from; empty when the node was made without a file.
        pending: Keys of the file that wait for a restart.
    """

    def __init__(
        self,
        node: ReloadedNode,
        *,
        path: Path | None,
        digest: str,
        member: MemberNumber | None = None,
        clock: Clock,
        logger: FilteringBoundLogger,
    ) -> None:
        """Note what is in force.

        Args:
            node: The node.
            path: Its configuration file; None without one.
            digest: Digest of the file when it was read; empty without one.
            member: The number of the node where several members share the file; None for a node alone.
            clock: Clock of the node.
            logger: Takes log lines.
        """
        self.totals = dict.fromkeys(("applied", "refused", "failed"), 0)
        self.read_ns = clock.now_ns()
        self.digest = digest
        self.pending: tuple[str, ...] = ()
        self._node = node
        self._path = path
        self._member = member
        self._clock = clock
        self._logger = logger
        self._turn = asyncio.Lock()

    async def reload(self, *, dry_run: bool = False, partial: bool = False) -> Reloaded:
        """Read the file, and apply what has changed.

        Args:
            dry_run: True to return the changes only.
            partial: True if changes that need a restart are left out; else they refuse the whole reload.

        Raises:
            ConfigError: The file, or one that it names, has faults; nothing has changed.
            ListenError: A listener cannot be opened; nothing has changed.
            RequestRefused: There is no file, the node is starting, or changes need a restart; nothing has changed.
        """
        if self._node.opening:
            raise RequestRefused(self._node.opening, hint="Try again once it is ready")
        if self._path is None:
            raise RequestRefused("the node was started without a configuration file", hint="Start it with --config")
        async with self._turn:
            return await self._reload(self._path, dry_run=dry_run, partial=partial)

    async def _reload(self, path: Path, *, dry_run: bool, partial: bool) -> Reloaded:
        node = self._node
        if not dry_run:
            node.read_files_again()
        try:
            loaded = await asyncio.to_thread(load_file, path, role=node.role, member=self._member)
            changes = find_changes(node.config, loaded.config)
            config = merge(node.config, loaded.config)
            pending = tuple(change for change in changes if change.rule.cost is Cost.RESTART)
            if pending and (partial or dry_run) and (faults := find_faults(config, role=node.role)):
                raise ConfigError(f"{path}, without the changes that need a restart", tuple(faults))
            if not dry_run and not (pending and not partial):
                await node.apply(config)
        except (ConfigError, ListenError) as error:
            if not dry_run:
                self.totals["failed"] += 1
                self._logger.error("reload failed, what was in force stays", faults=str(error).splitlines())
            raise
        if dry_run:
            return Reloaded(changes, loaded.digest, is_applied=False)
        if pending and not partial:
            self._refuse(pending)
        self._note(loaded, changes, pending)
        return Reloaded(changes, loaded.digest, is_applied=True)

    def _refuse(self, pending: Sequence[Change]) -> None:
        self.totals["refused"] += 1
        keys = [change.key for change in pending]
        hint = "Start the node again, or take the other changes now: fanout reload --partial"
        self._logger.error("reload refused, changes need a restart", keys=keys[:_LOGGED_MAX], hint=hint)
        named = ", ".join(keys[:_SHOWN_MAX])
        more = f" and {len(keys) - _SHOWN_MAX} more" if len(keys) > _SHOWN_MAX else ""
        raise RequestRefused(f"a restart is needed for {named}{more}: nothing has changed", hint=hint)

    def _note(self, loaded: LoadedConfig, changes: Sequence[Change], pending: Sequence[Change]) -> None:
        self.totals["applied"] += 1
        self.read_ns = self._clock.now_ns()
        self.digest = loaded.digest
        self.pending = tuple(change.key for change in pending)
        self._logger.info(
            "configuration reloaded",
            digest=loaded.digest,
            changes=[f"{change.key} {change.kind}, cost: {change.rule.cost}" for change in changes[:_LOGGED_MAX]],
            wait_for_restart=list(self.pending[:_LOGGED_MAX]),
        )
