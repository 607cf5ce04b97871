"""HTTP client of the OpenAI API with a connection pool and retries. No torch.

    api = OpenAiApi("http://localhost:8000/v1", api_key=key_in("TUTOR_KEY"), connections=8, timeout_s=60, retries=4)
    response = api.request("POST", "/chat/completions", {"model": "tutor", "messages": [...]})
    api.close()

With `retries`, a request is repeated after a retryable status (408, 425, 429, 5xx) or a broken connection, with growing
pauses or after the time in Retry-After. Proxies come from the environment. The key comes from an environment variable and
is stored nowhere; redirects are not followed.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import urllib3

from model_ops.answering.endpoint_settings import EndpointSettings
from model_ops.jobs import ModelError

AGAIN = (408, 425, 429, 500, 502, 503, 504)
"""Retryable HTTP statuses."""
LONGEST_PAUSE_S = 60


class MissingKeyError(Exception):
    """The environment variable with a server's key is empty or not set."""


class OpenAiApi:
    """A client that several threads can use at once. Raises urllib3's HTTPError."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        connections: int,
        timeout_s: float,
        retries: int | None,
        through_proxy: bool = True,
    ):
        """connections: number kept open. retries: how often a request is repeated; None: the first failure is raised.
        through_proxy: whether the environment's proxy may be used."""
        self.base_url = base_url
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        again = (
            False
            if retries is None
            else _Retry(
                total=retries,
                status_forcelist=AGAIN,
                allowed_methods=None,
                backoff_factor=0.5,
                backoff_jitter=0.5,
                redirect=False,
                raise_on_status=False,
            )
        )
        options: dict[str, Any] = {"maxsize": connections, "retries": again, "timeout": timeout_s}
        address = urlsplit(base_url)
        proxy = urllib.request.getproxies().get(address.scheme)
        around = not through_proxy or proxy is None or urllib.request.proxy_bypass(address.hostname)
        self._pool = urllib3.PoolManager(**options) if around else urllib3.ProxyManager(proxy, **options)

    @classmethod
    def of(cls, settings: EndpointSettings) -> OpenAiApi:
        """The client for a recipe's endpoint. Raises MissingKeyError if the key's environment variable is empty."""
        return cls(
            settings.base_url,
            api_key=key_in(settings.api_key_env),
            connections=settings.concurrency,
            timeout_s=settings.timeout_s,
            retries=settings.retries,
        )

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

    def reply(self, key: str, method: str, path: str, body: dict[str, Any] | None = None) -> urllib3.BaseHTTPResponse:
        """As `request`, for a step that keeps what was answered. key: of the recipe, where the server is named. Raises
        ModelError for a server that does not reply."""
        try:
            return self.request(method, path, body)
        except urllib3.exceptions.HTTPError as error:
            reason = type(getattr(error, "reason", None) or error).__name__
            raise ModelError(
                f"{key}: {self.base_url} does not reply ({reason}): start the server and run the step again; "
                "finished answers are kept"
            ) from error

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


class _Retry(urllib3.Retry):
    """Waits for the time in Retry-After, up to a limit."""

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, LONGEST_PAUSE_S)


def key_in(variable: str | None) -> str | None:
    """The key in an environment variable; None if `variable` is None. Raises MissingKeyError if the variable is empty."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise MissingKeyError(f"the environment variable {variable} holds no key: set it to the server's API key")
    return key
