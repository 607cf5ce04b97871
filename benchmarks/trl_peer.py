"""TRL's SFTTrainer on the same rows, in the peer's own environment.

    PEERS/bin/python benchmarks/trl_peer.py JOB.json RESULT.json

Knows nothing of this project: benchmarks.trainer_vs_trl starts it. Packing, padding-free where TRL can, bfloat16 products over
float32 weights, its default loss (chunked, never the whole logits), AdamW, gradient checkpointing as the job says.
JOB: model, rows, output, steps, learning_rate, max_length, rows_per_step, checkpointing, threads. RESULT: version, peak_mb, and
of every step seconds, tokens (as TRL counts them), loss.
"""

from __future__ import annotations

import importlib.metadata
import json
import resource
import sys
import time
from pathlib import Path


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    import torch

    torch.set_num_threads(job["threads"])
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    steps = []

    class Clock(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            self.began = time.perf_counter()

        def on_step_end(self, args, state, control, **_):
            steps.append({"seconds": time.perf_counter() - self.began})

        def on_log(self, args, state, control, logs=None, **_):
            if logs and "loss" in logs and steps:
                steps[-1].update(loss=float(logs["loss"]), seen=float(logs["num_tokens"]))

    config = SFTConfig(
        output_dir=job["output"], max_steps=job["steps"], per_device_train_batch_size=job["rows_per_step"],
        max_length=job["max_length"], packing=True, completion_only_loss=True, learning_rate=job["learning_rate"], bf16=True,
        use_cpu=True, logging_steps=1, save_strategy="no", report_to=[], gradient_checkpointing=job["checkpointing"],
        weight_decay=0.01, adam_beta2=0.95, lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1}, warmup_steps=1, max_grad_norm=1.0, seed=0, disable_tqdm=True,
    )
    rows = [json.loads(line) for line in Path(job["rows"]).read_text().splitlines()]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32), args=config,
        train_dataset=Dataset.from_list(rows), processing_class=AutoTokenizer.from_pretrained(job["model"]),
        callbacks=[Clock()],
    )
    trainer.train()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    trainer.save_model(job["output"])
    before = 0.0
    for step in steps:
        step["tokens"], before = step["seen"] - before, step.pop("seen")
    versions = {name: importlib.metadata.version(name) for name in ("trl", "transformers", "torch", "accelerate")}
    Path(sys.argv[2]).write_text(json.dumps({"versions": versions, "peak_mb": peak_mb, "steps": steps}))


if __name__ == "__main__":
    main()
