"""What a drafter learns from, computed once: the target's hidden states over its own answers, cached on disk.

    cache = HiddenStates(folder, answers, layer_ids)
    cache.compute(runner, progress)              # skips shards that are there already
    captured, last = cache.row(17)

Per row: `captured`, the boundary states of every token [tokens, 3 * hidden], and `last`, the state after the final norm,
only where it is needed: at j = start to start + window, so [window + 1, hidden]. Entry a + 1 gives the teacher's
distribution for index a of the window; entry a is what a drafter without boundary states (MEDUSA, MLP) reads there.
Stored in bfloat16 (2 to 8 bytes a token and hidden unit), in shards of safetensors that are read by memory map.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import BFloat16
from safetensors.torch import load_file, save_file
from torch import Tensor

from model_ops.decoding.incremental import IncrementalModel
from model_ops.errors import ModelError
from model_ops.progress import Progress

SHARD_TOKENS = 65_536
BATCH_TOKENS = 8_192
DISK_SHARE = 0.8
"""How much of the free disk the cache may take."""


@dataclass(frozen=True)
class AnswerRow:
    """A prompt and the target's answer as one document x[0..]; the answer begins at x[prompt_tokens].

    The window: indices j = start, start + 1, ... of the drafter, each predicting x[j + 2], an answer token.
    """

    row_id: str
    ids: list[int]
    prompt_tokens: int

    @property
    def start(self) -> int:
        return max(0, self.prompt_tokens - 2)

    @property
    def window(self) -> int:
        return max(0, len(self.ids) - 2 - self.start)


def read_answers(path: Path, max_length: int) -> tuple[list[AnswerRow], dict[str, int]]:
    """Rows of a file that `generate` wrote, cut at max_length tokens, and counts of rows cut and left out.

    A row whose prompt leaves no token to predict is left out. Raises ModelError where the file cannot be read.
    """
    try:
        table = pq.read_table(path, columns=["row_id", "prompt_token_ids", "answer_token_ids"])
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; the answers need this file") from error
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise ModelError(f"{path} does not hold row_id, prompt_token_ids and answer_token_ids; generate it again"
                         ) from error
    rows, cut = [], 0
    for row_id, prompt, answer in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
        ids = [*prompt, *answer]
        row = AnswerRow(row_id, ids[:max_length], len(prompt))
        if row.window > 0 and len(prompt) > 0 and len(answer) > 0:
            cut += len(ids) > max_length
            rows.append(row)
    return rows, {"rows_cut": cut, "rows_left_out": table.num_rows - len(rows)}


class HiddenStates:
    """The cache of one set of rows. Its folder is named by what determines it: other rows never meet old states."""

    def __init__(self, folder: Path, rows: Sequence[AnswerRow], layer_ids: Sequence[int], target: str):
        key = json.dumps([target, list(layer_ids), [[row.row_id, row.ids, row.prompt_tokens] for row in rows]])
        self.folder = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        self.rows, self.layer_ids = rows, tuple(layer_ids)
        self.order = sorted(range(len(rows)), key=lambda row: (len(rows[row].ids), row))
        self.shards: list[list[int]] = [[]]
        tokens = 0
        for row in self.order:
            if tokens + len(rows[row].ids) > SHARD_TOKENS and self.shards[-1]:
                self.shards.append([])
                tokens = 0
            self.shards[-1].append(row)
            tokens += len(rows[row].ids)
        self.places: dict[int, tuple[int, int, int]] = {}
        for shard, members in enumerate(self.shards):
            token = entry = 0
            for row in members:
                self.places[row] = (shard, token, entry)
                token += len(rows[row].ids)
                entry += rows[row].window + 1
        self._open: dict[int, dict[str, Tensor]] = {}

    def bytes_needed(self, hidden_size: int) -> int:
        tokens = sum(len(row.ids) for row in self.rows)
        entries = sum(row.window + 1 for row in self.rows)
        return 2 * hidden_size * (len(self.layer_ids) * tokens + entries)

    def compute(self, runner: IncrementalModel, progress: Progress, phase: str = "hidden states") -> None:
        """Runs the target over every row whose shard is not there yet.

        Raises ModelError where the states would take more than 0.8 of the free disk, Stopped between batches.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        needed, free = self.bytes_needed(runner.config.hidden_size), shutil.disk_usage(self.folder).free
        if needed > DISK_SHARE * free:
            raise ModelError(f"hidden states of {len(self.rows)} answers take {needed / 2**30:.1f} GiB and "
                             f"{free / 2**30:.1f} GiB of disk are free; set answers.prompts lower")
        total, done = sum(len(row.ids) for row in self.rows), 0
        for shard, members in enumerate(self.shards):
            path = self._path(shard)
            if not path.exists():
                captured, last = [], []
                for batch in _batches(self.rows, members):
                    progress.stop_if_requested()
                    for row_captured, row_last in self._run(runner, batch):
                        captured.append(row_captured)
                        last.append(row_last)
                unfinished = path.with_suffix(".unfinished")
                save_file({"captured": torch.cat(captured), "last": torch.cat(last)}, unfinished)
                unfinished.replace(path)
            done += sum(len(self.rows[row].ids) for row in members)
            progress.report(phase, done, total, "tokens")

    def row(self, row: int) -> tuple[BFloat16[Tensor, "tokens captured*hidden"], BFloat16[Tensor, "window+1 hidden"]]:
        """(captured, last) of one row, as views of the memory map."""
        shard, token, entry = self.places[row]
        if shard not in self._open:
            self._open[shard] = load_file(self._path(shard))
        tensors = self._open[shard]
        return (tensors["captured"][token:token + len(self.rows[row].ids)],
                tensors["last"][entry:entry + self.rows[row].window + 1])

    def _path(self, shard: int) -> Path:
        return self.folder / f"states-{shard:05d}.safetensors"

    def _run(self, runner: IncrementalModel, batch: list[int]):
        longest = max(len(self.rows[row].ids) for row in batch)
        ids = torch.tensor([[*self.rows[row].ids, *[0] * (longest - len(self.rows[row].ids))] for row in batch],
                           device=runner.device)
        hidden, captured = runner.forward(ids, runner.new_cache(len(batch)), self.layer_ids)
        for place, row in enumerate(batch):
            document = self.rows[row]
            boundaries = hidden[place, :, :0] if captured is None else captured[place]
            yield (boundaries[:len(document.ids)].to(torch.bfloat16).cpu(),
                   hidden[place, document.start:document.start + document.window + 1].to(torch.bfloat16).cpu())


def _batches(rows: Sequence[AnswerRow], members: list[int]) -> list[list[int]]:
    """Rows of similar length (members are sorted by it) whose padded size stays within BATCH_TOKENS."""
    batches: list[list[int]] = [[]]
    for row in members:
        if batches[-1] and len(rows[row].ids) * (len(batches[-1]) + 1) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(row)
    return batches
