"""TRL's RewardTrainer on the same pairs, in the peer's own environment.

    PEERS/bin/python benchmarks/trl_reward_peer.py JOB.json RESULT.json

Knows nothing of this project: benchmarks.reward_model starts it. AdamW, one pass over the pairs; rows of a pass,
accumulation, precision and checkpointing as the job says. JOB: model, rows (JSONL of chosen_ids, rejected_ids, margin),
output, learning_rate, rows_per_pass, passes, bf16, checkpointing, threads, steps. RESULT: versions, peak_mb, and seconds of
every step.
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
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
    from trl import RewardConfig, RewardTrainer

    seconds = []

    class Clock(TrainerCallback):
        """Times whole steps, batches included."""

        def on_train_begin(self, *_, **__):
            self.began = time.perf_counter()

        def on_step_end(self, *_, **__):
            now = time.perf_counter()
            seconds.append(now - self.began)
            self.began = now

    config = RewardConfig(
        output_dir=job["output"],
        max_steps=job["steps"],
        per_device_train_batch_size=job["rows_per_pass"],
        gradient_accumulation_steps=job["passes"],
        max_length=None,
        center_rewards_coefficient=0.01,
        learning_rate=job["learning_rate"],
        bf16=job["bf16"],
        use_cpu=True,
        logging_steps=1_000_000,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=job["checkpointing"],
        optim="adamw_torch_fused",
        weight_decay=0.01,
        adam_beta2=0.95,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        seed=0,
        disable_tqdm=True,
    )
    rows = [json.loads(line) for line in Path(job["rows"]).read_text().splitlines()]
    trainer = RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(job["model"], dtype=torch.float32, num_labels=1),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        callbacks=[Clock()],
    )
    trainer.train()
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    versions = {name: importlib.metadata.version(name) for name in ("trl", "transformers", "torch", "accelerate")}
    Path(sys.argv[2]).write_text(
        json.dumps({"versions": versions, "peak_mb": int(line.split()[1]) / 2**10, "seconds": seconds})
    )


if __name__ == "__main__":
    main()
