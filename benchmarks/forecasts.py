"""The forecast of `millrace run` against what the run took: peak memory and seconds of each stage that computes.

    python -m benchmarks.forecasts --model DIR           # a real model; about 12 minutes for 135M on 2 cores with AMX
    python -m benchmarks.forecasts --quick               # the toy model, one minute; nothing is recorded

A run of a fresh lake, on made conversations: LoRA fine-tuning, preference pairs (DPO), rewards, GPTQ to 4 bits, a drafter's
answers, the drafter, the evaluation. Steps are few, because a forecast of a step is that of all. Predicted is what the run
printed before its first step, without an earlier run of the lake to learn from. Took is the stage's wall time; peak memory is
that of the run's worker, read every half second. error = predicted / took - 1.

Last line: {stages: {NAME: {memory: [predicted, peak, error], seconds: [predicted, took, error]}}, worst_memory_error,
worst_seconds_error}; memory in GB. Machines with other work on them say little about seconds.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.record import record

STAGES = {
    "sft_model": "fine_tuning",
    "preference_model": "preference",
    "rft_model": "rft",
    "quantized_model": "gptq",
    "speculator_dataset": "answers",
    "speculator": "drafter",
    "evaluation_report": "evaluation",
}
RECORDS, PAIRS, TASKS, QUICK_SHARE = 240, 160, 96, 4
WORDS = [
    "order",
    "parcel",
    "refund",
    "account",
    "charge",
    "delivery",
    "street",
    "number",
    "week",
    "label",
    "return",
    "email",
    "invoice",
    "please",
    "check",
    "customer",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a model's directory; default: the toy model")
    parser.add_argument("--quick", action="store_true", help="the toy model")
    parser.add_argument("--lake", type=Path, help="a directory to keep the lake in; default: a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.lake or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        figures = measured(folder, str(given.model.resolve()) if given.model and not given.quick else "tiny")
    for name, found in figures["stages"].items():
        print(f"{name:12} " + "  ".join(f"{of} {a:8.2f} {b:8.2f} {error:+.0%}" for of, (a, b, error) in found.items()))
    record("forecasts", figures, keep=not given.quick and given.model is not None)


def measured(folder: Path, model: str) -> dict[str, Any]:
    write_rows(folder, 1 if model != "tiny" else QUICK_SHARE)
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(settings(model)))
    command = [sys.executable, "-m", "millrace", "run", str(recipe), "--lake", str(folder / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    try:
        [path] = (folder / "lake").rglob("forecasts/*.json")
        [found] = json.loads(path.read_text()).values()
    except ValueError as error:
        raise SystemExit(f"the run ended without a forecast:\n{(done.stdout + done.stderr)[-3_000:]}") from error
    stages = {}
    for stage, name in STAGES.items():
        if (of := found["stages"].get(stage)) is None:
            raise SystemExit(f"{stage} did not end:\n{(done.stdout + done.stderr)[-3_000:]}")
        memory = (of["predicted_memory_bytes"] / 1e9, of["memory_bytes"] / 1e9)
        seconds = (of["predicted"], of["took"])
        stages[name] = {
            kind: [*(round(value, 2) for value in pair), round(pair[0] / pair[1] - 1, 3)]
            for kind, pair in (("memory", memory), ("seconds", seconds))
        }
    worst = {f"worst_{kind}_error": max(abs(of[kind][2]) for of in stages.values()) for kind in ("memory", "seconds")}
    return {"stages": stages, **worst}


def settings(model: str) -> dict[str, Any]:
    train = {"steps": 3, "tokens_per_step": 8_192, "max_length": 1_024, "preset": "quick"}
    return {
        "workload": "forecasts",
        "base_model": model,
        "sources": {"chats": {"uri": "chats.jsonl"}, "pairs": {"uri": "pairs.jsonl"}},
        "datasets": {"preference": {}, "rl_prompts": {"tasks": {"sums": {"uri": "sums.jsonl", "task": "number"}}}},
        **({"tiny": {"steps": 10, "tokens_per_step": 2_048, "max_length": 512}} if model == "tiny" else {}),
        "sft": {**train, "method": "lora"},
        "preference": {**train, "method": "lora"},
        "rft": {
            "method": "lora",
            "grader": "verifier",
            "steps": 2,
            "prompts_per_step": 8,
            "answers": 4,
            "max_new_tokens": 96,
            "held_out_prompts": 8,
        },
        "student": {"enabled": False},
        "quantize": {"scheme": "w4a16_g32", "calibration_rows": 32},
        "speculator": {**train, "steps": 2, "answers": {"prompts": 64, "max_new_tokens": 64}},
        "evaluation": {"rows": 32, "prompts": 16, "max_new_tokens": 64},
        "release": {"enabled": False},
    }


def write_rows(folder: Path, share: int) -> None:
    drawn = random.Random(0)

    def text(words: int) -> str:
        return " ".join(drawn.choice(WORDS) for _ in range(words))

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    chats = []
    for number in range(RECORDS // share):
        messages = [{"role": "user", "content": f"{number}: {text(drawn.randrange(40, 160))}"}]
        answer = {"role": "assistant", "content": text(drawn.randrange(40, 200))}
        body = {"id": f"c{number}", "model": "m", "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]}
        chats.append({"timestamp": "2026-06-01T00:00:00Z", "request": {"model": "m", "messages": messages}, "response": body})
    write("chats.jsonl", chats)
    pairs = []
    for number in range(PAIRS // share):
        prompt = f"pair {number}: {text(drawn.randrange(40, 120))}"
        sides = {side: text(drawn.randrange(40, 160)) for side in ("chosen", "rejected")}
        pairs.append({"prompt": prompt, **sides})
    write("pairs.jsonl", pairs)
    sums = [(drawn.randrange(99), drawn.randrange(99)) for _ in range(TASKS)]
    write("sums.jsonl", [{"question": f"What is {a} plus {b}?", "answer": str(a + b)} for a, b in sums])


if __name__ == "__main__":
    main()
