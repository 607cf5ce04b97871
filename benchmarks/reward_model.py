"""Reward models on real preferences: held-out accuracy against trivial rules, and the time of a training against TRL's.

    python -m benchmarks.reward_model --shared ../shared --peers VENV      # about 40 minutes on 2 idle cores
    python -m benchmarks.reward_model --shared ../shared                   # without TRL, and it says so
    python -m benchmarks.reward_model --shared ../shared --quick           # one seed, few steps, no TRL

Accuracy: the house model (10M parameters) is trained on pairs of oasst (ranked by people) and of tau-bench airline (by the
outcome of the run; benchmarks/reward_pairs.py), one pass each, by operation `reward_model` itself. A seed draws the split by
session, the head and the order of rows. Intervals are Student's t over three seeds; a rule's distance is of the same split.
airline has about 35 pairs to learn and 13 to measure, so its interval says little.

Time: seconds that a step takes, for 1,000 pairs, of the steps after the first two. TRL's RewardTrainer (VENV holds it: trl
1.16) gets the same token ids, 16 pairs a step, and the fastest of its settings: rows of a pass, float32 or bfloat16,
checkpointing off.

Last line: {oasst, airline: {accuracy, longer_wins, most_training_pairs, above_longer, ...}, seconds_per_1000_pairs,
speed_ratio}.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.record import record
from benchmarks.reward_pairs import outcome_pairs, ranked_pairs, write_pairs

SEEDS, THREADS, PAIRS_PER_STEP, COLD_STEPS = (0, 1, 2), 2, 16, 2
SETTINGS = {"epochs": 1, "learning_rate": 1e-4, "tokens_per_step": 8_192, "max_length": 2_048}
SOURCES: dict[str, Callable[[Path], list[dict[str, Any]]]] = {"oasst": ranked_pairs, "airline": outcome_pairs}
MEASURED = {
    "accuracy": "held_out_accuracy",
    "longer_wins": "longer_wins_accuracy",
    "most_training_pairs": "most_training_pairs_accuracy",
    "above_longer": "above_longer",
    "length_matched_accuracy": "score_length_matched_accuracy",
    "spearman_with_length": "score_spearman",
    "ece": "score_ece",
    "calibrated_ece": "score_calibrated_ece",
}
"""Figure -> metric of the operation."""
SEARCHED = [(rows, bf16) for rows in (1, 4, 8, 16) for bf16 in (False, True)]
SEARCH_STEPS, STEPS = 4, 10
PROJECT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="folder with data/ and models/house")
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL 1.16; left out: TRL is skipped")
    parser.add_argument("--quick", action="store_true", help="one seed and few steps, without TRL; nothing is recorded")
    given = parser.parse_args()
    shared = given.shared.resolve()
    figures: dict[str, Any] = {"seconds_per_1000_pairs": {}, "settings": SETTINGS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source, pairs in SOURCES.items():
            rows, runs = pairs(shared), []
            for seed in SEEDS[:1] if given.quick else SEEDS:
                counts = write_pairs(rows, folder / f"{source}-{seed}", seed)
                changes = {"steps": 3, "epochs": None} if given.quick else {}
                runs.append(_trained(folder, shared, f"{source}-{seed}", seed, changes))
                print(f"{source}, seed {seed}: {counts}, accuracy {runs[-1]['metrics']['held_out_accuracy']:.3f}", flush=True)
            figures[source] = _over_seeds([run["metrics"] for run in runs])
            figures["seconds_per_1000_pairs"][source] = {"ours": _of_1000(runs[0])}
            if given.peers is not None and not given.quick:
                _against_trl(folder, shared, given.peers.resolve() / "bin/python", source, figures)
    if given.peers is None or given.quick:
        print("TRL is left out: --peers names an environment that holds it", flush=True)
    record("reward_model", figures, keep=not given.quick)


def _trained(folder: Path, shared: Path, name: str, seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """One training in a process of its own: its metrics, its steps, and the token ids of its pairs."""
    code = (
        "import json, sys; from importlib import import_module; from pathlib import Path; import torch\n"
        "from model_ops.jobs import Job, Progress\n"
        "given = json.loads(sys.argv[1]); torch.set_num_threads(given['threads']); job = Job(**given)\n"
        "found = import_module('model_ops.operations.reward_model').run(job, Progress())\n"
        "print(json.dumps(found))"
    )
    output = folder / f"{name}-model"
    settings = {**SETTINGS, "seed": seed, "checkpoint_every": 1_000_000, **changes}
    job = {
        "operation": "reward_model",
        "output": str(output),
        "inputs": {"model": str(shared / "models/house"), "dataset": str(folder / name)},
        "settings": {key: value for key, value in settings.items() if value is not None},
        "threads": THREADS,
    }
    said = _said([sys.executable, "-c", code, json.dumps(job)])
    return {
        "metrics": json.loads(said),
        "steps": [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()],
    }


def _of_1000(run: dict[str, Any]) -> float:
    """Seconds for 1,000 pairs: of a token, over the steps after the first ones, times the tokens of a pair."""
    warm = run["steps"][COLD_STEPS:] or run["steps"]
    seconds = sum(step["tokens"] / step["tokens_per_second"] for step in warm) / sum(step["tokens"] for step in warm)
    return round(1_000 * seconds * run["metrics"]["row_tokens"] / run["metrics"]["pairs"], 1)


def _over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"held_out_pairs": [run["held_out_pairs"] for run in runs]}
    for name, metric in MEASURED.items():
        values = [float(run[metric]) for run in runs if metric in run]
        found[name] = _interval(values) if values else None
    return found


def _interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean and 95 % interval by Student's t."""
    from model_ops.drafting import student

    if len(values) < 2:
        return {"mean": round(values[0], 4)}
    reach = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    mean = fmean(values)
    return {
        "mean": round(mean, 4),
        "low": round(mean - reach, 4),
        "high": round(mean + reach, 4),
        "seeds": [round(v, 4) for v in values],
    }


def _against_trl(folder: Path, shared: Path, python: Path, source: str, figures: dict[str, Any]) -> None:
    """Searches TRL's settings with a few steps, and measures the fastest with more."""
    rows = _as_token_ids(folder / f"{source}-0", shared / "models/house", folder / f"{source}.jsonl")
    searched = []
    for size, bf16 in SEARCHED:
        try:
            searched.append(
                {"rows_per_pass": size, "bf16": bf16, **_trl(folder, shared, python, rows, size, bf16, SEARCH_STEPS)}
            )
        except SystemExit as error:  # 16 long pairs in a pass need more than 24 GB
            print(f"{source}: TRL with {size} pairs in a pass, bf16 {bf16}: {error}", flush=True)
    best = min(searched, key=lambda each: each["seconds_per_1000_pairs"])
    final = _trl(folder, shared, python, rows, best["rows_per_pass"], best["bf16"], STEPS)
    ours = figures["seconds_per_1000_pairs"][source]
    ours["trl"] = final["seconds_per_1000_pairs"]
    figures.setdefault("speed_ratio", {})[source] = round(ours["trl"] / ours["ours"], 2)
    figures.setdefault("trl", {})[source] = {"best": best, "searched": searched, "versions": final["versions"]}


def _as_token_ids(dataset: Path, model: Path, file: Path) -> Path:
    """The training pairs as the token ids that the reward model is trained on."""
    from model_ops.models import load_tokenizer
    from model_ops.preferences import read_preferences

    length = int(SETTINGS["max_length"])
    with file.open("w") as lines:
        for pair in read_preferences(dataset, "train", load_tokenizer(model), length, "pairs", True, length).documents:
            trunk, branch = pair.segments
            chosen, rest = pair.input_ids[: trunk.length].tolist(), pair.input_ids[trunk.length :].tolist()
            lines.write(json.dumps({"chosen_ids": chosen, "rejected_ids": [*chosen[: branch.at], *rest], "margin": 0.0}) + "\n")
    return file


def _trl(folder: Path, shared: Path, python: Path, rows: Path, size: int, bf16: bool, steps: int) -> dict[str, Any]:
    job, result = folder / "trl.json", folder / "trl-result.json"
    told = {
        "model": str(shared / "models/house"),
        "rows": str(rows),
        "output": str(folder / "trl"),
        "learning_rate": SETTINGS["learning_rate"],
        "rows_per_pass": size,
        "passes": PAIRS_PER_STEP // size,
        "bf16": bf16,
        "checkpointing": False,
        "threads": THREADS,
        "steps": steps,
    }
    job.write_text(json.dumps(told))
    _said([str(python), str(Path(__file__).with_name("trl_reward_peer.py")), str(job), str(result)], PYTHONPATH="")
    found = json.loads(result.read_text())
    warm = found["seconds"][COLD_STEPS:]
    return {
        "seconds_per_1000_pairs": round(1_000 * fmean(warm) / PAIRS_PER_STEP, 1),
        "peak_mb": round(found["peak_mb"]),
        "versions": found["versions"],
    }


def _said(command: list[str], **changes: str) -> str:
    """The last line that a process wrote. Raises SystemExit with its last words where it failed."""
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(THREADS), **changes}
    )
    if done.returncode:
        raise SystemExit(
            f"{Path(command[0]).name} ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        )
    return (done.stdout.splitlines() or [""])[-1]


if __name__ == "__main__":
    main()
