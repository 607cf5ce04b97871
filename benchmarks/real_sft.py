"""What fine-tuning makes of SmolLM2-135M-Instruct on a shop's mail, beside the best prompt with examples, and TRL's speed.

    python -m benchmarks.real_sft --models DIR                # without TRL
    python -m benchmarks.real_sft --models DIR --peers VENV   # with TRL 1.16 in VENV
    python -m benchmarks.real_sft --models DIR --quick        # one seed and two steps, without TRL; nothing is recorded

Task: the demo's (pipelines.demo): a mail in, the line of JSON out under which the shop files it. Training: ROWS mails with the
documented defaults, full and with adapters. Held-out mails ask for other things in other words. A seed draws mails and order.

success   share of HELD_OUT greedy answers that are the right JSON, of base (no examples), prompt (the base with as many of
          SHOTS training mails before it as do best on CHOSEN_ON mails that count nowhere else), full and lora
gain      of full and lora over the better of base and prompt
loss      nats a token of the answers to VALIDATION mails like those in training, [tokens seen, loss] on the way, first seed
speed     tokens a second by the clock and of processor time, without the first step, and peak_mb; of TRL's SFTTrainer, full
          fine-tuning of the same rows in as many tokens a step, at the better of TRL_LAYOUTS (what was fastest for models of
          10M and 103M in benchmarks.trainer_vs_trl), SPEED_STEPS steps, first seed
Brackets: mean and 95 % interval over seeds.
"""

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.real_models import (
    PROJECT,
    SMALL,
    THREADS,
    Message,
    answers,
    arguments,
    asked,
    interval,
    model_of,
    process,
    said,
    train,
    write,
)
from benchmarks.record import record
from benchmarks.trainer_vs_trl import OURS as SAME_ALLOCATOR
from model_ops.documents.conversations import tokenize
from model_ops.models import load_tokenizer
from model_ops.rendering import Row
from pipelines.demo.mail import mails
from pipelines.demo.records import DemoTurn

SEEDS = (0, 1, 2)
ROWS, VALIDATION, CHOSEN_ON, HELD_OUT, MAX_NEW_TOKENS, SHOTS, SPEED_STEPS = 500, 60, 40, 120, 48, (4, 8, 16), 5
METHODS: dict[str, dict[str, Any]] = {"full": {}, "lora": {"method": "lora"}}
TRL_LAYOUTS = (("padding_free", 1), ("padded", 5))
"""(layout, rows of a pass)."""


class Mail:
    """The mails of a seed. train, validation and chosen_on are alike; held_out are about other things in other words."""

    def __init__(self, seed: int):
        drawn = random.Random(seed)
        alike = mails(ROWS + VALIDATION + CHOSEN_ON, drawn)
        self.train, rest = alike[:ROWS], alike[ROWS:]
        self.validation, self.chosen_on = rest[:VALIDATION], rest[VALIDATION:]
        self.held_out = mails(HELD_OUT, drawn, held_out=True)


def chat(mail: DemoTurn) -> list[Message]:
    return [*asked(mail.question), said(mail.answer)]


def success(model: Path, held_out: Sequence[DemoTurn], examples: Sequence[DemoTurn] = ()) -> float:
    """Share of greedy answers that are the right JSON. examples: turns before the question."""
    before = [turn for mail in examples for turn in chat(mail)]
    texts = answers(model, [[*before, *asked(mail.question)] for mail in held_out], MAX_NEW_TOKENS, batch_size=20)
    return fmean(_value(text) == json.loads(mail.answer) for text, mail in zip(texts, held_out, strict=True))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def trained(model: Path, folder: Path, mail: Mail, method: str, seed: int, quick: bool) -> tuple[Path, dict[str, Any]]:
    for split, rows in (("train", mail.train), ("validation", mail.validation)):
        write([{"row_id": f"{split}{n}", "messages": json.dumps(chat(each))} for n, each in enumerate(rows)], folder, split)
    output = folder.parent / f"{method}-{seed}"
    settings = {"seed": seed, **METHODS[method], **({"steps": 2} if quick else {})}
    return output, train("sft", {"model": model, "dataset": folder}, output, settings)


def speed(run: dict[str, Any]) -> dict[str, float]:
    steady = run["steps"][1:]
    tokens, seconds, cpu = (sum(step[key] for step in steady) for key in ("tokens", "seconds", "cpu_seconds"))
    tokens_per = {"tokens_per_s": round(tokens / seconds, 1), "tokens_per_cpu_s": round(tokens / cpu, 1)}
    return {**tokens_per, "peak_mb": round(run["peak_mb"])}


def trl(python: Path, folder: Path, model: Path, mail: Mail, tokens_per_step: float) -> dict[str, Any]:
    """Speed and memory of the faster layout."""
    rows = [Row(f"{number}", chat(each)) for number, each in enumerate(mail.train)]
    documents, _ = tokenize(rows, load_tokenizer(model), 2_048)
    lines = [{"input_ids": each.input_ids.tolist(), "completion_mask": each.targets.astype(int).tolist()} for each in documents]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    mean = fmean(len(line["input_ids"]) for line in lines)
    found = []
    for layout, each_pass in TRL_LAYOUTS:
        output = folder / f"trl-{layout}"
        job = {
            "model": str(model),
            "rows": str(folder / "rows.jsonl"),
            "output": str(output),
            "steps": SPEED_STEPS,
            "learning_rate": 2e-5,
            "max_length": 2_048,
            "layout": layout,
            "rows_per_pass": each_pass,
            "passes": max(1, round(tokens_per_step / mean / each_pass)),
            "checkpointing": False,
            "compiled": False,
            "threads": THREADS,
            "save": False,
        }
        peer = [str(python), str(PROJECT / "benchmarks/trl_peer.py")]
        run = process(peer, output, job, folder, THREADS, **{**SAME_ALLOCATOR, "PYTHONPATH": ""})
        found.append({**speed(run), "layout": layout})
        print(json.dumps({"trl": found[-1]}), flush=True)
    return max(found, key=lambda each: each["tokens_per_cpu_s"])


def main() -> None:
    parser = arguments("real_sft", __doc__)
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL 1.16; left out: TRL is skipped")
    given = parser.parse_args()
    model, runs, figures = model_of(given.models, SMALL), [], dict[str, Any]()
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(prefix="millrace-real-sft-") as name:
        folder = Path(name)
        for seed in SEEDS[:1] if given.quick else SEEDS:
            mail = Mail(seed)
            if given.quick:
                mail.chosen_on = mail.chosen_on[:8]
            held_out = mail.held_out[:20] if given.quick else mail.held_out
            shots = max(SHOTS[:1] if given.quick else SHOTS, key=lambda n: success(model, mail.chosen_on, mail.train[:n]))
            run = {"base": success(model, held_out), "prompt": success(model, held_out, mail.train[:shots])}
            for method in METHODS:
                output, learnt = trained(model, folder / f"rows-{seed}", mail, method, seed, given.quick)
                run[method] = success(output, held_out)
                if seed == SEEDS[0]:
                    seen, tokens = [], 0
                    for line in learnt["log"]:
                        tokens += line["tokens"]
                        seen += [[tokens, round(line["validation_loss"], 4)]] if "validation_loss" in line else []
                    figures[f"loss_{method}"], figures[f"speed_{method}"] = seen, speed(learnt)
                    tokens_per_step = tokens / len(learnt["log"])
            if seed == SEEDS[0] and given.peers is not None and not given.quick:
                figures["speed_trl"] = trl(given.peers.absolute() / "bin/python", folder, model, mail, tokens_per_step)
            runs.append({**run, "shots": shots})
            print(json.dumps({"seed": seed, **runs[-1]}), flush=True)
    better = [max(run["base"], run["prompt"]) for run in runs]
    for side in ("base", "prompt", *METHODS):
        figures[side] = interval([run[side] for run in runs])
    for method in METHODS:
        figures[f"gain_{method}"] = interval([run[method] - most for run, most in zip(runs, better, strict=True)])
    figures |= {"by_seed": runs, "threads": THREADS}
    record("real_sft", figures, keep=not given.quick)


if __name__ == "__main__":
    main()
