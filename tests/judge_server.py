"""A judge on the loopback for tests: an OpenAI-compatible endpoint that answers as a test's function says."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(text):
    return 200, {"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}


def scores(quality, difficulty):
    return completion(json.dumps({"quality": quality, "difficulty": difficulty}))


@contextmanager
def judge_server(answer):
    """Yields (base_url, requests seen). `answer(body, number)` gives a status and a JSON body."""
    seen, lock = [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                seen.append({"path": self.path, "body": body, "headers": dict(self.headers)})
                number = len(seen)
            status, content = answer(body, number)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
