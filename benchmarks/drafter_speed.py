"""What a drafter does for the speed of a real vLLM: tokens/s and latency with and without it, and where it pays.

    python -m benchmarks.drafter_speed                     # about 30 minutes on 2 cores, alone on the machine
    python -m benchmarks.drafter_speed --quick             # 30 steps of training, one pair of servers, few prompts
    python -m benchmarks.drafter_speed --drafter DIR       # a drafter of models/house that exists already

Targets: ../shared/models/house (10M), and `wide`, the same model with wider MLPs whose added columns have random weights on
the way in and zeros on the way out: it says what the house model says, its states are the house model's, and a forward costs
what its size costs. So one drafter fits both, and its acceptance is a trained one's. Held-out prompts of three workloads, as
many tokens each (ignore_eos), K = 5, closed loop at concurrency 1 and 8, drafts sampled where the temperature is above 0.

rows: for each target, temperature and concurrency: tokens/s and p50, p90, p99 latency (seconds, a whole answer) without and
with the drafter; ratio = tokens/s with over without (below 1: drafting costs more than it gives); latency_ratio = latency
without over with. The arithmetic: a round (K draft steps and the verification) takes tau / ratio times as long as the plain
step it replaces. tau_needed is that number: drafting pays iff the acceptance length is above it. draft_step_cost =
(tau_needed - 1) / K: a draft step, its share of the verification's extra tokens included, over a target forward.
disturbed: tau_needed is below 1, which no drafter can do: other work ran on the machine, and the row says nothing.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.drafter_served import MAX_MODEL_LEN, SAMPLED, copied, serving_arguments, trained
from benchmarks.house import House, K, mixed
from benchmarks.record import record
from benchmarks.vllm_environment import vllm_python
from benchmarks.vllm_server import vllm_server
from model_ops.completions.served import ServedMeasure, ServedModel, measure_served

CONCURRENCIES = (1, 8)
WIDE_MLP = 32_768
"""10 layers x 3 x 256 x 32,768: 252M parameters."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    serving_arguments(parser)
    given = parser.parse_args()
    python = vllm_python(given.vllm)
    with tempfile.TemporaryDirectory(prefix="millrace-speed-") as made:
        folder = Path(made)
        house = House(given.shared, folder)
        shutil.copytree(house.target, folder / "house")
        if given.drafter is None:
            trained(folder, folder / "house", house.answers(rows=400 if given.quick else None), 30 if given.quick else None)
        else:
            copied(given.drafter, folder / "drafter", folder / "house")
        widen(folder / "house", folder / "wide")
        rows = []
        for target in ("wide",) if given.quick else ("house", "wide"):
            rows += pair(folder, python, target, house.prompts, given.quick)
            print(json.dumps(rows[-1]), flush=True)
        record("drafter_speed", {"rows": rows, "k": K}, keep=not given.quick)


def pair(folder: Path, python: Path, target: str, prompts: dict[str, list], quick: bool) -> list[dict[str, Any]]:
    """One server without, then one with the drafter; the same requests to both."""
    counts = {1: 4, 8: 8} if quick else {1: 12, 8: 48}
    max_tokens, temperatures = (24, (0,)) if quick else (128, (0, 1))
    config = json.dumps({"method": "eagle3", "model": "drafter", "num_speculative_tokens": K, **SAMPLED})
    runs: dict[str, dict[tuple[int, int], ServedMeasure]] = {}
    for name, words in {"without": (), "with": ("--speculative-config", config)}.items():
        with vllm_server(python, target, *words, "--max-model-len", str(MAX_MODEL_LEN), folder=folder) as server:
            runs[name] = {}
            _warm(server, prompts)
            for temperature in temperatures:
                for concurrency in CONCURRENCIES:
                    asked = [prompt.ids for prompt in mixed(prompts, counts[concurrency])]
                    runs[name][temperature, concurrency] = measure_served(
                        server,
                        asked,
                        concurrency=concurrency,
                        max_tokens=max_tokens,
                        temperature=temperature,
                        seed=0,
                        ignore_eos=True,
                    )
    return [row(target, *key, runs["without"][key], runs["with"][key]) for key in runs["without"]]


def row(target: str, temperature: int, concurrency: int, without: ServedMeasure, with_it: ServedMeasure) -> dict[str, Any]:
    ratio = with_it.tokens_per_second / without.tokens_per_second
    tau = with_it.acceptance.tau
    needed = tau / ratio
    return {
        "target": target,
        "temperature": temperature,
        "concurrency": concurrency,
        "ratio": round(ratio, 3),
        "tokens_per_second": {"without": round(without.tokens_per_second, 1), "with": round(with_it.tokens_per_second, 1)},
        "latency_s": {"without": _rounded(without.latency_s), "with": _rounded(with_it.latency_s)},
        "latency_ratio": {name: round(without.latency_s[name] / with_it.latency_s[name], 3) for name in without.latency_s},
        "tau": round(tau, 3),
        "tau_needed": round(needed, 3),
        "pays": tau > needed,
        "disturbed": needed < 1,
        "draft_step_cost": round((needed - 1) / K, 3),
        "requests": len(with_it.replies),
        "same_greedy_text": None
        if temperature
        else sum(one.text == other.text for one, other in zip(without.replies, with_it.replies, strict=True))
        / len(with_it.replies),
        "sample": with_it.replies[0].text[:160],
    }


def widen(source: Path, place: Path) -> None:
    """The model in `source` with MLPs of WIDE_MLP, which computes the same function; see the head of this file."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, place)
    config = json.loads((place / "config.json").read_text())
    added = WIDE_MLP - config["intermediate_size"]
    generator = torch.Generator().manual_seed(0)
    weights = load_file(place / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            more = torch.randn(added, weight.shape[1], generator=generator).mul_(weight.float().std()).to(weight.dtype)
            weights[name] = torch.cat((weight, more))
        elif name.endswith("down_proj.weight"):
            weights[name] = torch.cat((weight, weight.new_zeros(weight.shape[0], added)), dim=1)
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    (place / "config.json").write_text(json.dumps({**config, "intermediate_size": WIDE_MLP}))


def _warm(server: ServedModel, prompts: dict[str, list]) -> None:
    measure_served(server, [prompt.ids for prompt in mixed(prompts, 8)], concurrency=8, max_tokens=16, ignore_eos=True)


def _rounded(latency: dict[str, float]) -> dict[str, float]:
    return {name: round(seconds, 4) for name, seconds in latency.items()}


if __name__ == "__main__":
    main()
