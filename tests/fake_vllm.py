"""A server on the loopback that answers and counts as vLLM does, a few tokens at a time."""

import time
from contextlib import contextmanager

from loopback import loopback

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

    def look(path):
        if path == "/v1/models":
            return 200, {"data": [{"id": "m"}]}
        if path != "/metrics" or not drafting:
            return 404, {}
        answered = len(seen)
        return 200, METRICS.format(
            drafts=100 + 3 * answered,
            drafted=200 + 6 * answered,
            accepted=50 + 3 * answered,
            first=40 + 2 * answered,
            second=10 + answered,
        )

    def answer(body, number):
        time.sleep(latency_s)
        said = (
            {"text": "four", "token_ids": [5] * tokens}
            if "prompt" in body
            else {"message": {"role": "assistant", "content": "four"}}
        )
        return status, {"choices": [{"index": 0, "finish_reason": "length", **said}], "usage": {"completion_tokens": tokens}}

    with loopback(answer, look) as (address, seen):
        yield address, seen
