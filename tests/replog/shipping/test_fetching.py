"""What nodes shipped, fetched from a local S3 server, and what is told when that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.errors import LogError
from fanout.replog.shipping import fetching
from fanout.replog.shipping.fetching import fetch, is_store
from fanout.replog.shipping.object_store import ObjectStore
from tests.support.object_store import LocalS3, local_s3

HOUR = "node=edge%2F1/date=2026-02-02/hour=02"
UPDATES = [f"v1/updates/{HOUR}/1770000000000000-{number:06}.parquet" for number in range(1, 21)]
EVENTS = [f"v1/events/{HOUR}/1770000000000000-000001.parquet"]


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    """A local S3 server with a log, and other things, in the bucket `logs`."""
    with local_s3() as server:
        server.make_bucket("logs")
        store = ObjectStore(server.uri("logs/site"))
        for name in (*UPDATES, *EVENTS):
            store.put(name, name.encode() * 100)
        for name in (
            "v1/notes.txt",
            f"v1/updates/{HOUR}/.x.unfinished",
            "v1/updates/x.parquet",
            "v1-old/updates/y.parquet",
        ):
            store.put(name, b"other")
        yield server


def found(directory: Path) -> list[str]:
    """Return the files below a directory."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_all_sealed_files_are_copied_and_nothing_else(s3: LocalS3, tmp_path: Path) -> None:
    """They have their names and contents; how far it is is told."""
    told: list[str] = []
    assert fetch(s3.uri("logs/site"), target=tmp_path / "here", tell=told.append) == tmp_path / "here"
    assert found(tmp_path / "here") == sorted((*UPDATES, *EVENTS))
    assert all((tmp_path / "here" / name).read_bytes() == name.encode() * 100 for name in (*UPDATES, *EVENTS))
    assert told[-1].endswith("21 of 21 files")


def test_a_log_of_a_later_version_is_refused(s3: LocalS3, tmp_path: Path) -> None:
    """It is named: the others alone would be taken for all of them."""
    s3.make_bucket("later")
    for name in (f"a/{UPDATES[0]}", "b/v2/updates/y.parquet"):
        ObjectStore(s3.uri("later")).put(name, b"content")
    for place in ("later", "later/b"):
        with pytest.raises(LogError, match="version 2 of the replication log, and this fanout reads 1"):
            fetch(s3.uri(place), target=tmp_path / "copy")


def test_the_search_below_a_uri_is_bounded(s3: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs below are copied as they lie there; more directories than are searched are an error."""
    s3.make_bucket("many")
    store = ObjectStore(s3.uri("many"))
    stored = [f"{place}/{UPDATES[0]}" for place in ("a", "b/c")]
    for name in (*stored, f"b/c/other/{UPDATES[0]}", "d/v0/updates/y.parquet"):
        store.put(name, b"content")
    monkeypatch.setattr(fetching, "_LISTED_MAX", 7)
    assert found(fetch(s3.uri("many"), target=tmp_path / "here")) == stored
    monkeypatch.setattr(fetching, "_LISTED_MAX", 6)
    with pytest.raises(LogError, match=r"has more than 6 directories below it\. Give the logs themselves"):
        fetch(s3.uri("many"), target=tmp_path / "here")


@pytest.mark.parametrize(
    ("place", "problem", "hint"),
    [
        ("logs/elsewhere", "there is no replication log in s3://logs/elsewhere", "log.ship.to"),
        ("nowhere/site", "s3://nowhere/site.* cannot be read: .*NO_SUCH_BUCKET|no replication log", ""),
        ("key:secret@logs/site", "^a URI has credentials in it", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_place_that_cannot_be_read_is_told(s3: LocalS3, tmp_path: Path, place: str, problem: str, hint: str) -> None:
    """The URI is named, but never a secret in it."""
    with pytest.raises(LogError, match=problem) as caught:
        fetch(s3.uri(place), target=tmp_path)
    assert hint in caught.value.hint
    assert "secret" not in str(caught.value)


def test_a_store_that_nobody_answers_for_is_told(tmp_path: Path) -> None:
    """What the store's client says follows the URI."""
    with pytest.raises(LogError, match=r"^nonsense://x cannot be read: "):
        fetch("nonsense://x", target=tmp_path)


def test_a_copy_that_cannot_be_written_is_told(s3: LocalS3, tmp_path: Path) -> None:
    """A file in the way of a directory; the hint names what decides where the copy is."""
    (tmp_path / "v1").write_text("in the way")
    with pytest.raises(LogError, match="cannot be written") as caught:
        fetch(s3.uri("logs/site"), target=tmp_path)
    assert "TMPDIR" in caught.value.hint


@pytest.mark.parametrize(
    ("place", "expected"),
    [("s3://b/p", True), ("gs://b", True), ("s3a://b", False), ("hdfs://h/p", False), ("/s3://b", False)],
)
def test_stores_are_known_by_their_scheme(place: str, expected: bool) -> None:
    """What Spark reads without more is left to it."""
    assert is_store(place) is expected
