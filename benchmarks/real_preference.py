"""What preferences make of SmolLM2-135M-Instruct: pairs of its own answers by a verifier, beside fine-tuning on what is chosen.

    python -m benchmarks.real_preference --models DIR
    python -m benchmarks.real_preference --models DIR --quick    # sft and dpo, one seed, two steps; nothing is recorded

Task: benchmarks.instructions. The model answers PROMPTS prompts ANSWERS times at temperature 1; the best answer that ended
against the worst is a pair, if their grades differ. Every method has adapters and the documented defaults of its stage; the
semi-online one makes its pairs of the same prompts while it trains. A seed draws prompts, pairs and order.

start       share of greedy answers that follow the instruction, to HELD_OUT prompts about other things in other words
success     the same after sft (the chosen sides), dpo, apo_zero, kto and semi_online (DPO)
over_sft    success less that of sft, by seed
pairs, seconds, tokens   of the first seed
Brackets: mean and 95 % interval over seeds.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.instructions import MAX_NEW_TOKENS, Drawn, draw, followed, grade
from benchmarks.real_models import SMALL, THREADS, arguments, asked, interval, model_of, said, sample, train, write
from benchmarks.record import record
from model_ops.graders import GradedAnswer
from model_ops.preferences.sampled_rounds import best_and_worst

SEEDS = (0, 1, 2)
PROMPTS, ANSWERS, HELD_OUT = 240, 6, 240
ONLINE = {"prompts": "rl_prompts", "prompts_per_step": 8, "answers": ANSWERS, "sync_steps": 5, "grader": "verifier",
    "max_new_tokens": MAX_NEW_TOKENS}  # fmt: skip
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "sft": ("sft", {}),
    "dpo": ("preference", {"loss": "dpo"}),
    "apo_zero": ("preference", {"loss": "apo_zero"}),
    "kto": ("preference", {"loss": "kto"}),
    "semi_online": ("preference", {"loss": "dpo", "on_policy": ONLINE}),
}
"""Operation and settings, beside the adapters."""


def drawn_for(seed: int) -> Drawn:
    return draw(PROMPTS, HELD_OUT, 5, seed)


def write_rows(model: Path, drawn: Drawn, folder: Path, seed: int, prompts: int) -> int:
    """Writes pairs, their chosen sides, and the prompts; returns the number of pairs."""
    asked_of = drawn.prompts[:prompts]
    each_asked = [asked(each["question"]) for each in asked_of for _ in range(ANSWERS)]
    sampled = sample(model, each_asked, MAX_NEW_TOKENS, seed=seed)
    pairs, chosen = [], []
    for place, each in enumerate(asked_of):
        own, ended = zip(*sampled[place * ANSWERS : (place + 1) * ANSWERS], strict=True)
        graded = [GradedAnswer(text, {"content": text}) for text in own]
        sides = best_and_worst([grade(each["verifier"], text) for text in own], graded, ended, 0.0)
        if isinstance(sides, str):
            continue
        best, worst = ([said(own[side])] for side in sides)
        named = {"row_id": each["row_id"]}
        question = asked(each["question"])
        pairs.append({**named, "prompt": json.dumps(question), "chosen": json.dumps(best), "rejected": json.dumps(worst)})
        chosen.append({**named, "messages": json.dumps([*question, *best])})
    write(pairs, folder / "pairs")
    write(chosen, folder / "chosen")
    rows = [
        {"row_id": each["row_id"], "messages": json.dumps(asked(each["question"])), "verifier": json.dumps(each["verifier"])}
        for each in asked_of
    ]
    write(rows, folder / "prompts")
    return len(pairs)


def learn(model: Path, folder: Path, method: str, seed: int, quick: bool) -> tuple[Path, dict[str, Any]]:
    operation, own = METHODS[method]
    online = "on_policy" in own
    inputs = {"model": model, "prompts" if online else "dataset": folder / ("prompts" if online else "pairs")}
    if method == "sft":
        inputs["dataset"] = folder / "chosen"
    settings = {"method": "lora", "seed": seed, **own, **({"steps": 2} if quick else {})}
    output = folder / method
    return output, train(operation, inputs, output, settings)


def main() -> None:
    given = arguments("real_preference", __doc__).parse_args()
    methods = list(METHODS)[:2] if given.quick else list(METHODS)
    model, runs, figures = model_of(given.models, SMALL), [], dict[str, Any]()
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(prefix="millrace-real-preference-") as name:
        for seed in SEEDS[:1] if given.quick else SEEDS:
            drawn, folder = drawn_for(seed), Path(name) / f"{seed}"
            held_out = drawn.held_out[:24] if given.quick else drawn.held_out
            pairs = write_rows(model, drawn, folder, seed, 24 if given.quick else PROMPTS)
            run = {"start": followed(model, held_out)}
            for method in methods:
                output, learnt = learn(model, folder, method, seed, given.quick)
                run[method] = followed(output, held_out)
                if seed == SEEDS[0]:
                    took = {key: round(sum(step[key] for step in learnt["steps"])) for key in ("seconds", "tokens")}
                    figures[method] = {"steps": len(learnt["steps"]), **took}
            runs.append({**run, "pairs": pairs})
            print(json.dumps({"seed": seed, **runs[-1]}), flush=True)
    figures = {"start": interval([run["start"] for run in runs]), "training": figures, "by_seed": runs, "threads": THREADS}
    figures["success"] = {method: interval([run[method] for run in runs]) for method in methods}
    figures["over_sft"] = {
        method: interval([run[method] - run["sft"] for run in runs]) for method in methods if method != "sft"
    }
    record("real_preference", figures, keep=not given.quick)


if __name__ == "__main__":
    main()
