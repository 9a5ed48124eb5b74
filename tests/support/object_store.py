"""A local S3 server for tests: moto, in this process, on a free port of the loopback interface."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs as pafs
import pytest
from moto.server import ThreadedMotoServer

__all__ = ["LocalS3", "local_s3"]


class LocalS3:
    """A running server.

    Args:
        host: Its address.
        port: Its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._options = f"region=us-east-1&scheme=http&endpoint_override={host}:{port}"

    def uri(self, place: str) -> str:
        """Return the URI of `bucket/prefix`."""
        return f"s3://{place}?{self._options}"

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        files, _ = pafs.FileSystem.from_uri(f"{self.uri(name)}&allow_bucket_creation=true")
        files.create_dir(name)

    def open(self, place: str) -> tuple[pafs.FileSystem, str]:
        """Return the file system and the path of `bucket/prefix`."""
        return pafs.FileSystem.from_uri(self.uri(place))


@contextmanager
def local_s3() -> Iterator[LocalS3]:
    """Run a server, with credentials for it in the environment."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as environment:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                environment.setenv(name, "test")
            environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
            yield LocalS3(*server.get_host_and_port())
    finally:
        server.stop()
