"""Addresses of servers, as recipes and commands may hold them."""

from __future__ import annotations

from urllib.parse import urlsplit


def plain_address(url: str) -> str:
    """The address without a slash at its end. Raises ValueError for what is no address, or holds more than one."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a server's address begins with http:// or https://, such as http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ValueError("a server's address holds no credentials and no query: name the environment variable of its key")
    return url.rstrip("/")
