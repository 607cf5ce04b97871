"""A Hugging Face Hub on the loopback for one repository: what `huggingface_hub` asks of it when files are pushed.

with stand_in_hub() as hub: hub.url, hub.files, hub.commits, hub.uploads
hub.fails_after = 2        # uploads of large files; then the Hub answers with 503
"""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = (".safetensors", ".json")
"""Files that this Hub takes as LFS; others as regular ones."""


@dataclass
class Hub:
    """files: content by path, as committed. large: uploaded contents by sha256. uploads: their sizes, in order. commits:
    message and paths. tokens: of every request."""

    url: str = ""
    files: dict = field(default_factory=dict)
    large: dict = field(default_factory=dict)
    uploads: list = field(default_factory=list)
    commits: list = field(default_factory=list)
    tokens: set = field(default_factory=set)
    created: list = field(default_factory=list)
    accepts: str = "hf_secret"
    fails_after: int | None = None


@contextmanager
def stand_in_hub():
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, content, status=200):
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def read(self):
            if self.headers.get("Transfer-Encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def allowed(self):
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            hub.tokens.add(token)
            if token != hub.accepts:
                self.answer({"error": "no"}, 401)
            return token == hub.accepts

        def do_GET(self):
            if not self.allowed():
                return
            entries = []
            for path, (content, large) in hub.files.items():
                blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
                lfs = (
                    {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
                    if large
                    else {}
                )
                entries.append({"type": "file", "path": path, "size": len(content), "oid": blob, **lfs})
            self.answer(entries)

        def do_PUT(self):  # where the batch sends large files; its address is the permission
            content = self.read()
            if hub.fails_after is not None and len(hub.uploads) >= hub.fails_after:
                self.answer({"error": "busy"}, 400)
                return
            hub.uploads.append(len(content))
            hub.large[hashlib.sha256(content).hexdigest()] = content
            self.answer({})

        def do_POST(self):
            body = self.read()
            if not self.allowed():
                return
            if self.path == "/api/repos/create":
                hub.created.append(json.loads(body))
                self.answer({"url": f"{hub.url}/company/tutor", "id": "company/tutor", "name": "company/tutor"})
            elif "/preupload/" in self.path:
                self.answer(
                    {
                        "files": [
                            {
                                "path": each["path"],
                                "uploadMode": "lfs" if each["path"].endswith(LARGE) else "regular",
                                "shouldIgnore": False,
                                "oid": None,
                            }
                            for each in json.loads(body)["files"]
                        ]
                    }
                )
            elif self.path.endswith("/info/lfs/objects/batch"):
                asked = json.loads(body)["objects"]
                self.answer(
                    {
                        "transfer": "basic",
                        "objects": [
                            {
                                "oid": each["oid"],
                                "size": each["size"],
                                **(
                                    {}
                                    if each["oid"] in hub.large
                                    else {"actions": {"upload": {"href": f"{hub.url}/put/{each['oid']}"}}}
                                ),
                            }
                            for each in asked
                        ],
                    }
                )
            elif "/commit/" in self.path:
                lines = [json.loads(line) for line in body.splitlines() if line.strip()]
                paths = []
                for line in lines[1:]:
                    value = line["value"]
                    large = line["key"] == "lfsFile"
                    content = hub.large[value["oid"]] if large else base64.b64decode(value["content"])
                    hub.files[value["path"]] = (content, large)
                    paths.append(value["path"])
                hub.commits.append((lines[0]["value"]["summary"], paths))
                self.answer(
                    {
                        "commitUrl": f"{hub.url}/company/tutor/commit/c{len(hub.commits)}",
                        "commitOid": f"c{len(hub.commits)}",
                        "hookOutput": "",
                    }
                )
            else:
                self.answer({"error": "what?"}, 404)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
