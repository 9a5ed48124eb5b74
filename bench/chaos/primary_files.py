"""Files of a primary that a fault changes: its database, and the rights of the links' user.

Owns their content and places. Rights and copies are for a Mosquitto; a fanout node's directory can only be wiped.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.chaos.plan import PRIMARY

__all__ = ["AUDIT_USER", "LINK_USER", "PrimaryFiles"]

LINK_USER = "link"
"""User Name of the links whose rights a fault narrows; all other clients are anonymous."""
AUDIT_USER = "auditor"
"""User Name under which the links ask for topics that are missing; it may read everything."""
_ALL_RIGHTS = "topic readwrite #\ntopic read $SYS/#\n"


class PrimaryFiles:
    """Files of the primary of one run."""

    def __init__(self, scratch: Path) -> None:
        """Write an access file in which everybody may read and write everything."""
        self._database = scratch / "mosquitto.db"
        self._copy = scratch / "mosquitto.db.copy"
        self._node_directory = scratch / PRIMARY
        self.access = scratch / "primary.acl"
        """Access file of a Mosquitto, which reads it at its start and with SIGHUP."""
        self.hide()

    def hide(self, *filters: str) -> None:
        """Let the links' user read everything but what these Topic Filters match."""
        denied = "".join(f"topic deny {topic_filter}\n" for topic_filter in filters)
        self.access.write_text(
            f"{_ALL_RIGHTS}\nuser {AUDIT_USER}\n{_ALL_RIGHTS}\nuser {LINK_USER}\n{denied}{_ALL_RIGHTS}"
        )

    def copy_database(self) -> None:
        """Copy the database; without one, `restore_database` leaves none."""
        self._copy.unlink(missing_ok=True)
        if self._database.exists():
            shutil.copyfile(self._database, self._copy)

    def restore_database(self) -> None:
        """Put the copy in the place of the database, while the primary is not running."""
        self._database.unlink(missing_ok=True)
        if self._copy.exists():
            self._copy.rename(self._database)

    def wipe(self) -> None:
        """Remove what a primary, of either kind, has on disk, while it is not running."""
        self._database.unlink(missing_ok=True)
        shutil.rmtree(self._node_directory, ignore_errors=True)
