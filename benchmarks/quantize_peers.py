"""Our quantization against llm-compressor 0.14: perplexity on held-out answers, time and memory.

    python -m benchmarks.quantize_peers --peers FOLDER         # on 2 idle cores, ten minutes
    python -m benchmarks.quantize_peers --peers FOLDER --quick

FOLDER of --peers gets the peer's environment, made where it is missing (requirements-llmcompressor.txt). Model: the house
model. Calibration: the same 256 of GSM8K's training questions with answers for both, as token ids; held out are 300 test
questions. Each process is alone, on the same number of threads; time runs from loading the model to the saved directory,
without imports. Both directories are read by our layers, which compute what servers compute.

w4a16: GPTQ with groups of 128 on both sides. w8a8: round to nearest here, GPTQ there. rounded: our int4 without calibration.

perplexity_ratio: our perplexity over the peer's. time_ratio, memory_ratio: ours over the peer's, the mean, smallest and
largest of three runs that take turns. loss: nats a token of the float model and of each directory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.drafter_peers import mean_and_range
from benchmarks.house import House
from benchmarks.peer_environment import environment
from benchmarks.record import record
from benchmarks.sft_material import gsm8k
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.quantization.quantized_model import load_quantized
from model_ops.training.conversations import tokenize
from model_ops.training.likelihood import held_out_loss, mean_loss

PROJECT = Path(__file__).resolve().parent.parent
ROWS, MAX_LENGTH, RUNS, HELD_OUT = 256, 512, 3, 300
SIDES = {"w4a16": ("gptq", "W4A16"), "w8a8": ("rtn", "W8A8")}
"""Scheme -> our method, and the peer's name of the scheme."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantize_peers", description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, required=True, help="holds the peer's environment; it is made there")
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--quick", action="store_true", help="few rows, one run")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    python = environment(given.peers.resolve() / "llmcompressor", "llmcompressor")
    with tempfile.TemporaryDirectory(prefix="quantize-peers-") as scratch:
        rows, runs = (8, 1) if given.quick else (ROWS, given.runs)
        bench = Bench(given.shared, Path(scratch), python, given.threads, rows, runs)
        record("quantize_peers", bench.figures(), keep=not given.quick)


class Bench:
    """Everything of one run of the benchmark."""

    def __init__(self, shared: Path, folder: Path, python: Path, threads: int, rows: int, runs: int):
        self.model = House(shared, folder / "house").target
        self.folder, self.python, self.threads, self.runs = folder, python, threads, runs
        tokenizer = load_tokenizer(self.model)
        train, _ = tokenize(gsm8k(shared, "train", plain=True), tokenizer, MAX_LENGTH)
        self.rows = folder / "rows.jsonl"
        self.rows.write_text("".join(json.dumps(document.input_ids.tolist()) + "\n"
                                     for document in random.Random(0).sample(train, rows)))
        self.held_out = tokenize(gsm8k(shared, "test", HELD_OUT, plain=True), tokenizer, MAX_LENGTH)[0]

    def figures(self) -> dict[str, Any]:
        """Quantizes and measures with every scheme."""
        found: dict[str, Any] = {"loss": {"float": self.loss(load_model(self.model))}}
        ours = [sys.executable, "-m", "benchmarks.our_quantizer"]
        theirs = [str(self.python), str(PROJECT / "benchmarks" / "llmcompressor_peer.py")]
        for scheme, (method, name) in SIDES.items():
            sides, pairs = {"ours": (ours, scheme, method), "theirs": (theirs, name, "")}, []
            for run in range(self.runs):
                done = {}
                for side in sorted(sides, reverse=run % 2 == 1):
                    command, asked, how = sides[side]
                    done[side] = self.child(command, f"{side}-{scheme}-{run}", asked, how)
                pairs.append((done["ours"], done["theirs"]))
            losses = {side: self.loss(load_quantized(self.folder / f"{side}-{scheme}-0", torch.float32)) for side in sides}
            found["loss"] |= {f"{side}_{scheme}": loss for side, loss in losses.items()}
            found[scheme] = {
                "perplexity_ratio": round(math.exp(losses["ours"] - losses["theirs"]), 5),
                "time_ratio": mean_and_range([mine["seconds"] / other["seconds"] for mine, other in pairs]),
                "memory_ratio": mean_and_range([mine["peak_mb"] / other["peak_mb"] for mine, other in pairs]),
                "seconds": [[round(side["seconds"], 1) for side in pair] for pair in pairs],
                "peak_mb": [[round(side["peak_mb"]) for side in pair] for pair in pairs]}
            print(scheme, found[scheme], flush=True)
        self.child(ours, "ours-rounded", "w4a16", "rtn")
        found["loss"]["ours_w4a16_rounded"] = self.loss(load_quantized(self.folder / "ours-rounded", torch.float32))
        return {**found, "calibration_rows": len(self.rows.read_text().splitlines()), "held_out_rows": len(self.held_out)}

    def loss(self, model: torch.nn.Module) -> float:
        """Nats a token of the held-out answers."""
        model.set_attn_implementation("packed")
        return round(mean_loss(held_out_loss(model, self.held_out)), 5)

    def child(self, command: list[str], name: str, scheme: str, method: str) -> dict[str, Any]:
        """A quantization in a process of its own. Raises SystemExit with its last line of output if it fails."""
        paths = [self.folder / f"{name}.job.json", self.folder / f"{name}.result.json"]
        paths[0].write_text(json.dumps({
            "threads": self.threads, "model": str(self.model), "rows": str(self.rows), "scheme": scheme, "method": method,
            "max_length": MAX_LENGTH, "output": str(self.folder / name)}))
        done = subprocess.run([*command, *map(str, paths)], cwd=PROJECT, capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1",
                                   **({} if command[0] == sys.executable else {"PYTHONPATH": ""})})
        if done.returncode or not paths[1].exists():
            raise SystemExit(f"{name} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
        return json.loads(paths[1].read_text())


if __name__ == "__main__":
    main()
