"""The trainer against TRL's SFTTrainer: the same rows, mask, precision and tokens a step, one after the other on one machine.

    python -m benchmarks.trainer_vs_trl                    # about 15 minutes on 2 cores
    python -m benchmarks.trainer_vs_trl --quick            # the small model alone, without the peer
    python -m benchmarks.trainer_vs_trl --peers VENV       # an environment that holds TRL already

GSM8K's rows, 2 x 2,048 tokens a step, bfloat16 products over float32 weights, AdamW, for the small chat model (10M, trained)
and a Qwen3 shape of 103M (hidden 512, 8 layers, vocabulary 151,936, tied, random weights). TRL packs, takes its default loss
(chunked) and runs with gradient checkpointing on, its default, and off; so does this trainer. Each run is a process of its
own. Speed is tokens (no padding) over the seconds of the steps after the first two; memory the process's largest resident size.

ratio_*: our tokens/s with checkpointing on over the FASTER of TRL's two. memory_ratio_*: our peak of that same run over the
SMALLER of TRL's two. loss_gap: nats per token between both small models on 200 held-out rows, after the same number of steps.

rate_share_*: of the bfloat16 matrix rate measured in the same run (2,048-square products, the best of many), what the trainer
reaches, counting only what is needed: 6 FLOPs per weight of the blocks and token, 6 per weight of the head and PREDICTED token,
6 x length^2 x heads x head_dim per document and layer of causal attention. Recomputed blocks count nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.record import record

TRL = "trl==1.16.*"
STEPS = {"small": 20, "large": 6}
WARM_STEPS, THREADS, TOKENS_PER_STEP, MAX_LENGTH, LEARNING_RATE = 2, 2, 4_096, 2_048, 1e-4
PROJECT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL; made afresh where left out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-trl-") as made:
        folder = Path(made)
        material = _prepared(folder, given.shared)
        rate = _matrix_rate()
        if given.quick:
            ours = _ours(folder, material["small"], material, "small", "full", 6)
            record("trainer_vs_trl", {"small": ours, "matrix_tflops": rate / 1e12}, keep=False)
            return
        python = _peer_environment(folder, given.peers)
        runs: dict[str, dict[str, Any]] = {}
        for size, steps in STEPS.items():
            for checkpointing in (True, False):
                name = f"{size}, checkpointing {'on' if checkpointing else 'off'}"
                word = "full" if checkpointing else "none"
                runs[name] = {"ours": _ours(folder, material[size], material, size, word, steps),
                              "trl": _trl(folder, python, material[size], material["rows"], size, checkpointing, steps)}
                print(json.dumps({name: {who: {key: value for key, value in run.items() if key != "losses"}
                                         for who, run in runs[name].items()}}), flush=True)
        figures: dict[str, Any] = {}
        rate = max(rate, _matrix_rate())
        for size in STEPS:
            on, off = runs[f"{size}, checkpointing on"], runs[f"{size}, checkpointing off"]
            fastest = max(run["trl"]["tokens_per_s"] for run in (on, off))
            smallest = min(run["trl"]["peak_mb"] for run in (on, off))
            figures[f"ratio_{size}"] = round(on["ours"]["tokens_per_s"] / fastest, 3)
            figures[f"memory_ratio_{size}"] = round(on["ours"]["peak_mb"] / smallest, 3)
            figures[f"rate_share_{size}"] = round(on["ours"]["needed_flops_per_s"] / rate, 3)
            figures[f"rate_share_{size}_without_checkpointing"] = round(off["ours"]["needed_flops_per_s"] / rate, 3)
        held_out = {who: _held_out_loss(folder / f"{who}-small-full", material) for who in ("ours", "trl")}
        start = _held_out_loss(material["small"], material)
        figures["loss_gap"] = round(abs(held_out["ours"] - held_out["trl"]), 4)
        record("trainer_vs_trl", {
            **figures, "held_out_loss": {"before": start, **held_out}, "matrix_tflops": round(rate / 1e12, 3), "runs": runs,
        })


def _prepared(folder: Path, shared: Path) -> dict[str, Path]:
    """Runs in a process of its own, so that its memory is in no figure."""
    code = ("import json, sys; from pathlib import Path; from benchmarks.sft_material import prepare; "
            "print(json.dumps({k: str(v) for k, v in vars(prepare(Path(sys.argv[1]), Path(sys.argv[2]))).items()}))")
    done = subprocess.run([sys.executable, "-c", code, str(folder), str(shared)], cwd=PROJECT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return {name: Path(path) for name, path in json.loads(done.stdout.splitlines()[-1]).items()}


def _matrix_rate() -> float:
    """FLOPs/s of bfloat16 products of 2,048-square matrices: the best of twenty."""
    code = ("import time, torch\n"
            f"torch.set_num_threads({THREADS})\n"
            "a, b, best = torch.randn(2048, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16(), 1e9\n"
            "for _ in range(20):\n    began = time.perf_counter(); a @ b; best = min(best, time.perf_counter() - began)\n"
            "print(2 * 2048**3 / best)")
    return float(_said([sys.executable, "-c", code]))


def _ours(folder: Path, model: Path, material: dict[str, Path], size: str, checkpointing: str, steps: int) -> dict[str, Any]:
    output = folder / f"ours-{size}-{checkpointing}"
    job = folder / f"ours-{size}-{checkpointing}.json"
    job.write_text(json.dumps({
        "operation": "sft", "output": str(output), "threads": THREADS,
        "inputs": {"model": str(model), "dataset": str(_without_validation(material["dataset"], folder))},
        "settings": {"steps": steps, "learning_rate": LEARNING_RATE, "tokens_per_step": TOKENS_PER_STEP,
                     "max_length": MAX_LENGTH, "warmup_share": 1 / steps, "checkpoint_every": 10 * steps,
                     "activation_checkpointing": checkpointing},
    }))
    done = subprocess.run([sys.executable, "-m", "model_ops.worker", str(job)], cwd=PROJECT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{job.stem}: {done.stdout.splitlines()[-1] if done.stdout else done.stderr[-500:]}")
    result = json.loads(done.stdout.splitlines()[-1])["metrics"]
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steady = lines[WARM_STEPS:]
    seconds = sum(line["tokens"] / line["tokens_per_second"] for line in steady)
    return {
        "tokens_per_s": round(sum(line["tokens"] for line in steady) / seconds, 1), "peak_mb": round(result["peak_memory_mb"]),
        "needed_flops_per_s": _needed_flops(model, material, steady) / seconds,
        "losses": [round(line["loss"], 4) for line in lines],
    }


def _needed_flops(model: Path, material: dict[str, Path], steps: list[dict[str, Any]]) -> float:
    """See the head of this file. Documents of a step are taken to be of the rows' mean squared length."""
    shape = json.loads((model / "config.json").read_text())
    hidden, layers, mlp = shape["hidden_size"], shape["num_hidden_layers"], shape["intermediate_size"]
    queries, keys = shape["num_attention_heads"] * shape["head_dim"], shape["num_key_value_heads"] * shape["head_dim"]
    block = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * mlp
    tokens, predicted = sum(step["tokens"] for step in steps), sum(step["target_tokens"] for step in steps)
    lengths = [len(json.loads(line)["input_ids"]) for line in material["rows"].read_text().splitlines()]
    attended = tokens * sum(length**2 for length in lengths) / sum(lengths)
    return 6 * layers * block * tokens + 6 * shape["vocab_size"] * hidden * predicted + 6 * layers * queries * attended


def _trl(folder: Path, python: Path, model: Path, rows: Path, size: str, checkpointing: bool, steps: int) -> dict[str, Any]:
    name = f"trl-{size}-{'full' if checkpointing else 'none'}"
    job, result = folder / f"{name}.json", folder / f"{name}.result.json"
    job.write_text(json.dumps({
        "model": str(model), "rows": str(rows), "output": str(folder / name), "steps": steps, "learning_rate": LEARNING_RATE,
        "max_length": MAX_LENGTH, "rows_per_step": TOKENS_PER_STEP // MAX_LENGTH, "checkpointing": checkpointing,
        "threads": THREADS,
    }))
    peer = Path(__file__).with_name("trl_peer.py")
    done = subprocess.run([str(python), str(peer), str(job), str(result)], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": ""})
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(result.read_text())
    steady = found["steps"][WARM_STEPS:]
    return {
        "tokens_per_s": round(sum(step["tokens"] for step in steady) / sum(step["seconds"] for step in steady), 1),
        "peak_mb": round(found["peak_mb"]), "losses": [round(step["loss"], 4) for step in found["steps"]],
        "versions": found["versions"],
    }


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


def _without_validation(dataset: Path, folder: Path) -> Path:
    """The training rows only: TRL gets no others, and validation is not timed."""
    alone = folder / "train-only"
    alone.mkdir(exist_ok=True)
    if not (alone / "train.parquet").exists():
        os.link(dataset / "train.parquet", alone / "train.parquet")
    return alone


def _held_out_loss(model: Path, material: dict[str, Path]) -> float:
    code = ("import sys; from pathlib import Path; import torch\n"
            "from model_ops.models.model_directory import load_model, load_tokenizer\n"
            "from model_ops.training.conversations import read_documents\n"
            "from model_ops.training.likelihood import held_out_loss, mean_loss\n"
            f"torch.set_num_threads({THREADS}); model = load_model(Path(sys.argv[1]))\n"
            f"tokenizer = load_tokenizer(Path(sys.argv[3]))\n"
            f"documents, _ = read_documents(Path(sys.argv[2]), 'validation', tokenizer, {MAX_LENGTH})\n"
            "print(mean_loss(held_out_loss(model, documents)))")
    return round(float(_said([sys.executable, "-c", code, *map(str, (model, material["dataset"], material["small"]))])), 4)


def _said(command: list[str]) -> str:
    """The last line a process wrote."""
    return subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
