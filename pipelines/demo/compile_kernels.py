"""Compiles the numba kernels of curation, packing, training and drafting, for which the first run would otherwise wait. `make`
calls it once: `python -m pipelines.demo.compile_kernels`."""

import tempfile
from datetime import date
from itertools import product
from pathlib import Path

import numpy as np
import torch

from model_ops.documents import WORK, fill_rows, pack
from model_ops.drafting import SuffixCache
from model_ops.tensors import fused_rows
from pipelines.contract import read_recipe
from pipelines.demo.traffic import write_traffic
from pipelines.running import submit
from pipelines.storage import RECIPES


def compile_kernels() -> None:
    """Calls every kernel with the types of real runs. Raises RuntimeError if the data stages fail. The data stages run on a
    little traffic, because Arrow and DuckDB decide which types reach a kernel."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        home = Path(folder)
        write_traffic(home / "demo" / "quick" / "traffic", interactions=400, days=2, first_day=date(2026, 6, 1))
        recipe = read_recipe((RECIPES / "quick.yaml").read_text(), home / "recipes")
        outcome = submit(recipe, home / "lake", select=["+sft_dataset"]).wait()
        if outcome.exit_code:
            raise RuntimeError(f"the data stages of recipes/quick.yaml failed: {outcome}")
    pack([5, 4, 4, 3, 3, 2, 2, 2, 1], capacity=8)
    fill_rows(np.array([5, 4, 3], dtype=np.int64), 8, 2, True, WORK)
    for dtype, other in product(fused_rows.DTYPES, fused_rows.DTYPES):
        rows, weight = torch.ones(4, 8, dtype=dtype), torch.ones(8)
        _, scales = fused_rows.norm(rows, weight, 1e-6, other)
        fused_rows.norm_gradient(rows.to(other), rows, weight, scales)
        fused_rows.gated(rows, rows, fused_rows.SILU)
        fused_rows.gated_gradient(rows.to(other), rows, rows, fused_rows.SILU)
    for dtype in fused_rows.DTYPES:
        logits, labels, weights = torch.ones(4, 8, dtype=dtype), torch.zeros(4, dtype=torch.int64), torch.ones(4)
        fused_rows.cross_entropy(logits, labels, weights, 0.0, with_gradient=True)
    request = SuffixCache().open([1, 2, 3, 1, 2])
    request.extend([3])
    request.propose(3)


if __name__ == "__main__":
    compile_kernels()
