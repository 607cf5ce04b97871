"""A server on the loopback that answers and counts as vLLM does, a few tokens at a time."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}.0
vllm:spec_decode_num_drafts_created{{engine="0",model_name="m"}} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}.0
"""


@contextmanager
def fake_vllm(latency_s=0.0, tokens=6, drafting=True, status=200):
    """Yields (address, requests seen). Every answer takes 3 drafts of 2 tokens, accepting 2 at the first place, 1 at the
    second; the counters begin at what earlier traffic left."""
    seen, lock = [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            with lock:
                answered = len(seen)
            if self.path == "/v1/models":
                self.reply(200, json.dumps({"data": [{"id": "m"}]}))
            elif self.path == "/metrics" and drafting:
                self.reply(200, METRICS.format(drafts=100 + 3 * answered, drafted=200 + 6 * answered,
                                               accepted=50 + 3 * answered, first=40 + 2 * answered, second=10 + answered))
            else:
                self.reply(404, "{}")

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(latency_s)
            with lock:
                seen.append({"path": self.path, "body": body, "headers": dict(self.headers)})
            said = {"text": "four", "token_ids": [5] * tokens} if "prompt" in body else {
                "message": {"role": "assistant", "content": "four"}}
            self.reply(status, json.dumps({"choices": [{"index": 0, "finish_reason": "length", **said}],
                                           "usage": {"completion_tokens": tokens}}))

        def reply(self, code, text):
            data = text.encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
