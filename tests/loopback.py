"""A server on the loopback that answers as a test says, and remembers what it was asked."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def loopback(answer, look=lambda path: (404, {})):
    """Yields (address, requests seen): each POST as {path, body, headers}.

    `answer(body, number)` says what a POST gets, `number` counting from 1, and `look(path)` what a GET gets: a status, and
    text, or what becomes JSON; then headers, if any. The status 0 breaks the connection in the middle of the reply.
    """
    seen, lock = [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.reply(*look(self.path))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                seen.append({"path": self.path, "body": body, "headers": dict(self.headers)})
                number = len(seen)
            self.reply(*answer(body, number))

        def reply(self, status, content, headers=None):
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status or 200)
            self.send_header("Content-Length", str(len(data) if status else len(data) + 1))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = not status

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
