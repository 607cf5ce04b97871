"""One server whose metrics are read: what it reports now, and which release it serves.

A reply is read up to a limit of bytes and of time, so a server that hangs or never ends delays nothing."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import urllib3

from model_ops.completions import MissingKeyError, OpenAiApi, key_in, plain_address
from model_ops.jobs import Misuse
from resources.monitoring.metrics.servers import Reading, reading_of, samples_of

MOST_BYTES = 16 << 20
MOST_SECONDS = 5.0
ANSWER_S = 60.0
RELEASE_HEADER = "X-Millrace-Release"
"""What the front of `millrace serve` adds to every reply, /metrics included."""
_FINGERPRINT = re.compile(r"millrace-([0-9a-f]{12})-[0-9a-f]{64}")


class ScrapeError(Misuse):
    """A server's metrics cannot be read; the message says why in one sentence."""


@dataclass(frozen=True)
class Scrape:
    reading: Reading
    release: str | None = None
    """Release that a front names, or None."""
    clock_ahead_s: float | None = None
    """The server's clock minus this one's, in whole seconds; None if the server reports no time."""


class Target:
    """A server's address. api_key_env: environment variable with the key that its API asks for."""

    def __init__(self, url: str, api_key_env: str | None = None, seconds: float = MOST_SECONDS):
        """Raises ScrapeError for what is no address, and for a variable without a key."""
        try:
            self.url = plain_address(url).removesuffix("/metrics").removesuffix("/v1").rstrip("/")
        except ValueError as error:
            raise ScrapeError(f"--url: {error}") from error
        try:
            key = key_in(api_key_env)
        except MissingKeyError as error:
            raise ScrapeError(f"--api-key-env: {error}") from error
        self._metrics = OpenAiApi(self.url, api_key=key, connections=1, timeout_s=seconds)
        self._answers = OpenAiApi(self.url, api_key=key, connections=1, timeout_s=ANSWER_S)
        self._seconds = seconds

    def close(self) -> None:
        self._metrics.close()
        self._answers.close()

    def scrape(self) -> Scrape:
        """What the server reports now. Raises ScrapeError."""
        response, content = self._read(self._metrics, "GET", "/metrics", None, self._seconds)
        if response.status != 200:
            why = " (vLLM always has it, SGLang with --enable-metrics)" if response.status == 404 else ""
            raise ScrapeError(f"{self.url}/metrics answers with HTTP {response.status}{why}")
        reading = reading_of(samples_of(content.decode("utf-8", "replace")))
        if reading is None:
            raise ScrapeError(
                f"{self.url}/metrics has no metrics of vLLM or SGLang: give the address of such a server, or of "
                "a front before it"
            )
        return Scrape(reading, response.headers.get(RELEASE_HEADER), _clock_ahead(response.headers.get("Date")))

    def asked_release(self) -> str | None:
        """The release in the fingerprint of an answer of one token; None if the answer names none. Raises ScrapeError."""
        _, content = self._read(self._answers, "GET", "/v1/models", None, ANSWER_S)
        try:
            model = json.loads(content)["data"][0]["id"]
        except (ValueError, LookupError, TypeError) as error:
            raise ScrapeError(f"{self.url}/v1/models lists no model, so no answer can be asked for: give --release") from error
        body = {"model": model, "messages": [{"role": "user", "content": "release?"}], "max_tokens": 1}
        response, content = self._read(self._answers, "POST", "/v1/chat/completions", body, ANSWER_S)
        if response.status != 200:
            raise ScrapeError(
                f"{self.url} answers a chat of one token with HTTP {response.status}, so its release is not "
                "known: give --release, or --api-key-env if it asks for a key"
            )
        try:
            answer = json.loads(content)
            metadata = answer.get("metadata") or {}
            said = [answer.get("system_fingerprint"), metadata.get("weight_version")]
        except (ValueError, AttributeError):
            return response.headers.get(RELEASE_HEADER)
        releases = [match[1] for each in said if isinstance(each, str) and (match := _FINGERPRINT.fullmatch(each))]
        return next(iter(releases), response.headers.get(RELEASE_HEADER))

    def _read(
        self, api: OpenAiApi, method: str, path: str, body: dict | None, seconds: float
    ) -> tuple[urllib3.BaseHTTPResponse, bytes]:
        try:
            response = api.request(method, path, body, preload_content=False)
            content = api.read(response, MOST_BYTES, seconds)
        except urllib3.exceptions.NewConnectionError as error:  # a TimeoutError of urllib3's, also where it was refused
            raise ScrapeError(f"{self.url} does not answer (no connection)") from error
        except urllib3.exceptions.TimeoutError as error:
            raise ScrapeError(f"{self.url}{path} does not answer within {seconds:g} s") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ScrapeError(f"{self.url} does not answer ({type(error).__name__})") from error
        if content is None:
            raise ScrapeError(f"{self.url}{path} does not end within {seconds:g} s and {MOST_BYTES >> 20} MiB")
        return response, content


def _clock_ahead(said: str | None) -> float | None:
    """Seconds by which the server's clock is ahead of this one."""
    try:
        then = parsedate_to_datetime(said) if said else None
    except (TypeError, ValueError):
        return None
    if then is None or then.tzinfo is None:
        return None
    return (then - datetime.now(UTC)).total_seconds()
