"""The target's hidden states over its own answers for training a drafter, in bfloat16, on disk or computed for each batch. Per
row: `captured`, boundary states of every token [tokens, captured * hidden], and `last`, the state after the final norm of the
window, [window + 1, hidden]: entry a + 1 gives the teacher's distribution for index a."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import BFloat16
from safetensors.torch import load_file, save_file
from torch import Tensor

from model_ops.decoding import Runner
from model_ops.files import renamed_when_complete
from model_ops.jobs import ModelError, Progress, Stopped, counted, filled
from model_ops.parallel import World
from model_ops.speculators.settings import SpeculatorSettings

SHARD_TOKENS = 65_536
BATCH_TOKENS = 8_192
States = tuple[BFloat16[Tensor, "tokens captured_hidden"], BFloat16[Tensor, "window_and_one hidden"]]


@dataclass(frozen=True)
class AnswerRow:
    """A prompt and the target's answer as one document x[0..]; the answer begins at x[prompt_tokens]. The window: indices j =
    start, start + 1, ... of the drafter, each predicting x[j + 2], an answer token."""

    row_id: str
    ids: list[int]
    prompt_tokens: int
    workload: str = ""

    @property
    def start(self) -> int:
        return max(0, self.prompt_tokens - 2)

    @property
    def window(self) -> int:
        return max(0, len(self.ids) - 2 - self.start)


def read_answers(path: Path, max_length: int) -> tuple[list[AnswerRow], dict[str, int]]:
    """Rows of a file that `generate` wrote, cut at max_length tokens, and counts of rows that were cut or left out. A row is
    left out if its prompt leaves no token to predict. Raises ModelError if the file cannot be read."""
    try:
        labelled = "workload" in pq.read_schema(path).names
        table = pq.read_table(path, columns=["row_id", "prompt_token_ids", "answer_token_ids", *["workload"] * labelled])
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; give a directory that `generate` wrote") from error
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise ModelError(f"{path} does not hold row_id, prompt_token_ids and answer_token_ids; generate it again") from error
    rows, cut = [], 0
    for answered in table.to_pylist():
        prompt, answer = answered["prompt_token_ids"], answered["answer_token_ids"]
        ids = [*prompt, *answer]
        row = AnswerRow(answered["row_id"], ids[:max_length], len(prompt), answered.get("workload") or "")
        if row.window > 0 and len(prompt) > 0 and len(answer) > 0:
            cut += len(ids) > max_length
            rows.append(row)
    return rows, {"rows_cut": cut, "rows_left_out": table.num_rows - len(rows)}


class HiddenStates:
    """The cache of one set of rows. Its folder is named by a digest of rows, layers and target, so stale states are never
    used."""

    def __init__(
        self, folder: Path, rows: Sequence[AnswerRow], layer_ids: Sequence[int], target: str | Sequence[tuple[str, int, int]]
    ):
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

    def bytes_there(self) -> int:
        """Bytes on disk from an earlier run with the same rows."""
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors")) if self.folder.is_dir() else 0

    def compute(self, runner: Runner, progress: Progress, phase: str = "hidden states", world: World | None = None) -> None:
        """Runs the target over the rows of missing shards, and returns when all shards exist. Each process of a world computes
        other shards. Raises Stopped in all processes if one gets a request to stop."""
        world = world or World.alone(runner.device)
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = world.gather([shard for shard in range(len(self.shards)) if not self._path(shard).exists()])[0]
        total = sum(len(row.ids) for row in self.rows)
        done = total - sum(self._tokens(shard) for shard in missing)
        progress.report(phase, done, total, "tokens")
        for first in range(0, len(missing), world.size):
            together = missing[first : first + world.size]
            if world.rank < len(together):
                self._write(together[world.rank], runner, progress)
            if world.greatest([progress.stop_requested])[0]:
                raise Stopped
            done += sum(self._tokens(shard) for shard in together)
            progress.report(phase, done, total, "tokens")

    def _write(self, shard: int, runner: Runner, progress: Progress) -> None:
        """Computes and writes one shard; writes nothing if a stop is requested meanwhile."""
        captured, last = [], []
        for batch in _batches(self.rows, self.shards[shard]):
            if progress.stop_requested:
                return
            for row_captured, row_last in run_target(runner, [self.rows[row] for row in batch], self.layer_ids):
                captured.append(row_captured)
                last.append(row_last)
        with renamed_when_complete(self._path(shard)) as temporary:
            save_file({"captured": torch.cat(captured).cpu(), "last": torch.cat(last).cpu()}, temporary)

    def _tokens(self, shard: int) -> int:
        return sum(len(self.rows[row].ids) for row in self.shards[shard])

    def of(self, members: Sequence[int]) -> list[States]:
        """(captured, last) of each of these rows."""
        return [self.row(row) for row in members]

    def row(self, row: int) -> States:
        """(captured, last) of one row, as views of the memory map."""
        shard, token, entry = self.places[row]
        if shard not in self._open:
            self._open[shard] = load_file(self._path(shard))
        tensors = self._open[shard]
        return (
            tensors["captured"][token : token + len(self.rows[row].ids)],
            tensors["last"][entry : entry + self.rows[row].window + 1],
        )

    def _path(self, shard: int) -> Path:
        return self.folder / f"states-{shard:05d}.safetensors"


class OnlineStates:
    """The same states, computed by the target for each batch: no disk space, but a forward pass in every epoch."""

    def __init__(self, runner: Runner, rows: Sequence[AnswerRow], layer_ids: Sequence[int]):
        self.runner, self.rows, self.layer_ids = runner, rows, tuple(layer_ids)

    def of(self, members: Sequence[int]) -> list[States]:
        """(captured, last) of each of these rows, from one forward pass."""
        return list(run_target(self.runner, [self.rows[row] for row in members], self.layer_ids))


def run_target(runner: Runner, documents: Sequence[AnswerRow], layer_ids: Sequence[int]) -> Iterator[States]:
    """One forward pass over documents, padded to the longest. The states stay on the target's device."""
    longest = max(len(document.ids) for document in documents)
    ids = torch.tensor([[*document.ids, *[0] * (longest - len(document.ids))] for document in documents], device=runner.device)
    hidden, captured = runner.forward(ids, runner.new_cache(len(documents)), layer_ids)
    for place, document in enumerate(documents):
        boundaries = hidden[place, :, :0] if captured is None else captured[place]
        yield (
            boundaries[: len(document.ids)].to(torch.bfloat16),
            hidden[place, document.start : document.start + document.window + 1].to(torch.bfloat16),
        )


def bytes_of(row: AnswerRow, captured: int, hidden_size: int) -> int:
    """Bytes of the states of one answer, in bfloat16."""
    return 2 * hidden_size * (captured * len(row.ids) + row.window + 1)


def _batches(rows: Sequence[AnswerRow], members: list[int]) -> list[list[int]]:
    """Rows of similar length (members are sorted by it) whose padded size stays within BATCH_TOKENS."""
    batches: list[list[int]] = [[]]
    for row in members:
        if batches[-1] and len(rows[row].ids) * (len(batches[-1]) + 1) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(row)
    return batches


GIB = 2**30
DISK_SHARE = 0.8
"""Share of the free disk space that a cache may take if the settings give no budget."""


@dataclass(frozen=True)
class StateChoice:
    """The decision, and its reason."""

    mode: Literal["online", "cache"]
    reason: str
    cache_gib: float = 0.0


def choose_states(
    settings: SpeculatorSettings, rows: Sequence[AnswerRow], captured: int, hidden_size: int, folder: Path, there: int = 0
) -> StateChoice:
    """Chooses between cache and online. settings: resolved. captured: boundary states per token. there: bytes of the cache that
    exist in `folder` already. Raises ModelError if the settings require a cache that exceeds its budget or the disk."""
    if settings.hidden_states == "online":
        return StateChoice("online", "asked for")
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(bytes_of(row, captured, hidden_size) for row in rows)
    disk = shutil.disk_usage(folder).free * DISK_SHARE + there
    budget = disk if settings.cache_gib is None else min(settings.cache_gib * GIB, disk)
    what = f"hidden states of {counted(len(rows), 'answer')} take {_binary(needed)}"
    if settings.hidden_states == "auto":
        read = reads(settings, rows)
        if read <= 1:
            return StateChoice("online", "each answer is read once: a cache would be written to be read once")
        if needed > budget:
            return StateChoice("online", f"{what} and a cache may take {_binary(budget)}")
        return StateChoice("cache", f"each answer is read {read:.1f} times, and {what}", needed / GIB)
    if needed > budget:
        limit = "cache_gib allows" if budget < disk else "of disk are free"
        room = f"{limit} {_binary(budget)}" if budget < disk else f"{_binary(budget)} {limit}"
        raise ModelError(
            f"{what} and {room}: {fitting(rows, captured, hidden_size, budget)} of them would fit; set "
            "hidden_states to online, answers.prompts lower, or cache_gib higher"
        )
    return StateChoice("cache", what, needed / GIB)


def _binary(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= 0.1 * GIB else f"{count / 2**20:,.1f} MiB"


def reads(settings: SpeculatorSettings, rows: Sequence[AnswerRow]) -> float:
    """Number of times that the average answer is read during training."""
    if settings.steps is None:
        return filled(settings.epochs)
    return settings.steps * filled(settings.tokens_per_step) / max(1, sum(len(row.ids) for row in rows))


def fitting(rows: Sequence[AnswerRow], captured: int, hidden_size: int, budget: float) -> int:
    """Number of answers, in their order, that fit into a cache of `budget` bytes."""
    count = 0
    for row in rows:
        budget -= bytes_of(row, captured, hidden_size)
        if budget < 0:
            break
        count += 1
    return count
