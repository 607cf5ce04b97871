"""A Hugging Face Hub on the loopback that says which commit a model has, and which files.

with hub_of_models() as hub:
    hub.commit("company/base", {"model.safetensors": b"weights"})      # the newest commit of its default branch
    hub.asked, hub.status, hub.pause_s
    hub.used_by(monkeypatch, cache)                                    # for huggingface_hub in this process, with a new
    cache
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
    """commits: files by commit, of each model, oldest first. asked: path of every question about a model. status: of every
    answer, if not 200."""

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

    def used_by(self, monkeypatch, cache):
        monkeypatch.setenv("HF_ENDPOINT", self.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        for name, value in {
            "HF_HUB_OFFLINE": False,
            "ENDPOINT": self.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(cache),
        }.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)

    def file(self, path):
        """Commit and content of /ORG/NAME/resolve/COMMIT/FILE."""
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        commit, _, file = rest.partition("/")
        return commit, self.commits.get(name, {}).get(commit, {}).get(file)

    def answer(self, path):
        kind = "/tree/" if "/tree/" in path else "/revision/"
        name, _, revision = path.removeprefix("/api/models/").partition(kind)
        commits = self.commits.get(name, {})
        commit = revision if revision in commits else list(commits)[-1] if commits and revision in ("", "main") else None
        if commit is None:
            return None
        siblings = []
        for path, content in commits[commit].items():
            large = path.endswith(".safetensors")
            lfs = (
                {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
                if large
                else {}
            )
            siblings.append({"rfilename": path, "size": len(content), "blobId": hashlib.sha1(content).hexdigest(), **lfs})
        if kind == "/tree/":
            return [
                {"type": "file", "path": each["rfilename"], "size": each["size"], "oid": each["blobId"]} for each in siblings
            ]
        return {"id": name, "sha": commit, "siblings": siblings}


@contextmanager
def hub_of_models():
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            commit, content = hub.file(unquote(urlsplit(self.path).path))
            self.send_response(404 if content is None else 200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha256(content or b"").hexdigest()}"')
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()

        def do_GET(self):
            path = unquote(urlsplit(self.path).path)
            if "/resolve/" in path:
                self.do_HEAD()
                self.wfile.write(hub.file(path)[1] or b"")
                return
            if path.startswith("/api/models/"):  # the library asks for other things by itself
                hub.asked.append(path)
            time.sleep(hub.pause_s)
            found = hub.answer(path)
            body = hub.body if hub.body is not None else json.dumps(found or {"error": "no such model"}).encode()
            self.send_response(hub.status if hub.status != 200 else 200 if found or hub.body is not None else 404)
            if not found:
                known = any(path.startswith(f"/api/models/{name}/") for name in hub.commits)
                self.send_header("X-Error-Code", "RevisionNotFound" if known else "RepoNotFound")
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
