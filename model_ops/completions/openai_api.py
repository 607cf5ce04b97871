"""HTTP transport of the OpenAI API: one request at a time is sent once, over a pool of connections. No torch.

Proxies come from the environment. The key comes from an environment variable and is stored nowhere; redirects are not followed.
`endpoint.py` repeats requests."""

import json
import os
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import urllib3


class MissingKeyError(Exception):
    """The environment variable with a server's key is empty or not set."""


class OpenAiApi:
    """A client that several threads can use at once. Raises urllib3's HTTPError."""

    def __init__(self, base_url: str, *, api_key: str | None, connections: int, timeout_s: float, through_proxy: bool = True):
        """connections: number kept open. through_proxy: whether the environment's proxy may be used."""
        self.base_url = base_url
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        options: dict[str, Any] = {"maxsize": connections, "retries": False, "timeout": timeout_s}
        address = urlsplit(base_url)
        proxy = urllib.request.getproxies().get(address.scheme) if through_proxy else None
        if proxy is None or urllib.request.proxy_bypass(address.hostname or ""):
            self._pool = urllib3.PoolManager(**options)
        else:
            self._pool = urllib3.ProxyManager(proxy, **options)

    def close(self) -> None:
        self._pool.clear()

    def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, preload_content: bool = True
    ) -> urllib3.BaseHTTPResponse:
        """One request with a JSON body. With preload_content=False, the caller reads and releases the reply."""
        return self._pool.request(
            method,
            self.base_url + path,
            body=None if body is None else json.dumps(body).encode(),
            headers=self._headers,
            redirect=False,
            preload_content=preload_content,
        )

    def read(self, response: urllib3.BaseHTTPResponse, most_bytes: int, timeout_s: float) -> bytes | None:
        """Content of a reply that was requested with preload_content=False; None if it is longer, or takes longer in all."""
        until = time.monotonic() + timeout_s
        parts: list[bytes] = []
        size = 0
        while part := response.read1(1 << 16):
            parts.append(part)
            size += len(part)
            if size > most_bytes or time.monotonic() > until:
                response.close()
                return None
        response.release_conn()
        return b"".join(parts)


def key_in(variable: str | None) -> str | None:
    """The key in an environment variable; None if `variable` is None. Raises MissingKeyError if the variable is empty."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise MissingKeyError(f"the environment variable {variable} holds no key: set it to the server's API key")
    return key
