"""Collects how the answers of datasets were served, in served.parquet: request parameters, and exact token ids where the log
has them. Ids are null if personal data was redacted from the row (the ids would still contain it), or if their number differs
from the server's count. model_ops.completions.served_answers reads the file."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from resources.composing.dataset_schemas import SERVED
from resources.lake import Tables, attach_slice, stream, workbench, write_rows


def build_served_answers(tables: Tables, workload: str, datasets: Sequence[Path], output: Path) -> dict[str, int]:
    """Fills `output`, counts answers: all, with exact ids, with a digest of the weights, with ids whose number is wrong."""
    places = [dataset / f"{split}.parquet" for dataset in datasets for split in ("train", "validation", "test")]
    files = [str(path) for path in places if path.exists()]
    counts: Counter[str] = Counter(answers=0, with_token_ids=0, with_digest=0, ids_miscounted=0)

    def examined(batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counts["answers"] += len(batch)
            counts["with_token_ids"] += len(batch) - batch["completion_token_ids"].null_count
            counts["with_digest"] += len(batch) - batch["served_model_digest"].null_count
            counts["ids_miscounted"] += pc.sum(batch["miscounted"]).as_py() or 0
            yield batch.select(SERVED.names).cast(SERVED)

    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions"):
            attach_slice(connection, tables, name, workload)
        answers = stream(connection, "composing/served_answers", files=files)
        write_rows(pa.RecordBatchReader.from_batches(SERVED, examined(answers)), output / "served.parquet")
    return dict(counts)
