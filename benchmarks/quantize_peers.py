"""Our quantization against llm-compressor 0.14: perplexity on held-out answers, time and memory.

    python -m benchmarks.quantize_peers --peers FOLDER         # on 2 idle cores, about an hour
    python -m benchmarks.quantize_peers --peers FOLDER --quick

FOLDER of --peers gets the peer's environment, made where it is missing (requirements-llmcompressor.txt). Models: the house
model, and the same widened to 249M (benchmarks.widened). Calibration: the same of GSM8K's training questions with answers for
both (256; wide: 64), as token ids; held out are 300 (100) test questions. Each process is alone, on the same number of threads;
time runs from loading the model to the saved directory, without imports. Both directories are read by our layers, which compute
what servers compute (awq_asym: the peer's by transformers).

gptq: int4 in groups of 128 by GPTQ on both sides. awq: the same by AWQ. awq_asym: our AWQ and GPTQ against the scheme of the
peer's AWQ example, which stores a zero point, too. w8a8: rounded to the nearest here; SmoothQuant (0.8) and GPTQ there, as in
its int8 example. rounded: our int4 without calibration.

perplexity_ratio: our perplexity over the peer's. time_ratio, cpu_ratio, memory_ratio: ours over the peer's by the clock, by
processor seconds (which other work on the machine changes little) and at the peak, the mean, smallest and largest of three
runs that take turns (wide: one run). loss: nats a token of the float model and of each directory.
"""

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
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from benchmarks.drafter_peers import mean_and_range
from benchmarks.house import House
from benchmarks.peer_environment import environment
from benchmarks.record import record
from benchmarks.sft_material import gsm8k
from benchmarks.widened import widened
from model_ops.documents.conversations import tokenize
from model_ops.documents.likelihood import held_out_loss, mean_loss
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.quantization.quantized_model import load_quantized

PROJECT = Path(__file__).resolve().parent.parent
ROWS, MAX_LENGTH, RUNS, HELD_OUT = 256, 512, 3, 300
WIDE_ROWS, WIDE_HELD_OUT = 64, 100
SIDES = {
    "gptq": (("w4a16", "gptq"), ("W4A16", "gptq")),
    "awq": (("w4a16", "awq"), ("W4A16", "awq")),
    "awq_asym": (("w4a16", "awq_gptq"), ("W4A16_ASYM", "awq")),
    "w8a8": (("w8a8", "rtn"), ("W8A8", "smoothquant_gptq")),
}
"""Comparison -> our scheme and method, and the peer's."""


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
        folder = Path(scratch)
        house = House(given.shared, folder / "house").target
        rows, runs = (8, 1) if given.quick else (ROWS, given.runs)
        found = Bench(house, given.shared, folder, python, given.threads, (rows, HELD_OUT), runs).figures()
        if not given.quick:
            wide = widened(house, folder / "wide", hidden=6, heads=4, mlp=5)
            found["wide"] = Bench(
                wide, given.shared, folder / "of_wide", python, given.threads, (WIDE_ROWS, WIDE_HELD_OUT), 1
            ).figures()
        record("quantize_peers", found, keep=not given.quick)


class Bench:
    """Everything of one model. rows: to calibrate with, and held out."""

    def __init__(self, model: Path, shared: Path, folder: Path, python: Path, threads: int, rows: tuple[int, int], runs: int):
        folder.mkdir(exist_ok=True)
        self.model, self.folder, self.python, self.threads, self.runs = model, folder, python, threads, runs
        tokenizer = load_tokenizer(self.model)
        train, _ = tokenize(gsm8k(shared, "train", plain=True), tokenizer, MAX_LENGTH)
        self.rows = folder / "rows.jsonl"
        self.rows.write_text(
            "".join(json.dumps(document.input_ids.tolist()) + "\n" for document in random.Random(0).sample(train, rows[0]))
        )
        self.held_out = tokenize(gsm8k(shared, "test", rows[1], plain=True), tokenizer, MAX_LENGTH)[0]

    def figures(self) -> dict[str, Any]:
        """Quantizes and measures every comparison."""
        found: dict[str, Any] = {"loss": {"float": self.loss(load_model(self.model))}}
        ours = [sys.executable, "-m", "benchmarks.our_quantizer"]
        theirs = [str(self.python), str(PROJECT / "benchmarks" / "llmcompressor_peer.py")]
        for name, (mine, other) in SIDES.items():
            sides, pairs = {"ours": (ours, *mine), "theirs": (theirs, *other)}, []
            for run in range(self.runs):
                done = {}
                for side in sorted(sides, reverse=run % 2 == 1):
                    command, asked, how = sides[side]
                    done[side] = self.child(command, f"{side}-{name}-{run}", asked, how)
                pairs.append((done["ours"], done["theirs"]))
            losses = {
                side: self.loss(self.read(f"{side}-{name}-0", asked.endswith("ASYM"))) for side, (_, asked, _) in sides.items()
            }
            found["loss"] |= {f"{side}_{name}": loss for side, loss in losses.items()}
            found[name] = {
                "perplexity_ratio": round(math.exp(losses["ours"] - losses["theirs"]), 5),
                **{
                    f"{name}_ratio": mean_and_range([mine[what] / other[what] for mine, other in pairs])
                    for name, what in (("time", "seconds"), ("cpu", "cpu_seconds"), ("memory", "peak_mb"))
                },
                "seconds": [[round(side["seconds"], 1) for side in pair] for pair in pairs],
                "cpu_seconds": [[round(side["cpu_seconds"], 1) for side in pair] for pair in pairs],
                "peak_mb": [[round(side["peak_mb"]) for side in pair] for pair in pairs],
            }
            print(name, found[name], losses, flush=True)
        self.child(ours, "ours-rounded", "w4a16", "rtn")
        found["loss"]["ours_rounded"] = self.loss(load_quantized(self.folder / "ours-rounded", torch.float32))
        return {**found, "calibration_rows": len(self.rows.read_text().splitlines()), "held_out_rows": len(self.held_out)}

    def read(self, name: str, with_zero_points: bool) -> torch.nn.Module:
        """A quantized model with our layers; they know no zero points, and transformers' do."""
        if with_zero_points:
            return AutoModelForCausalLM.from_pretrained(
                self.folder / name, dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True)
            )
        return load_quantized(self.folder / name, torch.float32)

    def loss(self, model: torch.nn.Module) -> float:
        """Nats a token of the held-out answers."""
        model.set_attn_implementation("packed")
        return round(mean_loss(held_out_loss(model, self.held_out)), 5)

    def child(self, command: list[str], name: str, scheme: str, method: str) -> dict[str, Any]:
        """A quantization in a process of its own. Raises SystemExit with its last line of output if it fails."""
        paths = [self.folder / f"{name}.job.json", self.folder / f"{name}.result.json"]
        paths[0].write_text(
            json.dumps(
                {
                    "threads": self.threads,
                    "model": str(self.model),
                    "rows": str(self.rows),
                    "scheme": scheme,
                    "method": method,
                    "max_length": MAX_LENGTH,
                    "output": str(self.folder / name),
                }
            )
        )
        done = subprocess.run(
            [*command, *map(str, paths)],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(self.threads),
                "HF_HUB_OFFLINE": "1",
                **({} if command[0] == sys.executable else {"PYTHONPATH": ""}),
            },
        )
        if done.returncode or not paths[1].exists():
            raise SystemExit(f"{name} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
        return json.loads(paths[1].read_text())


if __name__ == "__main__":
    main()
