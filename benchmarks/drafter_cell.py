"""Trains and measures one drafter of the house model in a process of its own, and keeps the result for comparisons.

    cells = [Cell("eagle3", "kl", seed=0), Cell("eagle3", "lk_lambda", seed=0, workloads=("math",))]
    found = measured(cells, FULL, House(shared, folder), side_by_side=2)
    found[cells[0]].rows["t1"]                      # AcceptanceRow of every held-out prompt at T = 1
    tau(found[cells[0]].rows["t1"], "math")

Every cell trains on answers of its workloads (all where none is named) in the same number of steps of as many tokens, K = 5,
on hidden states that were computed once, one thread each; it is measured by the exact decoder on the held-out prompts of all
three workloads: t1 (drafts drawn at T = 1), and with seed 0 also t0 and, of a generic drafter, t1_greedy (its likeliest token
at T = 1, as a server drafts that is not told otherwise). What a cell found is a file in the house's folder, named by all that
determines it, so an ended benchmark goes on, and two benchmarks share what both need.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.house import OPTIMIZER, WORKLOADS, House, K
from benchmarks.one_case import PROJECT, one_case
from model_ops.decoding.drafters import Drafter
from model_ops.drafting.acceptance import AcceptanceRow, summarize
from model_ops.files.atomic_files import renamed_when_complete
from model_ops.speculators.decoder_config import default_layer_ids
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.settings import SpeculatorSettings


@dataclass(frozen=True)
class Size:
    """How much every cell trains and is measured. share: of the answers every `share`th; precision: of training's products."""

    steps: int
    tokens_per_step: int
    share: int
    prompts: int
    max_new_tokens: int
    precision: str = "bfloat16"


FULL = Size(steps=373, tokens_per_step=2_048, share=1, prompts=60, max_new_tokens=128)
"""One and a half times through all answers."""
QUICK = Size(steps=6, tokens_per_step=512, share=60, prompts=4, max_new_tokens=16)


@dataclass(frozen=True)
class Cell:
    drafter: str
    loss: str
    seed: int
    workloads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """rows: of every held-out prompt, by way of decoding. training: steps, precision, tokens, seconds, loss,
    draft_vocab_size."""

    rows: dict[str, list[AcceptanceRow]]
    training: dict[str, Any]


def cell_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of benchmarks that consist of cells."""
    parser.add_argument("--folder", type=Path, help="where answers, states and finished trainings are kept; open: nowhere")
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--quick", action="store_true", help="a few steps: the figures mean nothing")
    parser.add_argument("--side-by-side", type=int, default=2, help="trainings at once, one thread each")
    parser.add_argument("--steps", type=int, help=f"of every training; open: {FULL.steps}, one and a half times through all")
    parser.add_argument(
        "--precision",
        choices=("bfloat16", "float32"),
        default=FULL.precision,
        help="of training's products: float32 is the faster one on some processors without AMX",
    )


def size_of(given: argparse.Namespace) -> Size:
    """What these arguments ask for."""
    size = QUICK if given.quick else FULL
    return replace(size, steps=given.steps or size.steps, precision=given.precision)


def measured(cells: Sequence[Cell], size: Size, house: House, side_by_side: int) -> dict[Cell, Found]:
    """Runs the cells that were not run yet. Raises SystemExit with the end of its messages where one fails."""
    with ThreadPoolExecutor(side_by_side) as pool:
        missing = [cell for cell in cells if not _file(house, cell, size).exists()]
        for workloads in {cell.workloads for cell in missing}:  # before several ask at once
            _states(house, size, workloads)
        list(pool.map(lambda cell: _keep(cell, size, house), missing))
    found = {cell: json.loads(_file(house, cell, size).read_text()) for cell in cells}
    return {
        cell: Found({way: [AcceptanceRow(**row) for row in rows] for way, rows in said["rows"].items()}, said["training"])
        for cell, said in found.items()
    }


def tau(rows: Sequence[AcceptanceRow], workload: str | None = None) -> float:
    """Acceptance length over all prompts, or one workload's."""
    return round(summarize([row for row in rows if workload in (None, row.workload)])["tau"], 4)


def decoded(house: House, drafters: dict[str, Drafter], temperature: float, size: Size) -> list[AcceptanceRow]:
    """The drafters on the held-out prompts of all workloads."""
    prompts = [prompt for workload in WORKLOADS for prompt in house.prompts[workload][: size.prompts]]
    return house.measured(drafters, prompts, temperature, max_new_tokens=size.max_new_tokens)


def _states(house: House, size: Size, workloads: tuple[str, ...]) -> None:
    layer_ids = default_layer_ids(house.runner.config.num_hidden_layers)
    house.states(house.rows(*workloads, share=size.share), layer_ids)


def _settings(cell: Cell, size: Size) -> SpeculatorSettings:
    return speculator_settings(
        architecture=cell.drafter,
        loss=cell.loss,
        seed=cell.seed,
        **OPTIMIZER,
        precision=size.precision,
        steps=size.steps,
        tokens_per_step=size.tokens_per_step,
        max_length=2_048,
        num_speculative_tokens=K,
        ttt_steps=K,
        step_decay=1.0,
        warmup_share=0.04,
        checkpoint_every=100_000,
    ).resolved()


def _file(house: House, cell: Cell, size: Size) -> Path:
    key = json.dumps([asdict(cell), asdict(size), _settings(cell, size).model_dump(mode="json")])
    name = "-".join([cell.drafter, cell.loss, *cell.workloads, str(cell.seed)])
    return house.folder / "cells" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def _keep(cell: Cell, size: Size, house: House) -> None:
    case = {"cell": asdict(cell), "size": asdict(size), "shared": str(house.shared), "folder": str(house.folder)}
    found = one_case("drafter_cell", "--cell", case, OMP_NUM_THREADS="1")
    path = _file(house, cell, size)
    with renamed_when_complete(path) as temporary:
        temporary.write_text(json.dumps(found))
    print(f"{path.stem}: {found['training']}", flush=True)


def _run(cell: Cell, size: Size, house: House) -> dict[str, Any]:
    torch.set_num_threads(1)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="drafter-cell-") as work:
        model, result = house.trained(house.rows(*cell.workloads, share=size.share), _settings(cell, size), Path(work) / "work")
    seconds = time.monotonic() - started_s
    ways = {"t1": (1.0, False)}
    if cell.seed == 0:
        ways["t0"] = (0.0, False)
        if not cell.workloads:
            ways["t1_greedy"] = (1.0, True)
    rows = {
        way: [asdict(row) for row in decoded(house, {cell.drafter: model.drafter(greedy=greedy)}, temperature, size)]
        for way, (temperature, greedy) in ways.items()
    }
    return {
        "rows": rows,
        "training": {
            "steps": result.steps,
            "precision": size.precision,
            "tokens": result.tokens,
            "seconds": round(seconds, 1),
            "loss": round(result.loss, 4),
            "draft_vocab_size": len(model.target_ids),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafter_cell", description=__doc__.splitlines()[0])
    parser.add_argument("--cell", required=True, help="a case, as JSON")
    case = json.loads(parser.parse_args().cell)
    cell = Cell(**{**case["cell"], "workloads": tuple(case["cell"]["workloads"])})
    os.nice(5)  # several run side by side, and nobody's clock is read
    print(json.dumps(_run(cell, Size(**case["size"]), House(Path(case["shared"]), Path(case["folder"])))))


if __name__ == "__main__":
    main()
