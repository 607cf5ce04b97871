"""A Hugging Face Hub on the loopback that says which commit a model has, and which files.

    with hub_of_models() as hub:
        hub.commit("company/base", {"model.safetensors": b"weights"})      # the newest commit of its default branch
        hub.asked, hub.status, hub.pause_s
"""

import hashlib
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """commits: files by commit, of each model, oldest first. asked: path of every request. status: of every answer, if not 200."""

    url: str = ""
    commits: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    status: int = 200
    pause_s: float = 0.0
    body: bytes | None = None

    def commit(self, name, files):
        commits = self.commits.setdefault(name, {})
        found = hashlib.sha1(f"{name}{len(commits)}".encode()).hexdigest()
        commits[found] = files
        return found

    def answer(self, path):
        name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        commits = self.commits.get(name, {})
        commit = revision if revision in commits else list(commits)[-1] if commits and revision in ("", "main") else None
        if commit is None:
            return None
        siblings = []
        for path, content in commits[commit].items():
            large = path.endswith(".safetensors")
            lfs = {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}} if large else {}
            siblings.append({"rfilename": path, "size": len(content), "blobId": hashlib.sha1(content).hexdigest(), **lfs})
        return {"id": name, "sha": commit, "siblings": siblings}


@contextmanager
def hub_of_models():
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(path)
            time.sleep(hub.pause_s)
            found = hub.answer(path)
            body = hub.body if hub.body is not None else json.dumps(found or {"error": "no such model"}).encode()
            self.send_response(hub.status if hub.status != 200 else 200 if found or hub.body is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
