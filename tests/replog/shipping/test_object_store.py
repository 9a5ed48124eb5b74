"""A mounted directory as a store: whether it is there is asked at each use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fanout.replog.shipping.object_store import STORE_ERRORS, ObjectStore

NAME = "v1/updates/node=edge-1/1-000001.parquet"
OTHER = "v1/updates/node=edge-1/1-000002.parquet"


def put(store: ObjectStore) -> None:
    """Store a second file."""
    store.put(OTHER, b"two")


def ask(store: ObjectStore) -> None:
    """Ask what there is."""
    store.sizes("v1")


@pytest.mark.parametrize("use", [put, ask])
def test_a_directory_that_goes_is_not_made_again(tmp_path: Path, use: Callable[[ObjectStore], None]) -> None:
    """Nothing is confirmed while it is away; when it is back, the same store is used on."""
    root, away = tmp_path / "store", tmp_path / "away"
    root.mkdir()
    store = ObjectStore(f"file://{root}")
    store.put(NAME, b"one")
    root.rename(away)
    with pytest.raises(STORE_ERRORS, match="is it mounted"):
        use(store)
    assert not root.exists()
    away.rename(root)
    use(store)
    assert store.sizes("v1")[NAME] == 3


class Mounts:
    """What is mounted, as `os.path.ismount` tells it: "/" always, and one more place for as long as it is told."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.mounted = True
        monkeypatch.setattr(os.path, "ismount", self.is_mount)

    def is_mount(self, path: str) -> bool:
        """Stand in for `os.path.ismount`."""
        return path == "/" or (self.mounted and path == str(self.place))


@pytest.mark.parametrize("use", [put, ask])
@pytest.mark.parametrize("below", ["", "logs/site"])
def test_a_directory_that_is_not_mounted_any_more_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[ObjectStore], None], below: str
) -> None:
    """There may be one of the same name underneath; what is copied to that is no copy in the store."""
    mounts = Mounts(tmp_path, monkeypatch)
    root = tmp_path / below
    root.mkdir(parents=True, exist_ok=True)
    store = ObjectStore(f"file://{root}")
    store.put(NAME, b"one")
    mounts.mounted = False
    with pytest.raises(STORE_ERRORS, match=f"nothing is mounted at {tmp_path} any more"):
        use(store)
    assert not (root / OTHER).exists()
    mounts.mounted = True
    use(store)
    assert store.sizes("v1")[NAME] == 3


def test_a_copy_during_which_the_directory_is_unmounted_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it went is not known."""
    mounts = Mounts(tmp_path, monkeypatch)
    store = ObjectStore(f"file://{tmp_path}")
    store.put(NAME, b"one")
    forced = os.fsync

    def unmount(descriptor: int) -> None:
        mounts.mounted = False
        forced(descriptor)

    monkeypatch.setattr(os, "fsync", unmount)
    with pytest.raises(STORE_ERRORS, match="nothing is mounted"):
        store.put(OTHER, b"two")


def test_a_link_to_a_mounted_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is followed: what counts is what is mounted behind it."""
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "logs").symlink_to(share)
    mounts = Mounts(share, monkeypatch)
    store = ObjectStore(f"file://{tmp_path / 'logs'}")
    store.put(NAME, b"one")
    mounts.mounted = False
    with pytest.raises(STORE_ERRORS, match=f"nothing is mounted at {share}"):
        store.put(OTHER, b"two")


def test_a_local_directory_needs_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of the file system that is always there."""
    Mounts(tmp_path, monkeypatch).mounted = False
    store = ObjectStore(f"file://{tmp_path}")
    store.put(NAME, b"one")
    put(store)
    assert store.sizes("v1") == {NAME: 3, OTHER: 3}
