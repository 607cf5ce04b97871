"""TRL's preference trainers on the same token ids, in the peer's own environment.

    PEERS/bin/python benchmarks/trl_preference_peer.py JOB.json RESULT.json

Knows nothing of this project: benchmarks.preference_losses and benchmarks.preference_peers start it. float32 on a CPU.

JOB with task "losses": model, reference (directories), rows (prompt_ids, chosen_ids, rejected_ids, KL_chosen_ids), losses
{name: kind, settings}, output. RESULT: {name: {value, z0}}; OUTPUT/name.safetensors has the gradient of each parameter.

JOB with task "train": model, rows, output, kind (dpo or kto), steps, learning_rate, beta, rows_per_pass, passes, padding_free,
checkpointing, bf16, threads. RESULT: versions, peak_mb (largest resident size), reference (seconds by the clock and of all
threads), and of every step seconds (clock), cpu_seconds (of all threads), targets (tokens of answers), loss, margin.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

Rows = list[dict[str, list[int]]]


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    import torch

    torch.set_num_threads(job.get("threads", 1))
    done = {"losses": losses, "train": train}[job["task"]](job)
    Path(sys.argv[2]).write_text(json.dumps(done))


def losses(job: dict[str, Any]) -> dict[str, Any]:
    """The value of each loss on all rows, and its gradient."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(job["reference"], dtype=torch.float32).eval()
    found = {}
    for name, asked in job["losses"].items():
        model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
        trainer = KINDS[asked["kind"]](model, asked["settings"], job["output"])
        value, more = OF[asked["kind"]](trainer, model, reference, job["rows"])
        value.backward()
        gradients = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
        save_file(gradients, Path(job["output"]) / f"{name}.safetensors")
        found[name] = {"value": float(value.detach()), **more}
    return found


def settings_of(output: str, **more: Any) -> dict[str, Any]:
    return {"output_dir": output, "report_to": [], "bf16": False, "use_cpu": True, "gradient_checkpointing": False, **more}


TEXTS = {"prompt": ["a", "b"], "chosen": ["c", "d"], "rejected": ["d", "c"]}
"""Rows that a trainer has to be given; the batches do not come from them."""


def tokenizer_of(model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model.config._name_or_path)


def dpo_trainer(model, settings, output):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    config = DPOConfig(**settings_of(output, precompute_ref_log_probs=False, **settings))
    return DPOTrainer(model=model, args=config, train_dataset=Dataset.from_dict(TEXTS), processing_class=tokenizer_of(model))


def kto_trainer(model, settings, output):
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    config = KTOConfig(**settings_of(output, per_device_train_batch_size=2, train_sampling_strategy="sequential", **settings))
    rows = Dataset.from_dict({"prompt": ["a", "b"], "completion": ["c", "d"], "label": [True, False]})
    return KTOTrainer(model=model, args=config, train_dataset=rows, processing_class=tokenizer_of(model))


def cpo_trainer(model, settings, output):
    from datasets import Dataset
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    config = CPOConfig(**settings_of(output, **settings))
    return CPOTrainer(model=model, args=config, train_dataset=Dataset.from_dict(TEXTS), processing_class=tokenizer_of(model))


def orpo_trainer(model, settings, output):
    from datasets import Dataset
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    config = ORPOConfig(**settings_of(output, **settings))
    return ORPOTrainer(model=model, args=config, train_dataset=Dataset.from_dict(TEXTS), processing_class=tokenizer_of(model))


def of_dpo(trainer, model, reference, rows):
    """The mean over pairs, each in a batch of its own: TRL's likelihood terms are means over the tokens of a batch."""
    trainer.ref_model, trainer.precompute_ref_logps = reference, False
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.utils import add_fused_lm_head

    if not hasattr(reference, "patched"):
        add_fused_lm_head(reference)
        reference.patched = True
    collate = DataCollatorForPreference(pad_token_id=0)
    each = [trainer._compute_loss(model, collate([row]), False) for row in rows]
    return sum(each) / len(each), {}


def of_kto(trainer, model, reference, rows):
    """All answers in one batch, whose z0 is that of mismatched answers to all prompts."""
    trainer.ref_model, trainer.precompute_ref_logps = reference, False
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference
    from trl.trainer.utils import add_fused_lm_head

    if not hasattr(reference, "patched"):
        add_fused_lm_head(reference)
        reference.patched = True
    examples = [
        {"prompt_ids": row["prompt_ids"], "completion_ids": row[side], "label": side == "chosen_ids"}
        for row in rows
        for side in ("chosen_ids", "rejected_ids")
    ]
    if trainer.calculate_KL:
        for example, row in zip(examples, [row for row in rows for _ in range(2)], strict=True):
            example["KL_completion_ids"] = row["KL_chosen_ids"]
    value = trainer._compute_loss(model, DataCollatorForUnpairedPreference(pad_token_id=0)(examples), False)
    return value, {"z0": [*trainer._metrics["train"]["kl"], *trainer._metrics["eval"]["kl"]][-1]}


def concatenated(row):
    """A pair as TRL's older trainers take it."""
    import torch

    batch = {}
    for side in ("chosen", "rejected"):
        ids = row["prompt_ids"] + row[f"{side}_ids"]
        batch[f"{side}_input_ids"] = torch.tensor([ids])
        batch[f"{side}_attention_mask"] = torch.ones_like(batch[f"{side}_input_ids"])
        batch[f"{side}_labels"] = torch.tensor([[-100] * len(row["prompt_ids"]) + row[f"{side}_ids"]])
    return batch


def of_cpo(trainer, model, reference, rows):
    each = [trainer.get_batch_loss_metrics(model, concatenated(row))[0] for row in rows]
    return sum(each) / len(each), {}


def of_orpo(trainer, model, reference, rows):
    """The odds ratio alone: TRL's likelihood term has the prompt in it."""
    each = [-trainer.odds_ratio_loss(*trainer.concatenated_forward(model, concatenated(row))[:2])[0].mean() for row in rows]
    return sum(each) / len(each), {}


KINDS = {"dpo": dpo_trainer, "kto": kto_trainer, "cpo": cpo_trainer, "orpo": orpo_trainer}
OF = {"dpo": of_dpo, "kto": of_kto, "cpo": of_cpo, "orpo": of_orpo}


def train(job: dict[str, Any]) -> dict[str, Any]:
    """A run of DPOTrainer or KTOTrainer over the rows in their order, the reference computed before."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

    steps, seen = [], []

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
                margin = logs.get("rewards/margins")
                steps[-1].update(loss=float(logs["loss"]), margin=None if margin is None else float(margin))

    given = {
        **settings_of(job["output"]),
        "max_steps": job["steps"],
        "per_device_train_batch_size": job["rows_per_pass"],
        "gradient_accumulation_steps": job["passes"],
        "bf16": job["bf16"],
        "gradient_checkpointing": job["checkpointing"],
        "max_length": None,
        "beta": job["beta"],
        "precompute_ref_log_probs": True,
        "learning_rate": job["learning_rate"],
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "optim": "adamw_torch_fused",
        "weight_decay": 0.01,
        "adam_beta2": 0.95,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "seed": 0,
        "disable_tqdm": True,
    }
    rows = [json.loads(line) for line in Path(job["rows"]).read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    if job["kind"] == "dpo":
        keys = ("prompt_ids", "chosen_ids", "rejected_ids")
        config, kind = DPOConfig(**given, padding_free=job["padding_free"]), DPOTrainer
        examples = [{key: row[key] for key in keys} for row in rows]
    else:
        config, kind = KTOConfig(**given, loss_type="kto"), KTOTrainer
        examples = [
            {"prompt_ids": row["prompt_ids"], "completion_ids": row[side], "label": side == "chosen_ids"}
            for row in rows
            for side in ("chosen_ids", "rejected_ids")
        ]
    texts = Dataset.from_dict({"prompt": ["a"] * len(examples), **NEEDED[job["kind"]](len(examples))})
    compute, spent = kind._precompute_ref_logps, []

    def computed(self, *given):
        began = time.perf_counter(), time.process_time()
        found = compute(self, *given)
        spent.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        return found

    kind._prepare_dataset = lambda *_: prepared(examples, job)  # where TRL would tokenize
    kind._precompute_ref_logps = computed
    trainer = kind(model=model, args=config, train_dataset=texts, processing_class=tokenizer, callbacks=[Clock()])
    collate = trainer.data_collator

    def counted(batch):
        made = collate(batch)
        seen.append(int(made["completion_mask"].sum()))
        return made

    trainer.data_collator = counted
    seen.clear()
    trainer.train()
    peak = peak_mb()
    if job["save"]:
        trainer.save_model(job["output"])
    for number, step in enumerate(steps):
        step["targets"] = sum(seen[number * job["passes"] : (number + 1) * job["passes"]])
    versions = {name: importlib.metadata.version(name) for name in ("trl", "transformers", "torch", "accelerate")}
    return {"versions": versions, "peak_mb": peak, "steps": steps, "reference": spent[0]}


NEEDED = {
    "dpo": lambda count: {"chosen": ["c"] * count, "rejected": ["d"] * count},
    "kto": lambda count: {"completion": ["c"] * count, "label": [True] * count},
}


def prepared(examples, job):
    """The rows as token ids; kto's mismatched answers as TRL makes them, within a batch."""
    from datasets import Dataset

    dataset = Dataset.from_list(examples)
    if job["kind"] == "kto":

        def rotated(batch):
            return {**batch, "KL_completion_ids": [batch["completion_ids"][-1], *batch["completion_ids"][:-1]]}

        dataset = dataset.map(rotated, batched=True, batch_size=job["rows_per_pass"])
    return dataset


def peak_mb() -> float:
    """The largest resident size of this process so far, in MiB."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 2**10


if __name__ == "__main__":
    main()
