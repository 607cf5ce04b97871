"""TRL's SFTTrainer on the same rows, in the peer's own environment.

    PEERS/bin/python benchmarks/trl_peer.py JOB.json RESULT.json

Knows nothing of this project: benchmarks.trainer_vs_trl starts it. bfloat16 products over float32 weights, TRL's own loss
(chunked, never the whole logits), AdamW; layout, rows of a pass, accumulation, checkpointing and compilation as the job says.
JOB: model, rows (JSONL of input_ids, completion_mask), output, steps, learning_rate, max_length, layout (packed, padded,
padding_free), rows_per_pass, passes, checkpointing, compiled, threads, save.
RESULT: versions, peak_mb (largest resident size before weights are saved), positions (padding included, of all passes), and of
every step seconds (clock), cpu_seconds (of all threads), tokens (no padding), targets (predicted), loss.
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
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    steps = []

    class Clock(TrainerCallback):
        """Times whole steps: from the end of one to the end of the next, batches included."""

        def on_train_begin(self, *_, **__):
            self.began = time.perf_counter(), time.process_time()

        def on_step_end(self, args, state, control, **_):
            now = time.perf_counter(), time.process_time()
            steps.append({"seconds": now[0] - self.began[0], "cpu_seconds": now[1] - self.began[1]})
            self.began = now

        def on_log(self, args, state, control, logs=None, **_):
            if logs and "loss" in logs and steps:
                steps[-1].update(loss=float(logs["loss"]), seen=float(logs["num_tokens"]))

    packed = job["layout"] == "packed"
    config = SFTConfig(
        output_dir=job["output"],
        max_steps=job["steps"],
        per_device_train_batch_size=job["rows_per_pass"],
        gradient_accumulation_steps=job["passes"],
        packing=packed,
        padding_free=job["layout"] == "padding_free",
        max_length=job["max_length"] if packed else None,
        completion_only_loss=True,
        train_sampling_strategy="group_by_length" if job["layout"] == "padded" else "random",
        learning_rate=job["learning_rate"],
        bf16=True,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=job["checkpointing"],
        torch_compile=job["compiled"],
        optim="adamw_torch_fused",
        weight_decay=0.01,
        adam_beta2=0.95,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        seed=0,
        disable_tqdm=True,
    )
    rows = [json.loads(line) for line in Path(job["rows"]).read_text().splitlines()]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        callbacks=[Clock()],
    )
    counts = counted(trainer)
    trainer.train()
    peak = peak_mb()
    if job["save"]:
        trainer.save_model(job["output"])
    before = 0.0
    for number, step in enumerate(steps):
        step["tokens"], before = step["seen"] - before, step.pop("seen")
        mine = counts[number * job["passes"] : (number + 1) * job["passes"]]
        step["targets"] = sum(targets for targets, _ in mine)
    versions = {name: importlib.metadata.version(name) for name in ("trl", "transformers", "torch", "accelerate")}
    Path(sys.argv[2]).write_text(
        json.dumps(
            {
                "versions": versions,
                "peak_mb": peak,
                "steps": steps,
                "positions": sum(size for _, size in counts[: len(steps) * job["passes"]]),
            }
        )
    )


def counted(trainer) -> list[tuple[int, int]]:
    """(predicted tokens, positions with padding) of each batch, filled while the trainer collates; predictions are of the next
    token, so the first position of a row is none."""
    counts, collate = [], trainer.data_collator

    def collate_and_count(examples):
        batch = collate(examples)
        counts.append((int((batch["labels"][:, 1:] != -100).sum()), batch["labels"].numel()))
        return batch

    trainer.data_collator = collate_and_count
    return counts


def peak_mb() -> float:
    """The largest resident size of this process so far, in MiB."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 2**10


if __name__ == "__main__":
    main()
