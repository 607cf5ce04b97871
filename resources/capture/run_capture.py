"""`millrace capture`: a front before one server that millrace did not start.

    run_capture("http://127.0.0.1:8000", settings, "127.0.0.1", 8080, 60.0, print)
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from resources.capture.capture import Capture, CaptureSettings
from resources.capture.capture_error import CaptureError
from resources.front.front import Front, FrontError
from resources.front.routes import Backend, Route

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Parameters of generation_config.json that vLLM and SGLang apply where a request names none."""
SWITCH_INTERVAL_S = 0.0005


def run_capture(to: str, settings: CaptureSettings, host: str, port: int, drain_s: float, say: Callable[[str], None]) -> None:
    """Captures until it is interrupted. Raises CaptureError for addresses that cannot be used."""
    backend = Backend(server_url(to), "", sampling=settings.sampling)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with Capture(settings) as capture:
        try:
            with Front(host, port, drain_s, capture.recorder, capture.answers) as front:
                front.switch([Route(backend)])
                say(f"captures what {front.url} passes on to {backend.url}, into {capture.store.place} "
                    f"(journal: {capture.journal_directory})")
                try:
                    threading.Event().wait()
                except KeyboardInterrupt:
                    if backend.in_flight:
                        say(f"ends when {backend.in_flight} requests in flight are answered, after {drain_s:g} s at most; "
                            "Ctrl-C again ends at once")
        except FrontError as error:
            raise CaptureError(str(error)) from error
    if capture.left:
        say(f"{capture.left} segments are not in the store yet: they lie in {capture.journal_directory}, and the next start "
            "ships them")


def server_url(to: str) -> str:
    """The address to which a request's path is added: clients write /v1, so `to` may end with it. Raises CaptureError."""
    try:
        found = urlsplit(to)
        usable = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise CaptureError(f"--to {to!r} is no address of a server such as http://127.0.0.1:8000")
    if found.username or found.password:
        raise CaptureError("--to contains credentials: clients send their own key, which is passed on")
    return to.rstrip("/").removesuffix("/v1")


def read_sampling(path: Path | None) -> Mapping[str, Any]:
    """The sampling defaults in a generation_config.json. Raises CaptureError where it cannot be read."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: content[name] for name in SAMPLING if content.get(name) is not None}
    except (OSError, ValueError, AttributeError) as error:
        raise CaptureError(f"{path} is no generation_config.json: give the file beside the served weights") from error
