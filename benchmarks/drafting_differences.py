"""Greedy answers with and without a drafter, of int8 and of float weights: where they part, and whether the two tokens tie.

    python -m benchmarks.drafting_differences --drafter DIR     # about 10 minutes on 2 cores; DIR: a drafter of models/house
    python -m benchmarks.drafting_differences                   # one is trained first (10 minutes more)
    python -m benchmarks.drafting_differences --quick

Target ../shared/models/house as it is (bfloat16) and in W8A8, EAGLE-3 with K = 5, held-out prompts of three workloads. vLLM
answers greedily: alone with 1 and with 16 requests at a time, and with the drafter with 16. Each pair of answers that differs
is judged at its first difference by own layers in float32 (model_ops.evaluation.token_scores): it ties if the two logits
are at most two bfloat16 steps apart.

forms: of each weights, `batch` (alone, 1 against 16 at a time: what the server's own batches change, without any drafting) and
`drafter` (16 at a time, without against with): prompts, identical, ties, others with their logit gap and bound. gaps: logit gap
over bound of every difference, sorted. not_ties: differences with the drafter that are no tie. noise: how far own layers'
logits move when they compute in bfloat16, at those first differences: median and largest absolute change, and of how many
differences that are no tie the noise exceeds the gap.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.drafter_served import CONCURRENCY, MAX_MODEL_LEN, QUICK_PROMPT, copied, serving_arguments, trained
from benchmarks.house import House, K, mixed
from benchmarks.one_case import one_case
from benchmarks.record import record
from benchmarks.vllm_environment import vllm_python
from benchmarks.vllm_server import vllm_server
from model_ops.completions.served import measure_served
from model_ops.jobs import Progress
from model_ops.operations.quantize import quantize_directory
from model_ops.serving.command import speculative_config
from model_ops.speculators.registry import ARCHITECTURES

Told = dict[str, list[list[int]]]
"""Name of a run -> token ids of its answers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    serving_arguments(parser)
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.judge:
        print(json.dumps(judged(json.loads(given.judge))))
        return
    python = vllm_python(given.vllm)
    count, max_tokens = (16, 32) if given.quick else (100, 64)
    with tempfile.TemporaryDirectory(prefix="millrace-differences-") as made:
        folder = Path(made)
        house = House(given.shared, folder)
        shutil.copytree(house.target, folder / "float")
        quantize_directory(folder / "float", folder / "int8", Progress())
        if given.drafter is None:
            trained(folder, folder / "int8", house.answers(rows=400 if given.quick else None), 30 if given.quick else None)
        else:
            copied(given.drafter, folder / "drafter", folder / "int8")
        prompts = [
            each.ids
            for each in mixed(
                {
                    name: [prompt for prompt in found if len(prompt.ids) < QUICK_PROMPT or not given.quick]
                    for name, found in house.prompts.items()
                },
                count,
            )
        ]
        forms = {}
        for weights in ("float", "int8"):
            told = answers(python, folder, weights, prompts, max_tokens)
            case = {"folder": str(folder), "weights": weights, "prompts": prompts, "told": told}
            (folder / "case.json").write_text(json.dumps(case))
            forms[weights] = one_case("drafting_differences", "--judge", {"case": str(folder / "case.json")})
            print(
                weights,
                json.dumps(
                    {name: {key: found[key] for key in ("identical", "ties")} for name, found in forms[weights].items()}
                ),
                flush=True,
            )
        record(
            "drafting_differences",
            {
                "forms": forms,
                "not_ties": sum(len(found["drafter"]["others"]) for found in forms.values()),
                "prompts": len(prompts),
                "max_tokens": max_tokens,
                "k": K,
            },
            keep=not given.quick,
        )


def answers(python: Path, folder: Path, weights: str, prompts: Sequence[list[int]], max_tokens: int) -> Told:
    """Greedy answers of one kind of weights: alone at both concurrencies, and with the drafter."""
    words = ["--max-model-len", str(MAX_MODEL_LEN)]
    config = json.dumps(speculative_config(ARCHITECTURES["eagle3"].serving.vllm, "drafter", K))
    found = {}
    for drafted in (False, True):
        drafts = ["--speculative-config", config] if drafted else []
        with vllm_server(python, weights, *words, *drafts, folder=folder) as server:
            for concurrency in (CONCURRENCY,) if drafted else (1, CONCURRENCY):
                run = measure_served(server, prompts, concurrency=concurrency, max_tokens=max_tokens, temperature=0)
                found["drafted" if drafted else f"alone {concurrency}"] = [reply.token_ids for reply in run.replies]
    return found


def judged(given: Mapping[str, Any]) -> dict[str, Any]:
    """The differences of both pairs of runs, by own layers."""
    import torch

    from model_ops.evaluation.token_scores import first_differences, scored_model

    case = json.loads(Path(given["case"]).read_text())
    directory = Path(case["folder"]) / case["weights"]
    exact = scored_model(directory)
    rounded = scored_model(directory, torch.bfloat16)
    told = {
        name: {str(place): (prompt, ids) for place, (prompt, ids) in enumerate(zip(case["prompts"], each, strict=True))}
        for name, each in case["told"].items()
    }
    pairs = {"batch": ("alone 1", f"alone {CONCURRENCY}"), "drafter": (f"alone {CONCURRENCY}", "drafted")}
    found = {}
    for name, (one, other) in pairs.items():
        differences = first_differences(exact, told[one], told[other])
        in_bfloat16 = {each.row_id: each for each in first_differences(rounded, told[one], told[other])}
        noise = {
            each.row_id: abs((each.signed_gap or 0.0) - (in_bfloat16[each.row_id].signed_gap or 0.0))
            for each in differences
            if each.gap is not None
        }
        others = [each for each in differences if not each.is_tie]
        moved = sorted(noise.values())
        found[name] = {
            "prompts": len(told[one]),
            "identical": len(told[one]) - len(differences),
            "ties": sum(each.is_tie for each in differences),
            "others": [{**asdict(each), "gap": each.gap, "noise": noise.get(each.row_id)} for each in others],
            "gaps": sorted(round(each.gap / each.bound, 3) for each in differences if each.gap is not None),
        }
        if moved:
            more = sum(noise.get(each.row_id, 0) >= (each.gap or 0) for each in others)
            found[name]["noise"] = {"median": moved[len(moved) // 2], "largest": moved[-1], "exceeds_the_gap": more}
    return found


if __name__ == "__main__":
    main()
