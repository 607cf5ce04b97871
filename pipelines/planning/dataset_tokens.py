"""How many tokens a workload's current dataset has for training, for plans of epochs.

    dataset_tokens(lake, "shop")        # about 54_000; None where there is no lake or no sft_dataset yet
"""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.parquet as pq

from resources.artefacts.manifest import ManifestError
from resources.artefacts.registry import Registry
from resources.lake import Lake

CHARACTERS_A_TOKEN = 4
COLUMNS = ("messages", "text", "tools")


def dataset_tokens(lake: Lake | None, workload: str) -> float | None:
    """Tokens of the training rows of the current sft_dataset: counted where rows have token ids, else estimated by characters.
    Columns are read one after the other."""
    if lake is None:
        return None
    registry = Registry(lake, workload)
    try:
        file = registry.directory(registry.current("dataset", "sft_dataset")) / "train.parquet"
        lake.mirror.fetch_files([file])
        rows = pq.ParquetFile(file)
    except (ManifestError, OSError):
        return None
    found = 0.0
    for name in {*COLUMNS, "token_ids"} & set(rows.schema_arrow.names):
        measure = pc.list_value_length if name == "token_ids" else pc.utf8_length
        for batch in rows.iter_batches(columns=[name]):
            found += (pc.sum(measure(batch.column(0))).as_py() or 0) / (1 if name == "token_ids" else CHARACTERS_A_TOKEN)
    return found
