"""llm-compressor quantizing a model on a CPU, in the peer's own environment.

    PEERS/llmcompressor/bin/python benchmarks/llmcompressor_peer.py JOB.json RESULT.json

Knows nothing of this project: benchmarks.real_quantize starts it. What runs is `oneshot` as its examples call it:
its modifiers with their own defaults, head left out, sequential pipeline.

    rtn                 QuantizationModifier, without rows
    gptq                GPTQModifier (static act-order, damping, blocks)
    awq                 AWQModifier(duo_scaling="both"), then QuantizationModifier
    smoothquant_gptq    SmoothQuantModifier(0.8), then GPTQModifier

JOB: threads, model, rows (jsonl of token ids), scheme (W4A16, W4A16_ASYM or W8A8), method, output. RESULT: version, seconds and
cpu_seconds (loading to saving, without imports), peak_mb.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    import torch

    torch.set_num_threads(job["threads"])
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
    from llmcompressor.pipelines.cache import IntermediatesCache
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = [json.loads(line) for line in Path(job["rows"]).read_text().splitlines()]
    began, computed = time.perf_counter(), time.process_time()
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    calibrates = job["method"] != "rtn"
    dataset = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]})
    if not torch.accelerator.is_available():  # AWQ pins memory, which torch refuses without an accelerator
        IntermediatesCache.pin_memory = lambda self, batch_index, input_names=None: None
    what = {"targets": "Linear", "scheme": job["scheme"], "ignore": ["lm_head"]}
    recipe = {
        "rtn": lambda: [QuantizationModifier(**what)],
        "gptq": lambda: [GPTQModifier(**what)],
        "awq": lambda: [AWQModifier(duo_scaling="both"), QuantizationModifier(**what)],
        "smoothquant_gptq": lambda: [SmoothQuantModifier(smoothing_strength=0.8), GPTQModifier(**what)],
    }[job["method"]]()
    of_rows = {
        "dataset": dataset,
        "max_seq_length": job["max_length"],
        "num_calibration_samples": len(rows),
        "shuffle_calibration_samples": False,
    }
    oneshot(model=model, recipe=recipe, **(of_rows if calibrates else {}))
    model.save_pretrained(job["output"], save_compressed=True)
    tokenizer.save_pretrained(job["output"])
    taken = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - computed}
    Path(sys.argv[2]).write_text(
        json.dumps({"version": importlib.metadata.version("llmcompressor"), **taken, "peak_mb": peak_mb()})
    )


def peak_mb() -> float:
    """The largest resident size of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**10


if __name__ == "__main__":
    main()
