"""int8 weights in a real vLLM: their speed over float weights, and what a drafter trained on them is worth.

    python -m benchmarks.quantized_served                  # about 40 minutes on 2 cores, two trainings included
    python -m benchmarks.quantized_served --quick          # 30 steps of training, few prompts
    python -m benchmarks.quantized_served --vllm VENV      # an environment made by benchmarks.vllm_environment

Target ../shared/models/house, quantized to W8A8 by this project's own stage. Two EAGLE-3 drafters are trained alike on the
same answers: `own` with the states and distributions of the int8 weights, `other` with those of the float ones. Both are served
with the int8 target (K = 5, drafts sampled), with the same held-out prompts of three workloads.

tau_own, tau_other: acceptance length (1 + accepted / drafts of the server's counters) at T = 0, and the mean of the passes at
T = 1. gain: own over other, less 1; at T = 1 [mean, smallest, largest] over the passes. speed_ratio: tokens/s of int8 over
float without a drafter, at each concurrency; `wide` is the house model with MLPs of 32,768 (252M, benchmarks.drafter_speed),
whose forward costs what its size costs. size_share: bytes of int8 over float. sample: what the int8 server says.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.drafter_served import CONCURRENCY, MAX_MODEL_LEN, QUICK_PROMPT, SAMPLED, SEEDS, trained
from benchmarks.drafter_speed import CONCURRENCIES, widen
from benchmarks.house import House, K, mixed
from benchmarks.one_case import PROJECT
from benchmarks.record import record
from benchmarks.vllm_environment import HOME, vllm_python
from benchmarks.vllm_server import vllm_server
from model_ops.completions.served import ServedModel, measure_served
from model_ops.jobs import Progress
from model_ops.operations.quantize import quantize_directory

OPTIONS = ("--max-model-len", str(MAX_MODEL_LEN))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantized_served", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--vllm", type=Path, default=HOME, help="vLLM's environment; made there where it is missing")
    given = parser.parse_args()
    python = vllm_python(given.vllm)
    with tempfile.TemporaryDirectory(prefix="millrace-int8-") as made:
        served = Int8Served(given.shared, Path(made), python, given.quick)
        record("quantized_served", served.figures(), keep=not given.quick)


class Int8Served:
    """The models of one run, and the servers that it starts one after another."""

    def __init__(self, shared: Path, folder: Path, python: Path, quick: bool):
        self.folder, self.python, self.quick = folder, python, quick
        self.house = House(shared, folder)
        shutil.copytree(self.house.target, folder / "float")
        widen(folder / "float", folder / "wide-float")
        self.sizes = {
            name: quantize_directory(folder / source, folder / name, Progress())["size_share"]
            for name, source in (("int8", "float"), ("wide-int8", "wide-float"))
        }
        self.passes = 1 if quick else SEEDS

    def figures(self) -> dict[str, Any]:
        """Trains, serves and compares."""
        answers = self.house.answers(rows=400 if self.quick else None)
        prompts = {
            name: [prompt for prompt in found if len(prompt.ids) < QUICK_PROMPT or not self.quick]
            for name, found in self.house.prompts.items()
        }
        asked = [prompt.ids for prompt in mixed(prompts, 24 if self.quick else 200)]
        taus = {}
        for name, target in (("own", "int8"), ("other", "float")):
            (self.folder / name).mkdir()
            trained(self.folder / name, self.folder / target, answers, 30 if self.quick else None)
            taus[name] = self._taus(name, asked)
            print(name, taus[name], flush=True)
        gains = [own / other - 1 for own, other in zip(taus["own"]["t1"], taus["other"]["t1"], strict=True)]
        return {
            "tau_own": {"t0": taus["own"]["t0"], "t1": _mean(taus["own"]["t1"])},
            "tau_other": {"t0": taus["other"]["t0"], "t1": _mean(taus["other"]["t1"])},
            "gain": {
                "t0": round(taus["own"]["t0"] / taus["other"]["t0"] - 1, 4),
                "t1": [round(value, 4) for value in (_mean(gains), min(gains), max(gains))],
            },
            "passes": taus,
            "speed_ratio": {
                "house": self._speed("float", "int8", prompts),
                "wide": self._speed("wide-float", "wide-int8", prompts),
            },
            "size_share": {"house": round(self.sizes["int8"], 3), "wide": round(self.sizes["wide-int8"], 3)},
            "sample": self.sample,
            "prompts": len(asked),
            "k": K,
        }

    def _taus(self, drafter: str, asked: list[list[int]]) -> dict[str, Any]:
        """Acceptance lengths with a drafter: of the greedy pass, and of each sampled one."""
        config = json.dumps({"method": "eagle3", "model": f"{drafter}/drafter", "num_speculative_tokens": K, **SAMPLED})
        shared = {"concurrency": CONCURRENCY, "max_tokens": 32 if self.quick else 128}
        with vllm_server(self.python, "int8", "--speculative-config", config, *OPTIONS, folder=self.folder) as server:
            greedy = measure_served(server, asked, temperature=0, **shared)
            sampled = [
                measure_served(server, asked, temperature=1, seed=1_000 * number, **shared) for number in range(self.passes)
            ]
        self.sample = greedy.replies[0].text[:200]
        return {"t0": round(greedy.acceptance.tau, 4), "t1": [round(each.acceptance.tau, 4) for each in sampled]}

    def _speed(self, plain: str, quantized: str, prompts: dict[str, list]) -> dict[str, Any]:
        """tokens/s of both at each concurrency, and their ratio."""
        found = {}
        for name in (plain, quantized):
            with vllm_server(self.python, name, *OPTIONS, folder=self.folder) as server:
                self._tokens_per_second(server, prompts, 8, 8)  # its first requests are slower
                found[name] = [
                    self._tokens_per_second(server, prompts, concurrency, 12 if concurrency == 1 else 48)
                    for concurrency in CONCURRENCIES
                ]
        return {
            str(concurrency): {"ratio": round(int8 / of_float, 3), "float": round(of_float, 1), "int8": round(int8, 1)}
            for concurrency, of_float, int8 in zip(CONCURRENCIES, found[plain], found[quantized], strict=True)
        }

    def _tokens_per_second(self, server: ServedModel, prompts: dict[str, list], concurrency: int, count: int) -> float:
        asked = [prompt.ids for prompt in mixed(prompts, 4 if self.quick else count)]
        return measure_served(
            server, asked, concurrency=concurrency, max_tokens=24 if self.quick else 128, temperature=0, ignore_eos=True
        ).tokens_per_second


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 4)


if __name__ == "__main__":
    main()
