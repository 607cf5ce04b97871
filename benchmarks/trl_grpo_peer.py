"""TRL's GRPOTrainer on the same token ids and on the same prompts, in the peer's own environment.

    PEERS/bin/python benchmarks/trl_grpo_peer.py JOB.json RESULT.json

Knows nothing of this project: benchmarks.policy_losses and benchmarks.real_rft start it.

JOB with task "losses": model, rows (prompt_ids, completion_ids, sampler, advantage), losses {name: settings}, output. RESULT:
{name: {value}}; OUTPUT/name.safetensors has the gradient of each parameter.

JOB with task "train": model, rows (prompt: messages, verifier), grader (a command: lines of {verifier, text} in, grades out),
project (where that runs), adapters (keywords of LoraConfig; {} for full fine-tuning), output, steps, prompts, answers,
learning_rate, max_new_tokens, settings (of GRPOConfig), threads, seed. RESULT: versions, peak_mb (largest resident size), and
of every step seconds (clock), cpu_seconds (of all threads), generation (seconds by the clock), reward. OUTPUT has the model.
"""

import importlib.metadata
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    import torch

    torch.set_num_threads(job.get("threads", 1))
    done = {"losses": losses, "train": train}[job["task"]](job)
    Path(sys.argv[2]).write_text(json.dumps(done))


def config_of(output: str, **more: Any):
    from trl import GRPOConfig

    plain = {"report_to": [], "bf16": False, "use_cpu": True, "gradient_checkpointing": False, "beta": 0.0}
    return GRPOConfig(output_dir=output, disable_tqdm=True, **{**plain, **more})


def losses(job: dict[str, Any]) -> dict[str, Any]:
    """The value of each loss on all rows in one batch, and its gradient."""
    import torch
    from datasets import Dataset
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    rows, found = job["rows"], {}
    longest = {side: max(len(row[f"{side}_ids"]) for row in rows) for side in ("prompt", "completion")}
    ids, masks, sampler = {}, {}, torch.zeros(len(rows), longest["completion"])
    for side, left in (("prompt", True), ("completion", False)):
        ids[side] = torch.zeros(len(rows), longest[side], dtype=torch.long)
        masks[side] = torch.zeros_like(ids[side])
        for place, row in enumerate(rows):
            given = row[f"{side}_ids"]
            part = slice(longest[side] - len(given), None) if left else slice(0, len(given))
            ids[side][place, part], masks[side][place, part] = torch.tensor(given), 1
    for place, row in enumerate(rows):
        sampler[place, : len(row["sampler"])] = torch.tensor(row["sampler"])
    for name, settings in job["losses"].items():
        model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
        config = config_of(job["output"], per_device_train_batch_size=len(rows), num_generations=2, **settings)
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * len(rows)}),
            processing_class=AutoTokenizer.from_pretrained(job["model"]),
        )
        trainer.current_gradient_accumulation_steps = 1
        inputs = {
            "prompt_ids": ids["prompt"],
            "prompt_mask": masks["prompt"],
            "completion_ids": ids["completion"],
            "completion_mask": masks["completion"],
            "advantages": torch.tensor([row["advantage"] for row in rows]),
            "old_per_token_logps": sampler,
            "num_items_in_batch": masks["completion"].sum(),
        }
        model.train()
        value = trainer._compute_loss(model, inputs)
        value.backward()
        gradients = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
        save_file(gradients, Path(job["output"]) / f"{name}.safetensors")
        found[name] = {"value": float(value.detach())}
    return found


class Graded:
    """The grade of each answer by the program that knows the verifiers: lines of JSON in, a grade for each out."""

    __name__ = "verifier"

    def __init__(self, command, project):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.program = subprocess.Popen(command, cwd=project, **pipes)

    def __call__(self, completions, verifier, **_):
        found = []
        for said, each in zip(completions, verifier, strict=True):
            self.program.stdin.write(json.dumps({"verifier": json.loads(each), "text": said[0]["content"]}) + "\n")
            self.program.stdin.flush()
            found.append(float(self.program.stdout.readline()))
        return found


def train(job: dict[str, Any]) -> dict[str, Any]:
    """A run of GRPOTrainer: every step samples and learns one batch."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    steps, generation = [], []

    class Clock(TrainerCallback):
        """Times whole steps: from the end of one to the end of the next, sampling included."""

        def on_train_begin(self, *_, **__):
            self.began = time.perf_counter(), time.process_time()

        def on_step_end(self, args, state, control, **_):
            now = time.perf_counter(), time.process_time()
            spent = sum(generation)
            generation.clear()
            steps.append({"seconds": now[0] - self.began[0], "cpu_seconds": now[1] - self.began[1], "generation": spent})
            self.began = now

        def on_log(self, args, state, control, logs=None, **_):
            if logs and "reward" in logs and steps:
                steps[-1]["reward"] = float(logs["reward"])

    config = config_of(
        job["output"],
        **{
            "max_steps": job["steps"],
            "per_device_train_batch_size": job["prompts"] * job["answers"],
            "num_generations": job["answers"],
            "max_completion_length": job["max_new_tokens"],
            "learning_rate": job["learning_rate"],
            "lr_scheduler_type": "constant",
            "weight_decay": 0.01,
            "adam_beta2": 0.95,
            "max_grad_norm": 1.0,
            "optim": "adamw_torch_fused",
            "logging_steps": 1,
            "save_strategy": "no",
            "temperature": 1.0,
            "top_k": 0,
            "loss_type": "dapo",
            "epsilon": 0.2,
            "epsilon_high": 0.28,
            "seed": job["seed"],
            **job["settings"],
        },
    )
    adapters = None
    if job["adapters"]:
        from peft import LoraConfig

        adapters = LoraConfig(**job["adapters"], target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        peft_config=adapters,
        reward_funcs=Graded(job["grader"], job["project"]),
        args=config,
        train_dataset=Dataset.from_list(job["rows"]),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        callbacks=[Clock()],
    )
    generate = trainer._generate

    def timed(*given, **named):
        began = time.perf_counter()
        found = generate(*given, **named)
        generation.append(time.perf_counter() - began)
        return found

    trainer._generate = timed
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    (model.merge_and_unload() if adapters else model).to(torch.bfloat16).save_pretrained(job["output"])
    AutoTokenizer.from_pretrained(job["model"]).save_pretrained(job["output"])
    versions = {name: importlib.metadata.version(name) for name in ("trl", "transformers", "torch", "accelerate")}
    return {"versions": versions, "peak_mb": peak_mb(), "steps": steps}


def peak_mb() -> float:
    """The largest resident size of this process so far, in MiB."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 2**10


if __name__ == "__main__":
    main()
