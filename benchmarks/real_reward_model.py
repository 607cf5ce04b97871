"""Whether a reward model of SmolLM2-135M-Instruct judges answers better than their length, on pairs that people ranked (oasst).

    python -m benchmarks.real_reward_model --models DIR --shared DIR           # SHARED/data/oasst_en_100_tree.jsonl
    python -m benchmarks.real_reward_model --models DIR --shared DIR --quick   # one seed, two steps; nothing is recorded

Pairs: of each prompt in a tree, the answer ranked first against each other one; margin is the distance of the ranks, as a share
of the largest at that prompt. A tree is a session. A seed draws the split by session (TEST, VALIDATION), head and order. The
training has the documented defaults of operation `reward_model`.

accuracy        share of held-out pairs in which the chosen answer has the higher score
longer_wins     the same of the rule that the longer answer is better; above_longer: accuracy less that
length_matched  mean accuracy of the pairs whose chosen answer is the longer and of those where it is the shorter
spearman        of score and length
ece, calibrated_ece   calibration error before and after a temperature that VALIDATION gives
may_grade       seeds whose gate opened, of how many; pairs: of training and held out by seed
seconds         of the training by the clock; peak_mb its largest resident size
Brackets: mean and 95 % interval over seeds.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.real_models import PROJECT, SMALL, THREADS, Message, arguments, interval, model_of, train, write
from benchmarks.record import record
from model_ops.rewards import RewardRecord

SEEDS = (0, 1, 2)
TEST, VALIDATION = 0.3, 0.1
ROLES = {"prompter": "user", "assistant": "assistant"}
Pair = dict[str, Any]


def ranked_pairs(shared: Path) -> list[Pair]:
    trees = map(json.loads, (shared / "data/oasst_en_100_tree.jsonl").read_text().splitlines())
    return [pair for tree in trees for pair in _below(tree["prompt"], [], tree["message_tree_id"])]


def _below(node: dict[str, Any], before: list[Message], tree: str) -> Iterator[Pair]:
    messages = [*before, _message(node)]
    ranked = sorted((reply for reply in node["replies"] if reply.get("rank") is not None), key=lambda reply: reply["rank"])
    for worse in ranked[1:] if node["role"] == "prompter" else []:
        yield {
            "row_id": worse["message_id"],
            "session_id": tree,
            "prompt": json.dumps(messages),
            "chosen": json.dumps([_message(ranked[0])]),
            "rejected": json.dumps([_message(worse)]),
            "margin": (worse["rank"] - ranked[0]["rank"]) / (ranked[-1]["rank"] - ranked[0]["rank"]),
        }
    for reply in node["replies"]:
        yield from _below(reply, messages, tree)


def _message(node: dict[str, Any]) -> Message:
    return {"role": ROLES[node["role"]], "content": node["text"]}


def parts(pairs: list[Pair], seed: int) -> dict[str, list[Pair]]:
    """Split -> pairs, whole sessions at random."""
    found: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    for pair in pairs:
        place = int(hashlib.sha256(f"{seed}:{pair['session_id']}".encode()).hexdigest()[:8], 16) / 2**32
        found["test" if place < TEST else "validation" if place < TEST + VALIDATION else "train"].append(pair)
    return found


def measured(model: Path, pairs: list[Pair], folder: Path, seed: int, quick: bool) -> dict[str, Any]:
    """What a training makes of the pairs of a seed."""
    rows = parts(pairs, seed)
    for split, of_split in rows.items():
        write(of_split[:24] if quick else of_split, folder / "pairs", split)
    settings = {"seed": seed, **({"steps": 2} if quick else {})}
    run = train("reward_model", {"model": model, "dataset": folder / "pairs"}, folder / "reward", settings)
    gate = RewardRecord.read(folder / "reward")
    of, of_all = gate.held_out, gate.held_out["accuracy"]["all"]
    return {
        "accuracy": of_all["value"],
        "longer_wins": of_all["longer_wins"],
        "above_longer": of["above_longer"]["value"],
        "length_matched": of["length_matched_accuracy"],
        **{name: of[name] for name in ("spearman", "ece", "calibrated_ece")},
        "may_grade": gate.may_grade,
        "pairs": [len(rows["train"]), of_all["pairs"]],
        "steps": len(run["steps"]),
        "seconds": round(sum(step["seconds"] for step in run["steps"])),
        "peak_mb": round(run["peak_mb"]),
    }


def main() -> None:
    parser = arguments("real_reward_model", __doc__)
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="folder with data/")
    given = parser.parse_args()
    model, pairs, runs = model_of(given.models, SMALL), ranked_pairs(given.shared), []
    with tempfile.TemporaryDirectory(prefix="millrace-real-reward-") as name:
        for seed in SEEDS[:1] if given.quick else SEEDS:
            runs.append(measured(model, pairs, Path(name) / f"{seed}", seed, given.quick))
            print(json.dumps({"seed": seed, **runs[-1]}), flush=True)
    counts = {"may_grade", "pairs", "steps"}
    figures = {key: interval([run[key] for run in runs]) for key in runs[0] if key not in counts}
    figures |= {"may_grade": [sum(run["may_grade"] for run in runs), len(runs)], "by_seed": runs, "threads": THREADS}
    record("real_reward_model", figures, keep=not given.quick)


if __name__ == "__main__":
    main()
