"""Tries every operation on a tiny model of every family: full SFT, LoRA, distillation, int8, generation, EAGLE-3, evaluation,
and the checks of a release's parts.

    python -m benchmarks.families            # all families; writes the record that `millrace models` prints
    python -m benchmarks.families --quick    # three families; writes nothing

Models have random weights, 4 layers and 2 training steps: the benchmark counts what runs and is exact, not what it learns.
Exactness is tested apart: packed rows against documents alone (tests/model_ops/models/test_architectures.py), cached decoding
against whole rows (tests/model_ops/decoding/test_runners.py), and here greedy text with a drafter against text without.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import transformers

from benchmarks.record import record
from model_ops.families.table import FAMILIES
from model_ops.operations.trials.every_operation import TRIALS, try_operations, write_material
from model_ops.operations.trials.recorded import record as record_trials
from model_ops.verify import verify

QUICK = ("qwen3", "gemma2", "lfm2")
"""One family of each way to decode."""


def main() -> None:
    """Tries the families, prints a line for each, and records the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three families")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        material = write_material(Path(folder))
        for name in QUICK if quick else FAMILIES:
            began = time.perf_counter()
            found[name] = try_operations(name, Path(folder) / name, material, verify)
            failed = {operation: why for operation, why in found[name].items() if why is not None}
            print(
                f"{name}: {'; '.join(f'{one}: {why}' for one, why in failed.items()) or 'whole'} "
                f"({time.perf_counter() - began:.1f} s)",
                flush=True,
            )
    if not quick:
        record_trials(found)
    works = {one: [sum(of[one] is None for of in found.values()), len(found)] for one in TRIALS}
    record("families", {"ops": works, "whole": [name for name, of in found.items() if not any(of.values())]}, keep=not quick)


if __name__ == "__main__":
    main()
