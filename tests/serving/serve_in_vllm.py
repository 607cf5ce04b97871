"""Runs in the vLLM environment: answers prompts with a real vLLM engine and prints text, ids and drafting counters.

    .venv-vllm/bin/python tests/serving/serve_in_vllm.py job.json

job.json: {"model", "speculator" or null, "k", "prompts": [[token ids]], "temperature", "max_tokens", "max_model_len"}.
The last line of standard output is one JSON object: {"answers": [[ids]], "texts": [...], "tau": number or null,
"per_position": [...]}.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the repair below must be made in the engine's own process


def repair_sampling() -> None:
    """This CPU build leaves per-token temperatures unset when it speculates: its stand-in for one kernel fills a copy.

    The stand-in here writes where the caller reads, so that drafting at a temperature above 0 samples what it should.
    """
    from vllm.utils import cpu_triton_utils

    def expand(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None):
        start = 0
        for request, end in enumerate(cu_num_tokens.tolist()):
            value = input_val[request]
            output[start:end] = replace_to if value == replace_from else value
            start = end

    cpu_triton_utils._expand_kernel_impl = expand


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    repair_sampling()
    from vllm import LLM, SamplingParams

    speculative = None
    if job["speculator"]:
        speculative = {
            "method": "eagle3", "model": job["speculator"], "num_speculative_tokens": job["k"],
            "draft_sample_method": "probabilistic", "rejection_sample_method": "standard",
        }
    llm = LLM(
        model=job["model"], speculative_config=speculative, enforce_eager=True, max_model_len=job["max_model_len"],
        disable_log_stats=False, enable_prefix_caching=False, seed=0,
    )
    sampling = SamplingParams(temperature=job["temperature"], max_tokens=job["max_tokens"], seed=None)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], sampling, use_tqdm=False)
    counters = {metric.name: metric for metric in llm.get_metrics()}
    drafts = getattr(counters.get("vllm:spec_decode_num_drafts"), "value", 0)
    accepted = getattr(counters.get("vllm:spec_decode_num_accepted_tokens"), "value", 0)
    per_position = getattr(counters.get("vllm:spec_decode_num_accepted_tokens_per_pos"), "values", [])
    print(
        json.dumps(
            {
                "answers": [list(output.outputs[0].token_ids) for output in outputs],
                "texts": [output.outputs[0].text for output in outputs],
                "tau": 1 + accepted / drafts if drafts else None,
                "per_position": [count / drafts for count in per_position] if drafts else [],
            }
        )
    )


if __name__ == "__main__":
    main()
