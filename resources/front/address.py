"""Where this machine reaches a server of its own.

    own_host("0.0.0.0")           # "127.0.0.1"
"""

from __future__ import annotations

EVERYWHERE = ("0.0.0.0", "::")
"""Addresses of a server that listens on all of the machine's."""


def own_host(host: str) -> str:
    """The host part of a URL by which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
