"""Our EAGLE-3 training against the trainers of `speculators` 0.9 and `specforge` 0.2: speed, memory, acceptance of the heads.

    python -m benchmarks.drafter_peers --peers FOLDER --folder FOLDER         # on 2 idle cores
    python -m benchmarks.drafter_peers --peers FOLDER --quick                 # a few steps: the figures mean nothing

FOLDER of --peers gets an environment for each peer, made where it is missing (requirements-speculators.txt,
requirements-specforge.txt; the peer itself without its dependencies, which drag CUDA builds and servers along).

Same for all: the house model's hidden states, computed once and written in each peer's own offline format; the draft
vocabulary, which is the target's whole one; one decoder layer of the target's width; 3 training-time steps; bfloat16 products.
Each peer makes its own batches (speculators packs 2,048 tokens a step, specforge takes as many rows as make that on average)
and OURS IS TRAINED ON EXACTLY THOSE, step by step: the same rows, the same steps, the same tokens. Each process is alone, on
the same number of threads; the loss is each one's KL.

speculators runs its command line in two ways, and each figure is against the better of them: `defaults` (Muon 1e-3, norms
before the fusion and before the residual, normed feedback) and `eagle3` (the paper's architecture, ours; AdamW 3e-3 linear).
Attention is `eager` or `sdpa`, whichever is faster in a short run; its default is made for GPUs. Data workers: none, its 12
would be 12 processes. specforge runs with `sdpa`, DDP (NO_SHARD) of one process, learning rate 3e-3 (its default of 1e-4 is for
runs a hundred times as long), and rows one by one or as one padded batch, whichever is faster. The changes that make them run
without a GPU are listed at the top of speculators_peer.py and specforge_peer.py.

speed_ratio: our tokens/s over the peer's, steps after the first few; tokens are those of the rows, no padding. memory_ratio:
our process's largest resident size over the peer's, everything included. tau_ratio: mean acceptance length (K = 5, exact
decoder, held-out prompts of three workloads, T = 0 and 1) over the peer's; tau_ratio_lowest is its lowest cell. lk_lambda: the
same steps with our default loss and the optimizer of our other benchmarks (Muon); our KL runs have AdamW 3e-3, as those of the
peers that have AdamW, the best of 1.5e-3 to 1e-2 for ours. known_served: what an earlier, longer run of speculators reached
when served by vLLM.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from benchmarks.drafter_peer_formats import (
    read_specforge_head,
    read_speculators_head,
    write_for_specforge,
    write_for_speculators,
    write_rows,
)
from benchmarks.house import OPTIMIZER, WORKLOADS, House, K
from benchmarks.record import record
from model_ops.decoding.acceptance import summarize
from model_ops.decoding.incremental import FINAL
from model_ops.models.model_directory import read_config
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.eagle3_config import default_layer_ids
from model_ops.speculators.factory import load_draft_model
from model_ops.speculators.hidden_states import AnswerRow

PROJECT = Path(__file__).resolve().parent.parent
PEERS = {"speculators": ("speculators==0.9.0", "hs-connectors==0.9.0"), "specforge": ("specforge==0.2.0",)}
TOKENS_PER_STEP, TTT_STEPS, SEED = 2_048, 3, 0
TEMPERATURES = {"t0": 0.0, "t1": 1.0}
FULL = {"prompts": 24, "max_new_tokens": 128, "steps": 60, "short": 6, "warm": 3}
QUICK = {"prompts": 2, "max_new_tokens": 8, "steps": 2, "short": 0, "warm": 1}
ADAMW_RATE = 3e-3
SPECULATORS = {
    "eagle3": ("--no-norm-before-residual", "--no-norm-before-fc", "--no-norm-output",
               "--optimizer", "adamw", "--lr", str(ADAMW_RATE)),
    "defaults": (),
}
"""The flags of each way that speculators is run in."""
KNOWN_SERVED = {"trainer": "speculators 0.9, KL, eager, 498 steps of up to 2,048 tokens", "tokens_per_s_with_states": 570,
                "tau": {"math": {"t0": 1.97, "t1": 1.82}, "airline": {"t0": 2.66, "t1": 1.84},
                        "code": {"t0": 1.71, "t1": 1.73}}}
OURS = {"ttt_steps": TTT_STEPS, "num_speculative_tokens": K, "preset": "quick", "tokens_per_step": TOKENS_PER_STEP,
        "seed": SEED}


@dataclass
class Run:
    """One training: what it took, what it was fed, and its head."""

    tokens_per_s: float
    peak_mb: float
    losses: list[float]
    batches: list[list[int]]
    head: Path

    def told(self) -> dict[str, Any]:
        few = max(1, len(self.losses) // 10)
        return {"tokens_per_s": round(self.tokens_per_s, 1), "peak_mb": round(self.peak_mb), "steps": len(self.losses),
                "loss": [round(sum(part) / few, 3) for part in (self.losses[:few], self.losses[-few:])]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafter_peers", description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, required=True, help="holds the peers' environments; they are made there")
    parser.add_argument("--folder", type=Path, help="where answers and hidden states are kept; open: nowhere")
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, help="optimizer steps of every training")
    parser.add_argument("--only", choices=sorted(PEERS), help="this peer alone; nothing is recorded")
    parser.add_argument("--quick", action="store_true", help="a few steps: the figures mean nothing")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    size = dict(QUICK if given.quick else FULL)
    size["steps"] = given.steps or size["steps"]
    pythons = {peer: environment(given.peers.resolve() / peer, peer) for peer in PEERS if given.only in (None, peer)}
    with tempfile.TemporaryDirectory(prefix="drafter-peers-") as scratch:
        house = House(given.shared, given.folder or Path(scratch) / "house")
        bench = Bench(house, Path(scratch), size, pythons, given.threads)
        record("drafter_peers", bench.figures(), keep=not (given.quick or given.only))


def environment(home: Path, peer: str) -> Path:
    """The interpreter of a peer's environment; made where it is missing (minutes). Raises SystemExit where pip cannot."""
    requirements = Path(__file__).with_name(f"requirements-{peer}.txt")
    ready = home / f"ready-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    python = home / "bin" / "python"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for what in (["-r", requirements], ["--no-deps", *PEERS[peer]]):
            done = subprocess.run([*pip, *what], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{peer} could not be installed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        ready.touch()
    return python


def rows_for(rows: list[AnswerRow], tokens: int) -> list[AnswerRow]:
    """A seeded choice of rows that hold at least so many tokens; all of them where they hold fewer."""
    chosen, held = [], 0
    for row in random.Random(SEED).sample(rows, len(rows)):
        if held >= tokens:
            break
        chosen.append(row)
        held += len(row.ids)
    return chosen


class Bench:
    """Everything of one run of the benchmark. `folder` holds what the trainings read and write."""

    def __init__(self, house: House, folder: Path, size: dict[str, int], pythons: dict[str, Path], threads: int):
        self.house, self.folder, self.size, self.pythons, self.threads = house, folder, size, pythons, threads
        self.config = house.runner.config
        self.layer_ids = default_layer_ids(self.config.num_hidden_layers)
        self.rows = rows_for(house.rows(), size["steps"] * TOKENS_PER_STEP)
        self.lengths = [len(row.ids) for row in self.rows]

    @property
    def quick(self) -> bool:
        """Whether nothing is compared: one way of each peer, and our KL alone."""
        return not self.size["short"]

    def figures(self) -> dict[str, Any]:
        """Writes the material, trains all, measures all."""
        self.write_material()
        found: dict[str, Any] = {}
        trainings = {"speculators": self.speculators, "specforge": self.specforge}
        for peer in self.pythons:
            theirs = trainings[peer]()
            best = max(theirs.values(), key=lambda run: run.tokens_per_s)
            # every way of a peer is fed the same steps
            ours = self.ours(f"{peer}-kl", best.batches, loss="kl", learning_rate=ADAMW_RATE)
            taus = {way: self.taus(self.head(peer, run)) for way, run in theirs.items()}
            own = self.taus(load_draft_model(ours.head))
            found[peer] = {**compared(ours, own, theirs, taus), "ours": {**ours.told(), "tau": own},
                           "ways": {way: {**run.told(), "tau": taus[way]} for way, run in theirs.items()}}
            if peer == "speculators" and not self.quick:
                lambdas = self.ours(f"{peer}-lk", best.batches, loss="lk_lambda", **OPTIMIZER)
                tau = self.taus(load_draft_model(lambdas.head))
                found[peer]["lk_lambda"] = {**lambdas.told(), "tau": tau,
                                            "tau_ratio": compared(lambdas, tau, theirs, taus)["tau_ratio"]}
            print(json.dumps({peer: found[peer]}), flush=True)
        return {**found, "known_served": KNOWN_SERVED, "rows": len(self.rows), "tokens": sum(self.lengths),
                "threads": self.threads}

    def write_material(self) -> None:
        """Hidden states, once, in each peer's own form. speculators insists on a validation row: the shortest one again."""
        captured = self.house.states(self.rows, (*self.layer_ids, self.config.num_hidden_layers, FINAL))
        self.house.states(self.rows, self.layer_ids)
        write_rows(self.rows, self.folder / "rows.jsonl")
        if "specforge" in self.pythons:
            write_for_specforge(self.rows, captured, self.folder / "specforge")
        if "speculators" in self.pythons:
            folder = self.folder / "speculators"
            write_for_speculators(self.rows, captured, folder)
            shortest = min(range(len(self.rows)), key=self.lengths.__getitem__)
            states = folder / "hidden_states"
            shutil.copyfile(states / f"hs_{shortest}.safetensors", states / f"hs_{len(self.rows)}.safetensors")
            write_rows([*self.rows, self.rows[shortest]], folder / "rows.jsonl")

    def speculators(self) -> dict[str, Run]:
        """Its two ways, with the attention that is faster here."""
        attention = self.faster({name: lambda steps, name=name: self.speculators_run(f"try-{name}", name, (), steps)
                                 for name in ("eager", "sdpa")})
        ways = dict(list(SPECULATORS.items())[:1]) if self.quick else SPECULATORS
        return {way: self.speculators_run(way, attention, flags, self.size["steps"]) for way, flags in ways.items()}

    def speculators_run(self, name: str, attention: str, flags: tuple[str, ...], steps: int) -> Run:
        data, output = self.folder / "speculators", self.folder / f"speculators-{name}"
        train_share = (len(self.rows) + 0.5) / (len(self.rows) + 1)
        words = {
            "verifier-name-or-path": self.house.target, "data-path": data, "hidden-states-path": data / "hidden_states",
            "on-missing": "raise", "speculator-type": "eagle3", "target-layer-ids": self.layer_ids, "ttt-steps": TTT_STEPS,
            "total-seq-len": TOKENS_PER_STEP, "train-data-ratio": train_share, "num-workers": 0, "draft-attn-impl": attention,
            "loss-implementation": "eager", "seed": SEED, "save-path": output, "log-dir": self.folder / "logs",
        }
        told = [text for word, value in words.items()
                for text in (f"--{word}", *(map(str, value) if isinstance(value, tuple) else [str(value)]))]
        result = self.peer("speculators", name, {
            "rows": str(data / "rows.jsonl"), "data": str(data), "steps": steps, "seed": SEED,
            "total_seq_len": TOKENS_PER_STEP, "flags": [*told, *flags]})
        newest = max((path for path in output.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        return self.run(result, newest)

    def specforge(self) -> dict[str, Run]:
        """Its rows one by one or as one batch, whichever is faster here."""
        at_once = max(1, round(TOKENS_PER_STEP / (sum(self.lengths) / len(self.lengths))))
        ways = {"one by one": (1, at_once), "one batch": (at_once, 1)}
        way = self.faster({name: lambda steps, name=name: self.specforge_run(f"try-{name.replace(' ', '-')}",
                                                                                *ways[name], steps) for name in ways})
        return {way: self.specforge_run("run", *ways[way], self.size["steps"])}

    def specforge_run(self, name: str, batch_size: int, accumulation: int, steps: int) -> Run:
        output, target, draft = (self.folder / f"specforge-{name}", self.folder / "indexed-target",
                                 self.folder / "specforge-draft.json")
        index_target(self.house.target, target)
        draft.write_text(json.dumps(specforge_draft(read_config(target), self.layer_ids)))
        config = self.folder / f"specforge-{name}.config.json"
        head = "lm_head.weight" if not self.config.tie_word_embeddings else "model.embed_tokens.weight"
        config.write_text(json.dumps({
            "model": {"target_model_path": str(target), "draft_model_config": str(draft), "lm_head_key": head},
            "data": {"hidden_states_path": str(self.folder / "specforge"), "max_length": TOKENS_PER_STEP,
                     "cache_dir": str(self.folder / "specforge-cache")},
            "training": {"strategy": "eagle3", "max_steps": steps, "batch_size": batch_size, "accumulation_steps": accumulation,
                         "num_epochs": math.ceil(steps * batch_size * accumulation / len(self.rows)) + 1,
                         "fsdp_sharding": "NO_SHARD", "learning_rate": ADAMW_RATE, "ttt_length": TTT_STEPS,
                         "attention_backend": "sdpa", "log_interval": 1, "seed": SEED},
            "run_id": "peer", "output_dir": str(output),
        }))
        result = self.peer("specforge", name, {"config": str(config), "head": str(output / "head")})
        return self.run(result, output / "head")

    def ours(self, name: str, batches: list[list[int]], **settings: Any) -> Run:
        output = self.folder / f"ours-{name}"
        states = self.house.states(self.rows, self.layer_ids)
        result = self.child([sys.executable, "-m", "benchmarks.our_drafter"], f"ours-{name}", {
            "target": str(self.house.target), "rows": str(self.folder / "rows.jsonl"), "states": str(states.folder.parent),
            "batches": batches, "output": str(output),
            "settings": {**OURS, **settings, "draft_vocab_size": self.config.vocab_size}}, {})
        return self.run({**result, "batches": batches}, output)

    def faster(self, ways: dict[str, Any]) -> str:
        """The way whose short run was faster; the first with --quick."""
        if self.quick:
            return next(iter(ways))
        return max(ways, key=lambda way: ways[way](self.size["short"]).tokens_per_s)

    def peer(self, peer: str, name: str, job: dict[str, Any]) -> dict[str, Any]:
        script = PROJECT / "benchmarks" / f"{peer}_peer.py"
        home = self.pythons[peer].parent.parent
        return self.child([str(self.pythons[peer]), str(script)], f"{peer}-{name}", job, {
            "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hugging-face"),
            "TORCHINDUCTOR_CACHE_DIR": str(home / "compiled")})

    def child(self, command: list[str], name: str, job: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
        """A training in a process of its own. Raises SystemExit with its last line of output if it fails."""
        paths = [self.folder / f"{name}.job.json", self.folder / f"{name}.result.json"]
        paths[0].write_text(json.dumps({**job, "threads": self.threads}))
        done = subprocess.run([*command, *map(str, paths)], cwd=PROJECT, capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": str(self.threads), **variables})
        if done.returncode or not paths[1].exists():
            raise SystemExit(f"{name} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
        return json.loads(paths[1].read_text())

    def run(self, result: dict[str, Any], head: Path) -> Run:
        """Speed over the steps after the first few, in tokens of the rows."""
        steady = slice(min(self.size["warm"], len(result["steps"]) - 1), None)
        tokens = sum(self.lengths[row] for batch in result["batches"][steady] for row in batch)
        return Run(tokens / sum(step["seconds"] for step in result["steps"][steady]), result["peak_mb"],
                   [step["loss"] for step in result["steps"]], result["batches"], head)

    def head(self, peer: str, run: Run) -> DraftModel:
        if peer == "speculators":
            return read_speculators_head(run.head, self.config)
        return read_specforge_head(run.head, self.config, self.layer_ids)

    def taus(self, model: DraftModel) -> dict[str, dict[str, float]]:
        def tau(workload: str, temperature: float) -> float:
            rows = self.house.measured({"drafter": model.drafter()}, self.house.prompts[workload][:self.size["prompts"]],
                                       temperature, max_new_tokens=self.size["max_new_tokens"])
            return round(summarize(rows)["tau"], 3)

        model = model.ready_to_draft(self.house.runner.dtype)
        return {workload: {name: tau(workload, temperature) for name, temperature in TEMPERATURES.items()}
                for workload in WORKLOADS}


def compared(ours: Run, own: dict[str, dict[str, float]], theirs: dict[str, Run],
             taus: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Against the fastest, the smallest and the best of a peer's ways."""
    fastest = max(run.tokens_per_s for run in theirs.values())
    smallest = min(run.peak_mb for run in theirs.values())
    best = max(taus.values(), key=mean_tau)
    cells = [own[workload][name] / best[workload][name] for workload in WORKLOADS for name in TEMPERATURES]
    return {"speed_ratio": round(ours.tokens_per_s / fastest, 3), "memory_ratio": round(ours.peak_mb / smallest, 3),
            "tau_ratio": round(mean_tau(own) / mean_tau(best), 3), "tau_ratio_lowest": round(min(cells), 3)}


def mean_tau(taus: dict[str, dict[str, float]]) -> float:
    values = [tau for by_temperature in taus.values() for tau in by_temperature.values()]
    return sum(values) / len(values)


def index_target(target: Path, folder: Path) -> None:
    """The target as specforge reads it: with an index of its tensors, also where they are one file."""
    folder.mkdir(exist_ok=True)
    where = {}
    for path in target.iterdir():
        if path.is_file() and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as tensors:
                where.update(dict.fromkeys(tensors.keys(), path.name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def specforge_draft(target: dict[str, Any], layer_ids: tuple[int, int, int]) -> dict[str, Any]:
    """The draft config that specforge derives from a target by itself, but for the whole vocabulary."""
    copied = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
              "max_position_embeddings", "rms_norm_eps", "hidden_act", "initializer_range", "attention_bias", "head_dim",
              "rope_parameters", "bos_token_id", "eos_token_id")
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "draft_vocab_size": target["vocab_size"], "tie_word_embeddings": False, "use_cache": True, "pad_token_id": 0,
        **{name: target[name] for name in copied if target.get(name) is not None},
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in layer_ids],
                         "use_aux_hidden_state": True},
    }


if __name__ == "__main__":
    main()
