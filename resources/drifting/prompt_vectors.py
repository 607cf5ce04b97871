"""Embeddings of prompts, each made once and kept by row: <lake>/.remembered/embeddings/<workload>/<model>/<day>.parquet.

    vectors = PromptVectors(lake, "math-tutor", Embedder(embed, digest))
    vectors.make({day: prompts, ...})                # one job of the worker for all rows that have none yet
    vectors.of_day(day, prompts)                     # float32 [rows, hidden], of length 1; zeros for a text that has none

prompts: an Arrow table (interaction_id, content_sha256, text). A row that is gone loses its vector when its day is read again,
and an erasure removes the whole folder, since a vector says much about its text. Vectors are kept in half precision.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32

from model_ops.files import replaced
from resources.lake import EMBEDDINGS, LakeLayout

TEXTS = ".texts-"


@dataclass(frozen=True)
class Embedder:
    """An embedding model."""

    embed: Callable[[Path], np.ndarray]
    """Makes vectors, float32 [rows, hidden], from a folder with texts.parquet (column `text`)."""
    digest: str
    """Of the model."""


class PromptVectors:
    """The vectors of one workload's prompts by one model. Those of other models are removed."""

    def __init__(self, lake: LakeLayout, workload: str, embedder: Embedder):
        home = lake.root / EMBEDDINGS / workload
        self._embed, self._folder = embedder.embed, home / embedder.digest[:16]
        for other in home.glob("*"):
            if other != self._folder:
                shutil.rmtree(other, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(f"{TEXTS}*"):
            shutil.rmtree(left, ignore_errors=True)

    def has(self, day: date) -> bool:
        """Whether rows of a day were embedded before."""
        return self._path(day).exists()

    def keep_days(self, days: Collection[date]) -> None:
        """Removes the vectors of all other days."""
        kept = {self._path(day).name for day in days}
        for path in self._folder.glob("*.parquet"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def make(self, prompts: Mapping[date, pa.Table]) -> None:
        """Embeds the rows that have no vector yet, of all days at once."""
        known = {day: self._kept(day) for day in prompts}
        keys = {day: _keys(table) for day, table in prompts.items()}
        missing = [(day, place) for day, found in keys.items() for place, key in enumerate(found) if key not in known[day]]
        made = self._embedded([prompts[day]["text"][place].as_py() for day, place in missing])
        for (day, place), vector in zip(missing, made, strict=True):
            known[day][keys[day][place]] = vector
        changed = {day for day, _ in missing}
        for day, found in keys.items():
            if not self.has(day) or day in changed or len(known[day]) > len(set(found)):
                self._write(day, {key: known[day][key] for key in found})

    def of_day(self, day: date, prompts: pa.Table) -> Float32[np.ndarray, "rows hidden"]:
        """The vector of each row."""
        self.make({day: prompts})
        known = self._kept(day)
        vectors = np.array([known[key] for key in _keys(prompts)], dtype=np.float32)
        if not len(vectors):
            return np.zeros((0, 1), np.float32)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)

    def _embedded(self, texts: list[str]) -> np.ndarray:
        if not texts:
            return np.zeros((0, 1), np.float16)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=TEXTS) as folder:
            pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), Path(folder) / "texts.parquet")
            return np.asarray(self._embed(Path(folder))).astype(np.float16)

    def _kept(self, day: date) -> dict[tuple[str, str], np.ndarray]:
        """Vectors by row; none of a file that cannot be read: they are made again."""
        with suppress(OSError, pa.ArrowException, KeyError, ValueError):
            table = pq.read_table(self._path(day))
            vectors = [np.frombuffer(each, np.float16) for each in table["vector"].to_pylist()]
            return dict(zip(_keys(table), vectors, strict=True))
        return {}

    def _write(self, day: date, vectors: Mapping[tuple[str, str], np.ndarray]) -> None:
        ids, contents = [key[0] for key in vectors], [key[1] for key in vectors]
        table = pa.table(
            {
                "interaction_id": pa.array(ids, pa.string()),
                "content_sha256": pa.array(contents, pa.string()),
                "vector": pa.array([each.tobytes() for each in vectors.values()], pa.binary()),
            }
        )
        with replaced(self._path(day)) as temporary:
            pq.write_table(table, temporary)

    def _path(self, day: date) -> Path:
        return self._folder / f"{day}.parquet"


def _keys(table: pa.Table) -> list[tuple[str, str]]:
    return list(zip(table["interaction_id"].to_pylist(), table["content_sha256"].to_pylist(), strict=True))
