"""A server on the loopback that reports metrics as vLLM 0.32 does; a test sets its counters."""

from contextlib import contextmanager

from tests.loopback import loopback

FINGERPRINT = "millrace-{}-" + "ab" * 32


class Metrics:
    """drafts: with two accepted tokens each, of three drafted; requests: of 10 tokens, each with 0.1 s to its first token.
    status, text: of /metrics instead of these. began: of the process. release: in the fingerprint. header: of a front before
    it."""

    def __init__(self):
        self.drafts, self.requests, self.length, self.failed = 0, 0, 0, 0
        self.status, self.text, self.began, self.release, self.header = 200, None, 1e9, None, None

    def look(self, path):
        if path == "/v1/models":
            return 200, {"data": [{"id": "tutor"}]}
        return self.status, self.text or self.metrics(), {"X-Millrace-Release": self.header} if self.header else {}

    def answer(self, body, number):
        named = {"system_fingerprint": FINGERPRINT.format(self.release)} if self.release else {}
        return 200, {"choices": [{"message": {"content": "a"}}], **named}

    def metrics(self):
        engine = 'engine="0",model_name="a \\"b\\", c"'
        return f"""# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds {self.began}
vllm:spec_decode_num_drafts_total{{{engine}}} {self.drafts}.0
vllm:spec_decode_num_drafts_created{{{engine}}} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{{{engine}}} {3 * self.drafts}.0
vllm:spec_decode_num_accepted_tokens_total{{{engine}}} {2 * self.drafts}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{engine},position="1"}} {0.5 * self.drafts}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{engine},position="0"}} {self.drafts}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{engine},position="2"}} {0.5 * self.drafts}
vllm:generation_tokens_total{{{engine}}} {10 * self.requests}.0
vllm:prompt_tokens_total{{{engine}}} {5 * self.requests}.0
vllm:request_success_total{{{engine},finished_reason="stop"}} {self.requests - self.length}.0
vllm:request_success_total{{{engine},finished_reason="length"}} {self.length}.0
vllm:request_success_total{{{engine},finished_reason="error"}} 0.0
http_requests_total{{handler="/v1/chat/completions",method="POST",status="2xx"}} {self.requests}.0
http_requests_total{{handler="/v1/chat/completions",method="POST",status="5xx"}} {self.failed}.0
http_requests_total{{handler="/metrics",method="GET",status="5xx"}} 7.0
vllm:num_requests_running{{{engine}}} 3.0
vllm:num_requests_waiting{{{engine}}} 1.0
vllm:time_to_first_token_seconds_bucket{{{engine},le="0.05"}} 0.0
vllm:time_to_first_token_seconds_bucket{{{engine},le="0.1"}} {self.requests}.0
vllm:time_to_first_token_seconds_bucket{{{engine},le="+Inf"}} {self.requests}.0
vllm:time_to_first_token_seconds_count{{{engine}}} {self.requests}.0
vllm:time_to_first_token_seconds_sum{{{engine}}} {0.08 * self.requests}
not a sample
"""


@contextmanager
def metrics_server():
    """Yields (address, its Metrics, requests seen)."""
    metrics = Metrics()
    with loopback(metrics.answer, metrics.look) as (address, seen):
        yield address, metrics, seen
