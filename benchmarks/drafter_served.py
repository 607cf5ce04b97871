"""A drafter of this project in a real vLLM: it loads in both forms, says the same, and accepts what the exact decoder says.

    python -m benchmarks.drafter_served                    # about 15 minutes on 2 cores, training included
    python -m benchmarks.drafter_served --quick            # 30 steps, 24 prompts x 32 tokens, the midlayer form alone
    python -m benchmarks.drafter_served --drafter DIR      # a drafter of models/house that exists already
    python -m benchmarks.drafter_served --vllm VENV        # an environment made by benchmarks.vllm_environment

Target ../shared/models/house, K = 5, chain; held-out prompts of its three workloads (`benchmarks.house`), token ids in and
out. Servers: the target alone; the target with `--speculative-config` naming the midlayer directory; and the speculators
directory as the only model (`vllm serve DIR/speculators`). Drafts are sampled (draft_sample_method probabilistic).

greedy_identical: whether every greedy text is the same with and without the drafter, in every form. Where one differs,
`first_differences` tells at which token, and how far apart the target's own logits of the two tokens are there (float32
weights and states): below `epsilon` they are one value to a server that computes in bfloat16.
gap_t0, gap_t1: the server's acceptance length (1 + accepted / drafts of its Prometheus counters) over the exact decoder's, less
1, of the form where it is largest. At temperature 1 both are samples: the decoder's is the mean of three seeds, the server's of
as many passes, and the gap has a standard error, from how much the same prompt's answers differ from seed to seed.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.house import OPTIMIZER, House, K, mixed
from benchmarks.one_case import PROJECT, one_case
from benchmarks.record import record
from benchmarks.vllm_environment import HOME, vllm_python
from benchmarks.vllm_server import vllm_server
from model_ops.completions.served import ServedMeasure, measure_served

THREADS, SEEDS, CONCURRENCY = 2, 3, 16
MAX_MODEL_LEN = 2_048
QUICK_PROMPT = 300
"""Tokens: a quick run's prompts are shorter."""
EPSILON = 0.25
"""Logits; two steps of bfloat16 between 16 and 32, where this model's largest logits lie."""
SETTINGS = {
    "num_speculative_tokens": K,
    "loss": "lk_lambda",
    **OPTIMIZER,
    "tokens_per_step": 2_048,
    "max_length": 2_048,
    "ttt_steps": K,
    "step_decay": 1.0,
}
SAMPLED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    serving_arguments(parser)
    parser.add_argument("--offline", help="a case, as JSON: what the exact decoder says")
    given = parser.parse_args()
    if given.offline:
        print(json.dumps(offline(json.loads(given.offline))))
        return
    count, max_tokens, steps = (24, 32, 30) if given.quick else (200, 128, None)
    python = vllm_python(given.vllm)
    with tempfile.TemporaryDirectory(prefix="millrace-served-") as made:
        folder = Path(made)
        house = House(given.shared, folder)
        target = folder / "target"  # next to the drafter, whose second layout names it by a relative path
        shutil.copytree(house.target, target)
        if given.drafter is None:
            trained(folder, target, house.answers(rows=400 if given.quick else None), steps)
        else:
            copied(given.drafter, folder / "drafter", target)
        prompts = mixed(
            {
                name: [prompt for prompt in found if len(prompt.ids) < QUICK_PROMPT or not given.quick]
                for name, found in house.prompts.items()
            },
            count,
        )
        (folder / "prompts.json").write_text(json.dumps([[prompt.row_id, prompt.ids] for prompt in prompts]))
        case = {"folder": str(folder), "max_tokens": max_tokens, "seeds": 1 if given.quick else SEEDS}
        decoded = one_case("drafter_served", "--offline", case, OMP_NUM_THREADS=str(THREADS))
        record(
            "drafter_served",
            measured(folder, python, [prompt.ids for prompt in prompts], max_tokens, decoded, given.quick),
            keep=not given.quick,
        )


def serving_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of benchmarks that serve a drafter."""
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--drafter", type=Path, help="a drafter's directory; one is trained where left out")
    parser.add_argument("--vllm", type=Path, default=HOME, help="vLLM's environment; made there where it is missing")


def measured(
    folder: Path, python: Path, prompts: list[list[int]], max_tokens: int, decoded: dict[str, Any], quick: bool
) -> dict[str, Any]:
    """Serves the prompts in every form, and compares."""
    options = ["--max-model-len", str(MAX_MODEL_LEN)]
    options_of_both = {"num_speculative_tokens": K, **SAMPLED}
    beside = json.dumps({"method": "eagle3", "model": "drafter", **options_of_both})
    started = {
        "midlayer": ("target", "--speculative-config", beside),
        "speculators": ("drafter/speculators", "--speculative-config", json.dumps(options_of_both)),
    }
    if quick:
        del started["speculators"]
    asked = {"concurrency": CONCURRENCY, "max_tokens": max_tokens}
    passes = 1 if quick else SEEDS
    with vllm_server(python, "target", *options, folder=folder) as server:
        alone = measure_served(server, prompts, temperature=0, **asked)
    forms, differences = {}, []
    for form, words in started.items():
        with vllm_server(python, *words, *options, folder=folder) as server:
            greedy = measure_served(server, prompts, temperature=0, **asked)
            sampled = [measure_served(server, prompts, temperature=1, seed=1_000 * number, **asked) for number in range(passes)]
        differing = [
            place
            for place, (one, other) in enumerate(zip(alone.replies, greedy.replies, strict=True))
            if one.token_ids != other.token_ids
        ]
        differences += [
            {
                "form": form,
                **first_difference(folder, prompts[place], alone.replies[place].token_ids, greedy.replies[place].token_ids),
            }
            for place in differing
        ]
        forms[form] = {
            "loads": True,
            "greedy_identical_share": 1 - len(differing) / len(prompts),
            "t0": against(greedy, 1, decoded["t0"]),
            "t1": against(sampled, passes, decoded["t1"]),
            "sample_t0": greedy.replies[0].text[:200],
            "sample_t1": sampled[0].replies[0].text[:200],
        }
    return {
        "greedy_identical": not differences,
        "gap_t0": max((form["t0"]["gap"] for form in forms.values()), key=abs),
        "gap_t1": max((form["t1"]["gap"] for form in forms.values()), key=abs),
        "forms": forms,
        "first_differences": differences,
        "epsilon": EPSILON,
        "differences_within_epsilon": all(found["logit_gap"] < EPSILON for found in differences),
        "decoder": decoded,
        "prompts": len(prompts),
        "max_tokens": max_tokens,
        "k": K,
    }


def against(runs: ServedMeasure | list[ServedMeasure], passes: int, decoded: dict[str, Any]) -> dict[str, Any]:
    """The server's acceptance length over all passes, and the decoder's."""
    counted = [run.acceptance for run in ([runs] if isinstance(runs, ServedMeasure) else runs)]
    drafts, accepted = sum(found.drafts for found in counted), sum(found.accepted for found in counted)
    positions = [sum(each) / drafts for each in zip(*(found.accepted_at for found in counted), strict=True)]
    tau = 1 + accepted / drafts
    return {
        "tau": tau,
        "gap": tau / decoded["tau"] - 1,
        "drafts": drafts,
        "passes": passes,
        "accepted_by_position": [round(share, 4) for share in positions],
        # the server's passes vary as the decoder's seeds do
        "gap_standard_error": decoded["standard_error"] and 2**0.5 * decoded["standard_error"] / decoded["tau"],
    }


def trained(folder: Path, target: Path, answers: Path, steps: int | None) -> None:
    """A drafter in folder/drafter, trained by the project's own worker."""
    job = folder / "speculator.json"
    job.write_text(
        json.dumps(
            {
                "operation": "speculator",
                "output": str(folder / "drafter"),
                "threads": THREADS,
                "inputs": {"target": str(target), "dataset": str(answers)},
                "settings": {**SETTINGS, **({"steps": steps} if steps else {"epochs": 2.0})},
            }
        )
    )
    done = subprocess.run([sys.executable, "-m", "model_ops.worker", str(job)], cwd=PROJECT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the drafter was not trained: {done.stdout.splitlines()[-1] if done.stdout else done.stderr[-500:]}")


def copied(drafter: Path, place: Path, target: Path) -> None:
    """A given drafter, whose twin is made to name the target as it is found from here."""
    shutil.copytree(drafter, place)
    path = place / "speculators" / "config.json"
    config = json.loads(path.read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = target.name
    path.write_text(json.dumps(config))


def offline(case: dict[str, Any]) -> dict[str, Any]:
    """The exact decoder's acceptance at both temperatures, over every seed."""
    import numpy as np
    import torch

    from model_ops.decoding.decode_loop import decode
    from model_ops.decoding.target import load_runner
    from model_ops.drafting.acceptance import tau_of
    from model_ops.models.model_directory import end_of_text_ids
    from model_ops.speculators.factory import load_draft_model

    torch.set_num_threads(THREADS)
    folder = Path(case["folder"])
    row_ids, prompts = zip(*json.loads((folder / "prompts.json").read_text()), strict=True)
    runner = load_runner(folder / "target")
    model = load_draft_model(folder / "drafter", runner.dtype)
    found = {}
    for temperature in (0, 1):
        seeds = case["seeds"] if temperature else 1
        drafts, accepted = np.zeros((seeds, len(prompts))), np.zeros((seeds, len(prompts)))
        for seed in range(seeds):
            answers = decode(
                runner,
                prompts,
                row_ids,
                eos_ids=end_of_text_ids(folder / "target"),
                temperature=temperature,
                max_new_tokens=case["max_tokens"],
                drafter=model.drafter(),
                num_speculative_tokens=K,
                seed=seed,
            )
            drafts[seed], accepted[seed] = zip(*((answer.drafts, answer.accepted) for answer in answers), strict=True)
        tau = tau_of(drafts.sum(), accepted.sum())
        error = None  # of one seed nothing can be said
        if seeds > 1:
            residuals = accepted - (tau - 1) * drafts
            error = float((residuals.var(axis=0, ddof=1).sum() / seeds) ** 0.5 / drafts.sum(axis=1).mean())
        found[f"t{temperature}"] = {"tau": tau, "drafts": int(drafts.sum()), "seeds": seeds, "standard_error": error}
    return found


def first_difference(folder: Path, prompt: list[int], one: list[int], other: list[int]) -> dict[str, Any]:
    """Where two greedy answers part, and the difference of the target's logits of the two tokens, in float32."""
    import torch

    from model_ops.models.model_directory import load_model

    place = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    if place == min(len(one), len(other)):  # one is the other's beginning: not a matter of logits
        return {"token": place, "logit_gap": float("inf")}
    with torch.no_grad():
        logits = load_model(folder / "target", attention="sdpa")(torch.tensor([[*prompt, *one[:place]]])).logits[0, -1]
    return {
        "token": place,
        "logit_gap": float(abs(logits[one[place]] - logits[other[place]])),
        "largest_logit": float(logits.max()),
    }


if __name__ == "__main__":
    main()
