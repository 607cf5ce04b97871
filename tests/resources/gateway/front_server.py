"""A server on the loopback that the tests of the front start, stop and start again."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from resources.gateway.routes import Backend


class Server:
    """gate: requests wait for it. dies: "at once" closes the connection instead of answering, "later" in the middle of a
    stream. fails: the HTTP status of every answer; healthy: what /health says then. port: 0 for a free one."""

    def __init__(self, name, dies="", fails=200, healthy=True, port=0):
        self.name, self.dies, self.fails, self.seen, self.gate = name, dies, fails, [], threading.Event()
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.seen.append((self.path, dict(self.headers), body))
                if outer.dies == "at once":
                    self.close_connection = True
                elif b"stream" in body:
                    self.stream()
                else:
                    outer.gate.wait(10)
                    self.whole(gzip.compress(outer.name.encode()), {"Content-Encoding": "gzip", "X-Kept": "yes"}, outer.fails)

            def do_GET(self):
                self.whole(outer.name.encode(), {}, 200 if healthy else 503)

            def whole(self, content, headers, status=200):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content)), "Keep-Alive": "timeout=5"}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def stream(self):
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for part in range(3):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(outer.name) + 2, f"{outer.name}{part} ".encode()))
                    self.wfile.flush()
                    outer.gate.wait(10)
                    if outer.dies == "later":
                        self.close_connection = True
                        return
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.port = self._server.server_port
        self.backend = Backend(f"http://127.0.0.1:{self.port}", name)

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
