"""Our EAGLE-3 training against the trainers of `speculators` 0.9 and `specforge` 0.2: speed, memory, acceptance of the heads.

    python -m benchmarks.drafter_peers --peers FOLDER --folder FOLDER         # on 2 idle cores, an hour
    python -m benchmarks.drafter_peers --peers FOLDER --quick                 # a few steps: the figures mean nothing

FOLDER of --peers gets an environment for each peer, made where it is missing (requirements-speculators.txt,
requirements-specforge.txt; the peer itself without its dependencies, which drag CUDA builds and servers along).

Same for all: the house model's hidden states, computed once and written in each peer's own offline format; the draft
vocabulary, which is the target's whole one; one decoder layer of the target's width; 3 training-time steps; bfloat16 products.
Each peer makes its own batches (speculators packs 2,048 tokens a step, specforge takes as many rows as make that on average)
and OURS IS TRAINED ON EXACTLY THOSE, step by step: the same rows, the same steps, the same tokens. Each process is alone, on
the same number of threads; the loss is each one's KL.

speculators runs its command line in two ways: `eagle3` (the paper's architecture; AdamW linear) and `muon` (its own defaults:
norms before the fusion and before the residual, normed feedback, Muon; AdamW at a tenth of its rate for the rest). Attention
is `eager` or `sdpa`, whichever is faster in a short run; its default is made for GPUs. Data workers: none, its 12 would be 12
processes. specforge runs with `sdpa`, DDP (NO_SHARD) of one process, AdamW (it has no other optimizer), rows one by one or as
one padded batch, whichever is faster, and in two ways: `eagle3` and `fc_norm` (each state normalised). The changes that make
them run without a GPU are listed at the top of speculators_peer.py and specforge_peer.py.

Learning rates: every way, ours too, is trained at three rates, and at the next one as long as the best is at an end. Best is
the largest expected acceptance length on validation answers that no training reads. The best way of a peer is then trained
with three seeds, as ours is, on the peer's rows of each seed.

ours: our optimizer (Muon) for EAGLE-3.1 with KL, begun as our trainer begins (the target's output rows, trained; a layer that
begins as a small change of the target's deepest state). lk_lambda: the same with our default loss. ours_adamw: EAGLE-3, AdamW.
ours_peer_start: ours but for the peer's start (benchmarks/our_drafter.py), so that loss and code are compared alone. Each has a
rate of its own.

speed_ratio: our tokens/s over the peer's in short trainings that take turns, after all else, steps after the first few: the
mean, the smallest and the largest of the pairs; tokens are those of the rows, no padding. memory_ratio: our process's largest
resident size over the peer's, seed by seed, likewise. tau_gain: mean acceptance length (K = 5, exact decoder, held-out prompts
of three workloads, T = 0 and 1) over the peer's, less 1, with its 95 % interval over prompts and seeds.
"""

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
from benchmarks.house import MAX_LENGTH, WORKLOADS, House, K
from benchmarks.peer_environment import environment
from benchmarks.record import record
from model_ops.decoding.incremental import FINAL
from model_ops.drafting.acceptance import SEED_INTERVALS, AcceptanceRow, paired_gain, summarize
from model_ops.models.model_directory import read_config
from model_ops.speculators.decoder_config import default_layer_ids
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.factory import load_draft_model
from model_ops.speculators.losses.chain_loss import Teacher
from model_ops.speculators.losses.training_loss import measure_alpha
from model_ops.speculators.states.hidden_states import AnswerRow, read_answers

PROJECT = Path(__file__).resolve().parent.parent
PEERS = {"speculators": ("speculators==0.9.0", "hs-connectors==0.9.0"), "specforge": ("specforge==0.2.0",)}
TOKENS_PER_STEP, TTT_STEPS = 2_048, 3
SEEDS = (0, 1, 2)
TEMPERATURES = {"t0": 0.0, "t1": 1.0}
FULL = {"prompts": 24, "max_new_tokens": 128, "steps": 40, "short": 6, "timed": 15, "pairs": 3, "warm": 3}
QUICK = {"prompts": 2, "max_new_tokens": 8, "steps": 2, "short": 0, "timed": 2, "pairs": 1, "warm": 1}
RATES, STEP_OF_RATES, MOST_RATES = (1e-3, 3e-3, 1e-2), 3.0, 5
"""Learning rates that are tried first, the factor between further ones, and how many are tried at most."""
ADAMW = ("--optimizer", "adamw", "--lr", "{rate}")
SPECULATORS = {
    "eagle3": ("--no-norm-before-residual", "--no-norm-before-fc", "--no-norm-output", *ADAMW),
    "muon": ("--muon-lr", "{rate}", "--lr", "{tenth}"),
}
"""The flags of each way that speculators is run in."""
SAME = {"ttt_steps": TTT_STEPS, "num_speculative_tokens": K, "preset": "quick", "tokens_per_step": TOKENS_PER_STEP}
OURS = {"architecture": "eagle3.1", "loss": "kl", "optimizer": "muon"}
"""Our settings in every run, and those of our side at its best with the peers' loss."""


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
        return {
            "tokens_per_s": round(self.tokens_per_s, 1),
            "peak_mb": round(self.peak_mb),
            "steps": len(self.losses),
            "loss": [round(sum(part) / few, 3) for part in (self.losses[:few], self.losses[-few:])],
        }


Way = Callable[[float, int], Run]
"""A training at a learning rate, with a seed."""


@dataclass
class Tuned:
    """A way of training at its best rate: the validation's expected acceptance length by rate, and that rate's run."""

    rate: float
    by_rate: dict[float, float]
    run: Run

    @property
    def best(self) -> float:
        return self.by_rate[self.rate]


@dataclass
class Measured:
    """Runs of one way, a seed each, and how their heads fare: rows by temperature and seed."""

    runs: list[Run]
    rows: dict[str, list[list[AcceptanceRow]]]

    def told(self) -> dict[str, Any]:
        return {
            "runs": [run.told() for run in self.runs],
            "tau": {name: [round(summarize(rows)["tau"], 3) for rows in seeds] for name, seeds in self.rows.items()},
        }


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
    chosen = [peer for peer in PEERS if given.only in (None, peer)]
    pythons = {peer: environment(given.peers.resolve() / peer, peer, PEERS[peer]) for peer in chosen}
    with tempfile.TemporaryDirectory(prefix="drafter-peers-") as scratch:
        house = House(given.shared, given.folder or Path(scratch) / "house")
        bench = Bench(house, Path(scratch), size, pythons, given.threads)
        record("drafter_peers", bench.figures(), keep=not (given.quick or given.only))


def rows_for(rows: list[AnswerRow], tokens: int) -> list[AnswerRow]:
    """A seeded choice of rows that hold at least so many tokens; all of them where they hold fewer."""
    chosen, held = [], 0
    for row in random.Random(0).sample(rows, len(rows)):
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
        self.pairs: dict[str, Callable[[int], tuple[Run, Run]]] = {}
        self.held_out = read_answers(house.answers() / "validation.parquet", MAX_LENGTH)[0][: 4 if self.quick else None]

    @property
    def quick(self) -> bool:
        """Whether nothing is compared: one way of each peer, and our KL alone."""
        return not self.size["short"]

    def figures(self) -> dict[str, Any]:
        """Writes the material, trains all, measures all."""
        self.write_material()
        found: dict[str, Any] = {}
        ways_of = {"speculators": self.speculators, "specforge": self.specforge}
        for peer in self.pythons:
            found[peer] = self.against(peer, ways_of[peer]())
            print(json.dumps({peer: found[peer]}), flush=True)
        for peer, pair in self.pairs.items():
            timed = [pair(number) for number in range(self.size["pairs"])]
            found[peer] |= {
                "speed_ratio": mean_and_range([ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in timed]),
                "tokens_per_s": [[round(run.tokens_per_s) for run in each] for each in timed],
            }
        return {
            **found,
            "rows": len(self.rows),
            "tokens": sum(self.lengths),
            "threads": self.threads,
            "prompts": len(WORKLOADS) * self.size["prompts"],
            "validation_rows": len(self.held_out),
            "intervals": SEED_INTERVALS,
        }

    def against(self, peer: str, ways: dict[str, Way]) -> dict[str, Any]:
        """One peer at the best of its ways and rates, and ours on its rows."""
        tuned = {name: self.tuned(peer, train) for name, train in ways.items()}
        best = max(tuned, key=lambda name: tuned[name].best)
        first = tuned[best].run
        theirs = [first, *(ways[best](tuned[best].rate, seed) for seed in self.seeds[1:])]
        sides = {peer: self.measured(peer, theirs)}
        rates = {name: {"rate": each.rate, "validation_tau_by_rate": each.by_rate} for name, each in tuned.items()}
        plans = {
            "ours": OURS,
            "ours_peer_start": {**OURS, "start": peer},
            "lk_lambda": {**OURS, "loss": "lk_lambda"},
            "ours_adamw": {**OURS, "architecture": "eagle3", "optimizer": "adamw"},
        }
        for name, settings in plans.items():

            def train(rate: float, seed: int, name: str = name, settings: dict[str, Any] = settings) -> Run:
                return self.ours(f"{peer}-{name}-{rate:g}-{seed}", theirs[seed].batches, seed, learning_rate=rate, **settings)

            chosen = self.tuned("ours", train)
            rates[name] = {"rate": chosen.rate, "validation_tau_by_rate": chosen.by_rate}
            runs = [chosen.run, *(train(chosen.rate, seed) for seed in self.seeds[1:])]
            sides[name] = self.measured("ours", runs)
        own = partial(
            self.ours, batches=first.batches[: self.size["timed"]], seed=SEEDS[0], learning_rate=rates["ours"]["rate"], **OURS
        )
        self.pairs[peer] = partial(self.pair, peer, own, partial(ways[best], tuned[best].rate, SEEDS[0]))
        others = {name: side for name, side in sides.items() if name != peer}
        return {
            "way": best,
            "rates": rates,
            "memory_ratio": mean_and_range(
                [ours.peak_mb / other.peak_mb for ours, other in zip(sides["ours"].runs, theirs, strict=True)]
            ),
            "tau_gain": {name: gains(side.rows, sides[peer].rows) for name, side in others.items()},
            "sides": {name: side.told() for name, side in sides.items()},
        }

    def pair(self, peer: str, own: Callable[..., Run], theirs: Callable[..., Run], number: int) -> tuple[Run, Run]:
        """Ours and the peer's in a short training each, one after the other; they take turns at being the first."""
        sides = {
            "ours": lambda: own(f"{peer}-timed-{number}"),
            "theirs": lambda: theirs(steps=self.size["timed"], again=number + 1),
        }
        runs = {side: sides[side]() for side in sorted(sides, reverse=number % 2 == 1)}
        return runs["ours"], runs["theirs"]

    @property
    def seeds(self) -> tuple[int, ...]:
        return SEEDS[:1] if self.quick else SEEDS

    def tuned(self, side: str, train: Way) -> Tuned:
        """Trains at the rates with the first seed, and at further ones as long as the best is at an end."""
        runs: dict[float, Run] = {}
        reached: dict[float, float] = {}
        waiting = list(RATES[1:2] if self.quick else RATES)
        while waiting:
            rate = waiting.pop(0)
            runs[rate] = train(rate, SEEDS[0])
            reached[rate] = round(self.validation_tau(self.head(side, runs[rate])), 4)
            if not waiting and not self.quick and len(runs) < MOST_RATES:
                waiting = next_rate(reached)
        best = max(reached, key=reached.__getitem__)
        return Tuned(best, dict(sorted(reached.items())), runs[best])

    def validation_tau(self, model: DraftModel) -> float:
        """Expected acceptance length of chains of K along the validation's answers."""
        teacher = Teacher(self.house.runner.head.weight, model.target_ids)
        with torch.no_grad():
            return measure_alpha(model.eval(), teacher, self.held_out, self.held_out_states, K)["validation_expected_tau"]

    def measured(self, side: str, runs: list[Run]) -> Measured:
        """The heads of these runs on the held-out prompts, in the exact decoder."""
        rows: dict[str, list[list[AcceptanceRow]]] = {name: [] for name in TEMPERATURES}
        prompts = [prompt for workload in WORKLOADS for prompt in self.house.prompts[workload][: self.size["prompts"]]]
        for run in runs:
            drafter = self.head(side, run).ready_to_draft(self.house.runner.dtype).drafter()
            for name, temperature in TEMPERATURES.items():
                rows[name].append(
                    self.house.measured({"drafter": drafter}, prompts, temperature, max_new_tokens=self.size["max_new_tokens"])
                )
        return Measured(runs, rows)

    def write_material(self) -> None:
        """Hidden states, once, in each peer's own form. speculators insists on a validation row: the shortest one again."""
        captured = self.house.states(self.rows, (*self.layer_ids, self.config.num_hidden_layers, FINAL))
        self.house.states(self.rows, self.layer_ids)
        self.held_out_states = self.house.states(self.held_out, self.layer_ids)
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

    def speculators(self) -> dict[str, Way]:
        """Its two ways, with the attention that is faster here."""

        def train(name: str, attention: str, rate: float, seed: int, steps: int, again: int = 0) -> Run:
            flags = [text.format(rate=rate, tenth=rate / 10) for text in SPECULATORS[name]]
            return self.speculators_run(f"{name}-{attention}-{rate:g}-{seed}-{steps}-{again}", attention, flags, seed, steps)

        attention = self.faster({each: partial(train, "eagle3", each, RATES[0], SEEDS[0]) for each in ("eager", "sdpa")})
        ways = list(SPECULATORS)[:1] if self.quick else SPECULATORS
        return {name: partial(train, name, attention, steps=self.size["steps"]) for name in ways}

    def speculators_run(self, name: str, attention: str, flags: Sequence[str], seed: int, steps: int) -> Run:
        data, output = self.folder / "speculators", self.folder / f"speculators-{name}"
        train_share = (len(self.rows) + 0.5) / (len(self.rows) + 1)
        words = {
            "verifier-name-or-path": self.house.target,
            "data-path": data,
            "hidden-states-path": data / "hidden_states",
            "on-missing": "raise",
            "speculator-type": "eagle3",
            "target-layer-ids": self.layer_ids,
            "ttt-steps": TTT_STEPS,
            "total-seq-len": TOKENS_PER_STEP,
            "train-data-ratio": train_share,
            "num-workers": 0,
            "draft-attn-impl": attention,
            "loss-implementation": "eager",
            "seed": seed,
            "save-path": output,
            "log-dir": self.folder / "logs",
        }
        told = [
            text
            for word, value in words.items()
            for text in (f"--{word}", *(map(str, value) if isinstance(value, tuple) else [str(value)]))
        ]
        result = self.peer(
            "speculators",
            name,
            {
                "rows": str(data / "rows.jsonl"),
                "data": str(data),
                "steps": steps,
                "seed": seed,
                "total_seq_len": TOKENS_PER_STEP,
                "flags": [*told, *flags],
            },
        )
        newest = max((path for path in output.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        return self.run(result, newest)

    def specforge(self) -> dict[str, Way]:
        """Its two ways, with rows one by one or as one batch, whichever is faster here."""
        at_once = max(1, round(TOKENS_PER_STEP / (sum(self.lengths) / len(self.lengths))))
        batches = {"one by one": (1, at_once), "one batch": (at_once, 1)}

        def train(way: str, batch: str, rate: float, seed: int, steps: int, again: int = 0) -> Run:
            run = f"{way}-{batch.replace(' ', '-')}-{rate:g}-{seed}-{steps}-{again}"
            return self.specforge_run(run, way == "fc_norm", *batches[batch], rate, seed, steps)

        batch = self.faster({each: partial(train, "eagle3", each, RATES[0], SEEDS[0]) for each in batches})
        ways = ("eagle3",) if self.quick else ("eagle3", "fc_norm")
        return {way: partial(train, way, batch, steps=self.size["steps"]) for way in ways}

    def specforge_run(
        self, name: str, fc_norm: bool, batch_size: int, accumulation: int, rate: float, seed: int, steps: int
    ) -> Run:
        output, target, draft = (
            self.folder / f"specforge-{name}",
            self.folder / "indexed-target",
            self.folder / f"specforge-{name}.draft.json",
        )
        index_target(self.house.target, target)
        draft.write_text(json.dumps(specforge_draft(read_config(target), self.layer_ids, fc_norm)))
        config = self.folder / f"specforge-{name}.config.json"
        head = "lm_head.weight" if not self.config.tie_word_embeddings else "model.embed_tokens.weight"
        config.write_text(
            json.dumps(
                {
                    "model": {"target_model_path": str(target), "draft_model_config": str(draft), "lm_head_key": head},
                    "data": {
                        "hidden_states_path": str(self.folder / "specforge"),
                        "max_length": TOKENS_PER_STEP,
                        "cache_dir": str(self.folder / "specforge-cache"),
                    },
                    "training": {
                        "strategy": "eagle3",
                        "max_steps": steps,
                        "batch_size": batch_size,
                        "accumulation_steps": accumulation,
                        "num_epochs": math.ceil(steps * batch_size * accumulation / len(self.rows)) + 1,
                        "fsdp_sharding": "NO_SHARD",
                        "learning_rate": rate,
                        "ttt_length": TTT_STEPS,
                        "attention_backend": "sdpa",
                        "log_interval": 1,
                        "seed": seed,
                    },
                    "run_id": "peer",
                    "output_dir": str(output),
                }
            )
        )
        result = self.peer("specforge", name, {"config": str(config), "head": str(output / "head")})
        return self.run(result, output / "head")

    def ours(self, name: str, batches: list[list[int]], seed: int, start: str = "ours", **settings: Any) -> Run:
        output = self.folder / f"ours-{name}"
        states = self.house.states(self.rows, self.layer_ids)
        result = self.child(
            [sys.executable, "-m", "benchmarks.our_drafter"],
            f"ours-{name}",
            {
                "target": str(self.house.target),
                "rows": str(self.folder / "rows.jsonl"),
                "states": str(states.folder.parent),
                "batches": batches,
                "output": str(output),
                "start": start,
                "settings": {**SAME, "seed": seed, **settings, "draft_vocab_size": self.config.vocab_size},
            },
            {},
        )
        return self.run({**result, "batches": batches}, output)

    def faster(self, ways: dict[str, Callable[..., Run]]) -> str:
        """The way whose short run was faster; the first with --quick."""
        if self.quick:
            return next(iter(ways))
        return max(ways, key=lambda way: ways[way](steps=self.size["short"]).tokens_per_s)

    def peer(self, peer: str, name: str, job: dict[str, Any]) -> dict[str, Any]:
        script = PROJECT / "benchmarks" / f"{peer}_peer.py"
        home = self.pythons[peer].parent.parent
        return self.child(
            [str(self.pythons[peer]), str(script)],
            f"{peer}-{name}",
            job,
            {
                "PYTHONPATH": "",
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": str(self.folder / "hugging-face"),
                "TORCHINDUCTOR_CACHE_DIR": str(home / "compiled"),
            },
        )

    def child(self, command: list[str], name: str, job: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
        """A training in a process of its own. Raises SystemExit with its last line of output if it fails."""
        paths = [self.folder / f"{name}.job.json", self.folder / f"{name}.result.json"]
        paths[0].write_text(json.dumps({**job, "threads": self.threads}))
        done = subprocess.run(
            [*command, *map(str, paths)],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(self.threads), **variables},
        )
        if done.returncode or not paths[1].exists():
            raise SystemExit(f"{name} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
        return json.loads(paths[1].read_text())

    def run(self, result: dict[str, Any], head: Path) -> Run:
        """Speed over the steps after the first few, in tokens of the rows."""
        steady = slice(min(self.size["warm"], len(result["steps"]) - 1), None)
        tokens = sum(self.lengths[row] for batch in result["batches"][steady] for row in batch)
        return Run(
            tokens / sum(step["seconds"] for step in result["steps"][steady]),
            result["peak_mb"],
            [step["loss"] for step in result["steps"]],
            result["batches"],
            head,
        )

    def head(self, side: str, run: Run) -> DraftModel:
        if side == "speculators":
            return read_speculators_head(run.head, self.config)
        if side == "specforge":
            return read_specforge_head(run.head, self.config, self.layer_ids)
        return load_draft_model(run.head)


def next_rate(reached: dict[float, float]) -> list[float]:
    """[the rate beyond the best one], where the best is the lowest or the highest of those tried; else []."""
    rates = sorted(reached)
    best = max(reached, key=reached.__getitem__)
    if best == rates[-1]:
        return [best * STEP_OF_RATES]
    return [best / STEP_OF_RATES] if best == rates[0] else []


def mean_and_range(values: Sequence[float]) -> list[float]:
    """[mean, smallest, largest]"""
    return [round(value, 3) for value in (sum(values) / len(values), min(values), max(values))]


def gains(ours: dict[str, list[list[AcceptanceRow]]], theirs: dict[str, list[list[AcceptanceRow]]]) -> dict[str, list[float]]:
    """Our acceptance length over theirs, less 1, by temperature, each with its 95 % interval."""
    found = {name: paired_gain(theirs[name], ours[name]) for name in TEMPERATURES}
    return {name: [round(value, 4) for value in (gain.share, gain.low, gain.high)] for name, gain in found.items()}


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


def specforge_draft(target: dict[str, Any], layer_ids: tuple[int, int, int], fc_norm: bool) -> dict[str, Any]:
    """The draft config that specforge derives from a target by itself, but for the whole vocabulary and `fc_norm`."""
    copied = (
        "vocab_size",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
        "initializer_range",
        "attention_bias",
        "head_dim",
        "rope_parameters",
        "bos_token_id",
        "eos_token_id",
    )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": target["vocab_size"],
        "tie_word_embeddings": False,
        "use_cache": True,
        "pad_token_id": 0,
        "fc_norm": fc_norm,
        **{name: target[name] for name in copied if target.get(name) is not None},
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in layer_ids],
            "use_aux_hidden_state": True,
        },
    }


if __name__ == "__main__":
    main()
