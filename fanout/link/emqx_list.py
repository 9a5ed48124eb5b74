"""List of retained topics that EMQX gives over HTTP: `GET /api/v5/mqtt/retainer/messages`.

With a `topic` EMQX lists the messages that match a Topic Filter, page by page, without payloads and without a count
(its `meta.count` counts all messages, its own `$SYS` ones among them); so the topics are listed. Another server with
the same interface works, too.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from fanout.config import read_count_key
from fanout.errors import ConfigError, FanoutError
from fanout.peer_text import clean_text, read_document

__all__ = ["EmqxList"]

PAGE_TOPICS = 10_000
"""Topics per page, the most that EMQX gives."""
PAGES_MAX = 200
"""Largest number of pages; a longer list is not compared."""
TOPICS_BYTES_MAX = 512 * 1024 * 1024
"""Largest size of all topics; a longer list is not compared."""
_PAGE_BYTES_MAX = 32 * 1024 * 1024


class EmqxList:
    """The list at one address."""

    def __init__(self, url: str, *, key_file: Path | None, timeout_s: float) -> None:
        """Prepare; nothing is requested.

        Args:
            url: Address of the list.
            key_file: File with `key:secret` (EMQX: API Key and Secret Key), sent as Basic; None sends none.
            timeout_s: Seconds that a page may take.
        """
        self._url = url
        self._key_file = key_file
        self._timeout_s = timeout_s

    async def topics(self, topic_filter: str) -> set[bytes]:
        """Return the topics that have a retained message.

        Args:
            topic_filter: Topic Filter that they match.

        Raises:
            FanoutError: The list is not available, or too long.
        """
        topics: set[bytes] = set()
        left = TOPICS_BYTES_MAX
        try:
            async with httpx.AsyncClient(timeout=self._timeout_s, auth=self._auth(), trust_env=False) as client:
                for page in range(1, PAGES_MAX + 1):
                    query: dict[str, str | int] = {"topic": topic_filter, "page": page, "limit": PAGE_TOPICS}
                    async with asyncio.timeout(self._timeout_s):
                        document = await _page(client, self._url, query)
                    if len(document["data"]) > PAGE_TOPICS:
                        raise ValueError("more topics than were requested")
                    found = [one["topic"].encode() for one in document["data"]]
                    left -= sum(map(len, found))
                    if left < 0:
                        raise _failed(f"its topics have more than {TOPICS_BYTES_MAX} bytes")
                    topics.update(found)
                    if not document["meta"]["hasnext"]:
                        return topics
        except TimeoutError as error:
            raise _failed(f"a page of it takes more than {self._timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise _failed(f"no answer: {clean_text(repr(error))}") from error
        except ConfigError as error:
            raise _failed(f"count_key_file {error.faults[0].problem}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _failed("the answer is not a list as EMQX gives it") from error
        raise _failed(f"it has more than {PAGES_MAX * PAGE_TOPICS} topics")

    def _auth(self) -> httpx.BasicAuth | None:
        return None if self._key_file is None else httpx.BasicAuth(*read_count_key(self._key_file))


async def _page(client: httpx.AsyncClient, url: str, query: dict[str, str | int]) -> Any:
    # A compressed answer could expand a thousandfold.
    headers = {"Accept-Encoding": "identity"}
    async with client.stream("GET", url, params=query, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            raise _failed(f"it answers with status {response.status_code}")
        if "Content-Encoding" in response.headers:
            raise _failed("it is compressed, which was not requested")
        document = bytearray()
        async for piece in response.aiter_raw():
            document += piece
            if len(document) > _PAGE_BYTES_MAX:
                raise _failed("a page of it is too large")
    return read_document(document, bytes_max=_PAGE_BYTES_MAX)


def _failed(problem: str) -> FanoutError:
    return FanoutError(
        f"cannot get the primary's list of retained messages: {problem}",
        hint="Correct count_url and count_key_file of the link, or remove them",
    )
