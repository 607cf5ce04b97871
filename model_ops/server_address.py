"""Checks addresses of HTTP servers in recipes and commands."""

from __future__ import annotations

from urllib.parse import urlsplit


def plain_address(url: str) -> str:
    """The address without a trailing slash. Raises ValueError if it is not an HTTP address, or has credentials or a query."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a server's address begins with http:// or https://, such as http://localhost:8000/v1")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port of a server's address is a number from 0 to 65535") from None
    if parts.username or parts.password or parts.query:
        raise ValueError("a server's address holds no credentials and no query: name the environment variable of its key")
    return url.rstrip("/")
