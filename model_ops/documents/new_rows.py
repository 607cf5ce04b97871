"""The rows that a continued training learns: those that the earlier one has not learnt, and for each some old ones, drawn by a
hash of their id, which keep what was learnt from being forgotten."""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from model_ops.files import renamed_when_complete
from model_ops.jobs import Job, ModelError
from model_ops.parallel import World

FOLDER = ".work/rows_to_learn"
TRAIN = "train.parquet"


def rows_to_learn(job: Job, replay: float, seed: int, world: World) -> tuple[Path, dict[str, int]]:
    """A directory with the job's dataset, its training rows limited to these, and their counts; the dataset itself for a job
    without the input `learnt`. Raises ModelError if it has no new row."""
    dataset = job.input("dataset")
    if "learnt" not in job.inputs:
        return dataset, {}
    learnt = set(_ids(job.inputs["learnt"] / TRAIN))
    everything = list(_ids(dataset / TRAIN))
    new = [row for row in everything if row not in learnt]
    if not new:
        raise ModelError(
            f"{dataset} has no training row that {job.inputs['learnt']} lacks: there is nothing new to learn, so "
            "leave continue_from out to train on all rows"
        )
    old = sorted(learnt.intersection(everything), key=lambda row: hashlib.sha256(f"{seed}/{row}".encode()).digest())
    replayed = old[: math.ceil(replay * len(new))]
    into = job.output / FOLDER
    if world.leads:
        _write(dataset, into, {*new, *replayed})
    world.gather(None)  # the other processes read what the first one has written
    return into, {"new_rows": len(new), "replayed_rows": len(replayed)}


def _ids(path: Path) -> Iterator[str]:
    for batch in pq.ParquetFile(path).iter_batches(columns=["row_id"]):
        yield from batch["row_id"].to_pylist()


def _write(dataset: Path, into: Path, chosen: set[str]) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for path in dataset.iterdir():
        link = into / path.name
        if path.name != TRAIN and not link.is_symlink():
            link.symlink_to(path.resolve())
    wanted, source = pa.array(sorted(chosen)), pq.ParquetFile(dataset / TRAIN)
    with (
        renamed_when_complete(into / TRAIN) as temporary,
        pq.ParquetWriter(temporary, source.schema_arrow, compression="zstd") as writer,
    ):
        for batch in source.iter_batches():
            writer.write_batch(batch.filter(pc.is_in(batch["row_id"], value_set=wanted)))
