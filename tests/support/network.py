"""A TCP proxy that cuts, pauses and throttles, to stand between a client and a real server: that of the benchmarks."""

from __future__ import annotations

from bench.proxy import Proxy

__all__ = ["Proxy"]
