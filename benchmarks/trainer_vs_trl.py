"""The trainer against TRL's SFTTrainer at the fastest of its settings: same rows, mask, precision and steps on one machine.

    python -m benchmarks.trainer_vs_trl                    # both models: more than an hour on 2 cores
    python -m benchmarks.trainer_vs_trl --sizes small      # the 10M model: 20 minutes
    python -m benchmarks.trainer_vs_trl --quick            # the small model alone, without the peer
    python -m benchmarks.trainer_vs_trl --peers VENV       # an environment that holds TRL already
    python -m benchmarks.trainer_vs_trl --sizes small --searched FILE    # goes on with the lines of a stopped search
    python -m benchmarks.trainer_vs_trl --sizes large --near-best   # tries only what was fast for the small model

Models: the small chat model (10M, trained), and a Qwen3 shape of 103M (hidden 512, 8 layers, vocabulary 151,936, tied, random
weights). Both trainers take the same rows of GSM8K once, in the same number of steps of 20 rows (at most 4,096 tokens),
bfloat16 products over float32 weights, AdamW with a constant rate, 2 threads. Batches differ, because each side groups rows in
its own way. Both processes get the same environment: sleeping of OpenMP threads, kernel caches of oneDNN, thresholds of glibc's
malloc.

1. Search: every setting in benchmarks/trl_settings.py for a few steps. Two go on: the one with most tokens per second of the
   clock, and the one with most tokens per second of processor time, which other work on the machine disturbs less.
2. Comparison, REPEATS rounds: this trainer with and without checkpointing and TRL's two, one after the other in each round.
   TRL's best is the one with the higher median of tokens per second of the clock.

Figures are medians over rounds, `spread` their smallest and largest value. SIZE is small or large; ratios are ours over TRL's:

- ratio_SIZE, cpu_ratio_SIZE: tokens per second of the clock and of all threads' processor time, without the first WARM_STEPS
  steps, no padding counted. memory_ratio_SIZE: the process's largest resident size. All three from our run whose
  checkpointing is that of TRL's best; cpu_ratio_SIZE against the better of TRL's two by processor time.
- ratio_SIZE_checkpointed, memory_ratio_SIZE_checkpointed: our run with checkpointing, TRL's best as above.
- memory_ratio_SIZE_to_leanest: the smaller of our runs over TRL's smallest peak at any setting, searches included.
- loss_gap: nats per token between both small models on 200 held-out rows, after the same rows.
- rate_share_SIZE: of the bfloat16 matrix rate measured in the same run (2,048-square products, the best of many), what the
  trainer reaches with checkpointing, counting only what is needed: 6 FLOPs per weight of the blocks and token, 6 per weight of
  the head and PREDICTED token, 6 x length^2 x heads x head_dim per document and layer of causal attention. Recomputed blocks
  count nothing.

A size that was left out keeps the figures of the last run that had it; `measured` has the date and the command of each size.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, command, record
from benchmarks.trl_settings import FIRST, TrlSettings, refinements
from model_ops.machine.process import KEPT_BLOCK_BYTES, KEPT_BYTES, KERNELS_KEPT, SPINS

TRL = "trl==1.16.*"
STEPS, SEARCH_STEPS, COMPILING_STEPS = {"small": 10, "large": 6}, {"small": 5, "large": 2}, 4
REPEATS, WARM_STEPS, THREADS, LEARNING_RATE = 3, 2, 2, 1e-4
TOKENS_PER_STEP, MAX_LENGTH, ROWS_PER_STEP, FILLED = 4_096, 2_048, 20, 0.99
LONGEST_SEARCH_S, NEAR_BEST = 300, 0.75
GROUPS = ("measured", "spread", "peer_settings", "searches", "rounds")
"""Figures that hold a part for each size."""
PROJECT = Path(__file__).resolve().parent.parent
SAME = {"OMP_NUM_THREADS": str(THREADS)}
OURS = {
    "GOMP_SPINCOUNT": SPINS,
    "LRU_CACHE_CAPACITY": KERNELS_KEPT,
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": KERNELS_KEPT,
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BLOCK_BYTES),
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
}
Run = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sizes", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL; made afresh where left out")
    parser.add_argument("--searched", type=Path, help="lines of an earlier search of one size, whose settings count as tried")
    parser.add_argument(
        "--near-best",
        action="store_true",
        help="try only the settings that reached NEAR_BEST of the best speed in the recorded search of the small model",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-trl-") as made:
        folder = Path(made)
        rate = _matrix_rate()
        if given.quick:
            ours = _ours(folder, _prepared(folder, given.shared, "small"), "small", True)
            record("trainer_vs_trl", {"small": ours, "matrix_tflops": rate / 1e12}, keep=False)
            return
        python = _peer_environment(folder, given.peers)
        figures: dict[str, Any] = {group: {} for group in GROUPS}
        for size in given.sizes:
            material = _prepared(folder / size, given.shared, size)
            known = [json.loads(line) for line in given.searched.read_text().splitlines()] if given.searched else []
            searches = _searched(folder, python, material, size, known, _near_best() if given.near_best else None)
            finalists = _finalists(searches)
            rounds = [_round(folder, python, material, size, finalists) for _ in range(REPEATS)]
            rate = max(rate, _matrix_rate())
            best = _summarise(figures, size, finalists, searches, rounds, rate)
            if size == "small":
                own = "ours-small-on" if finalists[best].checkpointing else "ours-small-off"
                held_out = {
                    who: _held_out_loss(path, material)
                    for who, path in (("before", material["small"]), ("ours", folder / own), ("trl", folder / f"{best}-small"))
                }
                figures |= {"loss_gap": round(abs(held_out["ours"] - held_out["trl"]), 4), "held_out_loss": held_out}
        kept, today = _earlier(given.sizes), datetime.now(UTC).isoformat(timespec="seconds")
        figures["measured"] |= {size: {"date": today, "command": command("trainer_vs_trl")} for size in given.sizes}
        joined = {**kept, **figures, **{group: {**kept.get(group, {}), **figures[group]} for group in GROUPS}}
        record("trainer_vs_trl", {**joined, "matrix_tflops": round(rate / 1e12, 3)})


def _near_best() -> list[TrlSettings]:
    """The settings of the recorded search of the small model that reached NEAR_BEST of the best speed by the clock."""
    runs = json.loads((RESULTS / "trainer_vs_trl.json").read_text())["figures"]["searches"]["small"]
    best = max(run.get("tokens_per_s", 0) for run in runs)
    return [TrlSettings(**run["settings"]) for run in runs if run.get("tokens_per_s", 0) >= NEAR_BEST * best]


def _searched(
    folder: Path, python: Path, material: dict[str, Path], size: str, known: list[Run], only: list[TrlSettings] | None = None
) -> list[Run]:
    """`known` and the other settings of TRL (or `only`) with their speed and memory after a few steps, or why they failed."""
    found = list(known)

    def tried(settings: TrlSettings) -> None:
        if any(TrlSettings(**run["settings"]) == settings for run in found):
            return
        cold = COMPILING_STEPS if settings.compiled else 1
        try:
            run = _trl(folder, python, material, size, "search", settings, SEARCH_STEPS[size] + cold - 1, cold)
        except RuntimeError as error:
            run = {"failed": str(error)}
        found.append({"settings": settings.named(), **run})
        print(json.dumps(found[-1]), flush=True)

    for settings in FIRST if only is None else only:
        tried(settings)
    if all("failed" in run for run in found):
        raise SystemExit(f"TRL failed with every setting: {found[0]['failed']}")
    for settings in refinements(list(_finalists(found).values())[-1]) if only is None else ():
        tried(settings)
    return [{key: value for key, value in run.items() if key != "losses"} for run in found]


def _finalists(searches: list[Run]) -> dict[str, TrlSettings]:
    """TRL's best settings of a search: by the clock and, where it is another one, by processor time."""
    done = [run for run in searches if "failed" not in run]
    best = [max(done, key=lambda run, key=key: run[key])["settings"] for key in ("tokens_per_s", "tokens_per_cpu_s")]
    return {f"trl-{number}": settings for number, settings in enumerate(dict.fromkeys(TrlSettings(**one) for one in best), 1)}


def _round(
    folder: Path, python: Path, material: dict[str, Path], size: str, finalists: dict[str, TrlSettings]
) -> dict[str, Run]:
    """One run each of ours with and without checkpointing and of TRL's. Raises SystemExit where rows or mask differ."""
    runs = {"off": _ours(folder, material, size, False)}
    for name, settings in finalists.items():
        cold = max(WARM_STEPS, COMPILING_STEPS if settings.compiled else 0)
        runs[name] = _trl(folder, python, material, size, name, settings, STEPS[size], cold)
    runs["on"] = _ours(folder, material, size, True)
    print(
        json.dumps({name: {key: value for key, value in run.items() if key != "losses"} for name, run in runs.items()}),
        flush=True,
    )
    seen = {name: (len(run["losses"]), run["tokens"], run["targets"]) for name, run in runs.items()}
    if len(set(seen.values())) > 1:
        raise SystemExit(f"steps, tokens or predicted tokens are not the same: {seen}")
    return runs


def _summarise(
    figures: dict[str, Any],
    size: str,
    finalists: dict[str, TrlSettings],
    searches: list[Run],
    rounds: list[dict[str, Run]],
    rate: float,
) -> str:
    """Adds the figures of one size; returns the name of TRL's best."""
    middle = {
        name: {
            key: statistics.median(runs[name][key] for runs in rounds)
            for key in ("tokens_per_s", "tokens_per_cpu_s", "peak_mb")
        }
        for name in rounds[0]
    }
    best = max(finalists, key=lambda name: middle[name]["tokens_per_s"])
    by_processor = max(finalists, key=lambda name: middle[name]["tokens_per_cpu_s"])
    equal = "on" if finalists[best].checkpointing else "off"
    ratios = {
        f"ratio_{size}": (equal, best, "tokens_per_s"),
        f"cpu_ratio_{size}": (equal, by_processor, "tokens_per_cpu_s"),
        f"memory_ratio_{size}": (equal, best, "peak_mb"),
        f"ratio_{size}_checkpointed": ("on", best, "tokens_per_s"),
        f"cpu_ratio_{size}_checkpointed": ("on", by_processor, "tokens_per_cpu_s"),
        f"memory_ratio_{size}_checkpointed": ("on", best, "peak_mb"),
    }
    for name, (ours, peer, key) in ratios.items():
        each = [runs[ours][key] / runs[peer][key] for runs in rounds]
        figures[name] = round(statistics.median(each), 3)
        figures["spread"][name] = [round(min(each), 3), round(max(each), 3)]
    of_trl = [*searches, *(runs[name] for runs in rounds for name in finalists)]
    leanest = min(run["peak_mb"] for run in of_trl if "peak_mb" in run)
    leaner = min(middle[name]["peak_mb"] for name in ("on", "off"))
    figures[f"memory_ratio_{size}_to_leanest"] = round(leaner / leanest, 3)
    for name, key in (("on", f"rate_share_{size}"), ("off", f"rate_share_{size}_without_checkpointing")):
        figures[key] = round(statistics.median(runs[name]["needed_flops_per_s"] for runs in rounds) / rate, 3)
    figures[f"tokens_per_s_{size}"] = {
        "ours": round(middle[equal]["tokens_per_s"]),
        "trl": round(middle[best]["tokens_per_s"]),
        "ours_checkpointed": round(middle["on"]["tokens_per_s"]),
    }
    figures["peer_settings"][size] = {"best": best, **{name: settings.named() for name, settings in finalists.items()}}
    figures["searches"][size], figures["rounds"][size] = searches, rounds
    return best


def _earlier(sizes: list[str]) -> dict[str, Any]:
    """What the last recorded run says of sizes that this one leaves out."""
    path = RESULTS / "trainer_vs_trl.json"
    missing = [size for size in STEPS if size not in sizes]
    if not missing or not path.exists():
        return {}
    last = json.loads(path.read_text())
    of_model = ("loss_gap", "held_out_loss") if "small" in missing else ()
    kept = {
        key: value for key, value in last["figures"].items() if key in of_model or any(f"_{size}" in key for size in missing)
    }
    for group in GROUPS:
        kept[group] = {
            key: value
            for key, value in last["figures"].get(group, {}).items()
            if any(key == size or f"_{size}" in key for size in missing)
        }
    return kept


def _prepared(folder: Path, shared: Path, size: str) -> dict[str, Path]:
    """Runs in a process of its own, so that its memory is in no figure."""
    code = (
        "import json, sys; from pathlib import Path; from benchmarks.sft_material import prepare; "
        "made = prepare(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])); "
        "print(json.dumps({k: str(v) for k, v in vars(made).items()}))"
    )
    amount = [STEPS[size] * ROWS_PER_STEP, int(STEPS[size] * TOKENS_PER_STEP * FILLED)]
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(shared), *map(str, amount)], cwd=PROJECT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return {name: Path(path) for name, path in json.loads(done.stdout.splitlines()[-1]).items()}


def _matrix_rate() -> float:
    """FLOPs/s of bfloat16 products of 2,048-square matrices: the best of twenty."""
    code = (
        "import time, torch\n"
        f"torch.set_num_threads({THREADS})\n"
        "a, b, best = torch.randn(2048, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16(), 1e9\n"
        "for _ in range(20):\n    began = time.perf_counter(); a @ b; best = min(best, time.perf_counter() - began)\n"
        "print(2 * 2048**3 / best)"
    )
    return float(_said([sys.executable, "-c", code]))


def _ours(folder: Path, material: dict[str, Path], size: str, checkpointing: bool) -> Run:
    name, steps = f"ours-{size}-{'on' if checkpointing else 'off'}", STEPS[size]
    output, job, result = folder / name, folder / f"{name}.json", folder / f"{name}.result.json"
    shutil.rmtree(output, ignore_errors=True)  # else a second round would find the first one's weights
    job.write_text(
        json.dumps(
            {
                "operation": "sft",
                "output": str(output),
                "threads": THREADS,
                "inputs": {"model": str(material[size]), "dataset": str(material["dataset"])},
                "settings": {
                    "steps": steps,
                    "learning_rate": LEARNING_RATE,
                    "tokens_per_step": TOKENS_PER_STEP,
                    "max_length": MAX_LENGTH,
                    "schedule": "constant",
                    "warmup_share": 0.0,
                    "checkpoint_every": 10 * steps,
                    "activation_checkpointing": "full" if checkpointing else "none",
                },
            }
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.our_trainer", str(job), str(result)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        env={**_environment(), **SAME, **OURS},
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stdout.splitlines()[-1] if done.stdout else done.stderr[-500:]}")
    found = json.loads(result.read_text())
    steady = found["steps"][WARM_STEPS:]
    flops = _needed_flops(material[size], material, steady) / sum(step["seconds"] for step in steady)
    return {**_measured(found, WARM_STEPS), "needed_flops_per_s": flops}


def _measured(found: Run, cold: int) -> Run:
    """One run in figures; speed is of the steps after the first `cold`."""
    steady = found["steps"][cold:]
    tokens = sum(step["tokens"] for step in steady)
    return {
        "tokens_per_s": round(tokens / sum(step["seconds"] for step in steady), 1),
        "tokens_per_cpu_s": round(tokens / sum(step["cpu_seconds"] for step in steady), 1),
        "peak_mb": round(found["peak_mb"]),
        "tokens": round(sum(step["tokens"] for step in found["steps"])),
        "targets": sum(step["targets"] for step in found["steps"]),
        "losses": [round(step["loss"], 4) for step in found["steps"]],
    }


def _needed_flops(model: Path, material: dict[str, Path], steps: list[dict[str, Any]]) -> float:
    """See the head of this file. Documents of a step are taken to be of the rows' mean squared length."""
    shape = json.loads((model / "config.json").read_text())
    hidden, layers, mlp = shape["hidden_size"], shape["num_hidden_layers"], shape["intermediate_size"]
    queries, keys = shape["num_attention_heads"] * shape["head_dim"], shape["num_key_value_heads"] * shape["head_dim"]
    block = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * mlp
    tokens, predicted = sum(step["tokens"] for step in steps), sum(step["targets"] for step in steps)
    lengths = [len(json.loads(line)["input_ids"]) for line in material["rows"].read_text().splitlines()]
    attended = tokens * sum(length**2 for length in lengths) / sum(lengths)
    return 6 * layers * block * tokens + 6 * shape["vocab_size"] * hidden * predicted + 6 * layers * queries * attended


def _trl(
    folder: Path, python: Path, material: dict[str, Path], size: str, name: str, settings: TrlSettings, steps: int, cold: int
) -> Run:
    """Raises RuntimeError with TRL's last line where it failed or took too long."""
    name = f"{name}-{size}"
    job, result = folder / f"{name}.json", folder / f"{name}.result.json"
    job.write_text(
        json.dumps(
            {
                "model": str(material[size]),
                "rows": str(material["rows"]),
                "output": str(folder / name),
                "steps": steps,
                "learning_rate": LEARNING_RATE,
                "max_length": MAX_LENGTH,
                "layout": settings.layout,
                "rows_per_pass": settings.rows,
                "passes": settings.passes(ROWS_PER_STEP, TOKENS_PER_STEP // MAX_LENGTH),
                "checkpointing": settings.checkpointing,
                "compiled": settings.compiled,
                "threads": THREADS,
                "save": steps == STEPS[size],
            }
        )
    )
    peer = Path(__file__).with_name("trl_peer.py")
    environment = {**_environment(), **SAME, **(OURS if settings.process == "ours" else {}), "PYTHONPATH": ""}
    limit = LONGEST_SEARCH_S if steps < STEPS[size] else None
    try:
        done = subprocess.run(
            [str(python), str(peer), str(job), str(result)],
            cwd=folder,
            capture_output=True,
            text=True,
            env=environment,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"took more than {limit} s") from error
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:200])
    found = json.loads(result.read_text())
    padding = round(1 - sum(step["tokens"] for step in found["steps"]) / found["positions"], 3)
    return {**_measured(found, cold), "padding_share": padding, "versions": found["versions"]}


def _environment() -> dict[str, str]:
    """This process's environment without the variables that the comparison sets."""
    return {name: value for name, value in os.environ.items() if name not in {*SAME, *OURS, "MALLOC_ARENA_MAX", "LD_PRELOAD"}}


def _peer_environment(folder: Path, given: Path | None) -> Path:
    if given is not None:
        return given.resolve() / "bin/python"
    home = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    install = [str(home / "bin/pip"), "install", "--quiet", "torch==2.13.0", TRL, "transformers>=5.17,<6", "datasets"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{TRL} could not be installed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return home / "bin/python"


def _held_out_loss(model: Path, material: dict[str, Path]) -> float:
    code = (
        "import sys; from pathlib import Path; import torch\n"
        "from model_ops.models.model_directory import load_model, load_tokenizer\n"
        "from model_ops.documents.conversations import read_documents\n"
        "from model_ops.documents.likelihood import held_out_loss, mean_loss\n"
        f"torch.set_num_threads({THREADS}); model = load_model(Path(sys.argv[1]))\n"
        f"tokenizer = load_tokenizer(Path(sys.argv[3]))\n"
        f"documents, _ = read_documents(Path(sys.argv[2]), 'validation', tokenizer, {MAX_LENGTH})\n"
        "print(mean_loss(held_out_loss(model, documents)))"
    )
    return round(float(_said([sys.executable, "-c", code, *map(str, (model, material["held_out"], material["small"]))])), 4)


def _said(command: list[str]) -> str:
    """The last line a process wrote."""
    return subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
