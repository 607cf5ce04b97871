"""`millrace capture`: a front before one server that millrace did not start.

    run_capture("http://127.0.0.1:8000", settings, "127.0.0.1", 8080, 60.0, print)
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from resources.capture.capture import Capture, CaptureSettings
from resources.capture.capture_error import CaptureError
from resources.front.address import EVERYWHERE
from resources.front.front import Front, FrontError
from resources.front.routes import Backend, Route
from resources.reading.user_hash import unkeyed_sentence

SWITCH_INTERVAL_S = 0.0005


def run_capture(to: str, settings: CaptureSettings, host: str, port: int, drain_s: float, say: Callable[[str], None]) -> None:
    """Captures until it is interrupted. Raises CaptureError for addresses that cannot be used.

    A request that the server took is sent once: it may be what ended the server, or its work may be paid.
    """
    require_another_server(to, host, port)
    backend = Backend(server_url(to), "", sampling=settings.sampling)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with Capture(settings, say) as capture:
        try:
            with Front(host, port, drain_s, capture.recorder, capture.answers, passes=("/",), most_sent=1) as front:
                front.switch([Route(backend)])
                say(f"captures what {front.url} passes on to {backend.url}, into {capture.store.place} "
                    f"(journal: {capture.journal_directory})")
                if unkeyed := unkeyed_sentence():
                    say(unkeyed)
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


def require_another_server(to: str, host: str, port: int) -> None:
    """Raises CaptureError if `to` is the address at which the capture layer listens: it would ask itself for ever."""
    found = urlsplit(server_url(to))
    if port and port == (found.port or {"https": 443}.get(found.scheme, 80)) and _addresses(found.hostname or "") & {
            *_addresses(host), *(("127.0.0.1", "::1", *_addresses(socket.gethostname())) if host in EVERYWHERE else ())}:
        raise CaptureError(f"--to {to} is the address that this command listens at: name the server's own, or another --port")


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


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
