"""The files of a checkpoint: each process writes what it holds as safetensors, from live tensors, behind the run's back.

    snapshot = Snapshot({"weights.embed.weight": tensor, ...})     # nothing is copied yet
    dcp.save(tensors, storage_writer=ShardWriter(folder, snapshot, publish), planner=...)      # in a thread
    snapshot.detach()                                              # before the tensors change: copies what is not written
    dcp.load(tensors, storage_reader=ShardReader(folder))

torch.distributed.checkpoint (DCP) plans which process writes and reads which part of a tensor; how bytes become files is
decided here. Its own formats were tried: FileSystemWriter's index is a pickle, and HuggingFaceStorageWriter makes each
file in memory first, three times the size of what it saves. Here a tensor goes to disk 16 MiB at a time, its digest
(XXH3, 128 bits: it guards against accidents, not against forgery) is computed on the way, and nothing is ever unpickled.

    shard-00000.safetensors, ...    one a process: parts of tensors, in the format's own header and layout
    tensors.json                    which part of which tensor lies in which file
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

INDEX = "tensors.json"
CHUNK_BYTES = 16 << 20
SAFETENSORS_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}
DTYPES = {name: dtype for dtype, name in SAFETENSORS_NAMES.items()}


class Snapshot:
    """Tensors as they are at this moment, for a thread that reads them slowly while this one goes on.

    On the CPU nothing is copied until `detach`, which copies what has not been read by then: where the reader is done
    first, a snapshot costs neither time nor memory. On an accelerator the copies start at once on a stream of their own,
    and `detach` makes the device, not the program, wait for them.
    """

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._lock = threading.Lock()
        self._live = {name: _local(tensor) for name, tensor in tensors.items()}
        self._detached = False
        self._copied_at: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in self._live.values()):
            self._copy_beside_the_run()

    def detach(self) -> None:
        """From here on the tensors may change. Called before every update; all but the first call are free."""
        if self._copied_at is not None:
            torch.cuda.current_stream().wait_event(self._copied_at)
            return
        for name in () if self._detached else list(self._live):
            with self._lock:
                if name in self._live:
                    self._live[name] = self._live[name].clone()
        self._detached = True

    def keep(self, names: Iterable[str]) -> None:
        """Lets go of all tensors but these: other processes write the rest."""
        kept = set(names)
        with self._lock:
            self._live = {name: tensor for name, tensor in self._live.items() if name in kept}

    def chunks(self, name: str) -> Iterator[memoryview]:
        """The bytes of this process's part of a tensor, CHUNK_BYTES at a time; afterwards the snapshot lets go of it.

        A chunk is valid until the next one is asked for.
        """
        if self._copied_at is not None:
            self._copied_at.synchronize()
        size = self._bytes(name).numel()
        buffer = torch.empty(min(CHUNK_BYTES, size), dtype=torch.uint8)
        for start in range(0, size, CHUNK_BYTES):
            with self._lock:
                part = self._bytes(name)[start:start + CHUNK_BYTES]
                buffer[:len(part)].copy_(part)
            yield memoryview(buffer.numpy())[:len(part)]
        with self._lock:
            del self._live[name]

    def _bytes(self, name: str) -> Tensor:
        return self._live[name].reshape(-1).view(torch.uint8)

    def _copy_beside_the_run(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for name, tensor in self._live.items():
                if tensor.is_cuda:
                    tensor.record_stream(stream)  # one made contiguous for this is not to be given to others before
                self._live[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                self._live[name].copy_(tensor, non_blocking=True)
            self._copied_at = stream.record_event()


class ShardWriter(StorageWriter):
    """DCP's writer of one checkpoint: this process's parts into one file; the coordinator publishes at the end.

    `publish(files)` is called on the coordinating process alone, after every process's file is on disk; files maps their
    names to {"bytes": ..., "xxh3": ...}.
    """

    def __init__(self, folder: Path, snapshot: Snapshot, publish: Callable[[dict[str, dict[str, Any]]], None]):
        self.folder, self.snapshot, self.publish = folder, snapshot, publish

    def reset(self, checkpoint_id: object = None) -> None:
        """Nothing is kept between checkpoints: each has a writer of its own."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up; the folder is made once all processes have agreed on the plan."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator, before anyone writes: an empty folder, a file name for each process."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        return [SavePlan(plan.items, f"shard-{rank:05d}.safetensors", plan.planner_data, plan.usable)
                for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this process's parts and sees them onto the disk."""
        items = [item for item in plan.items if item.tensor_data.chunk.sizes.numel()]
        items.sort(key=lambda item: -item.tensor_data.properties.dtype.itemsize)  # keeps every tensor aligned in the file
        self.snapshot.keep(item.index.fqn for item in items)
        results = []
        if items:
            header, end = {}, 0
            for item in items:
                data = item.tensor_data
                size = data.chunk.sizes.numel() * data.properties.dtype.itemsize
                header[item.index.fqn] = {"dtype": SAFETENSORS_NAMES[data.properties.dtype],
                                          "shape": list(data.chunk.sizes), "data_offsets": [end, end + size]}
                end += size
            written = _write(self.folder / plan.storage_data, header, self._all_chunks(header))
            for item in items:
                entry = header[item.index.fqn]
                first, last = entry["data_offsets"]
                part = {"file": plan.storage_data, "offset": list(item.tensor_data.chunk.offsets), "shape": entry["shape"],
                        "dtype": entry["dtype"], "written": written}
                results.append(WriteResult(item.index, last - first, part))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator: the index of all parts, then what makes the checkpoint exist."""
        index: dict[str, Any] = {}
        files = {}
        for result in (result for of_rank in results for result in of_rank):
            part, name = result.storage_data, result.index.fqn
            entry = index.setdefault(name, {"dtype": part["dtype"], "parts": [],
                                            "shape": list(metadata.state_dict_metadata[name].size)})
            entry["parts"].append({key: part[key] for key in ("file", "offset", "shape")})
            files[part["file"]] = part["written"]
        text = json.dumps(index, indent=1).encode()
        with (self.folder / INDEX).open("wb") as file:
            file.write(text)
            _flush(file)
        files[INDEX] = {"bytes": len(text), "xxh3": xxhash.xxh3_128(text).hexdigest()}
        self.publish(files)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return checkpoint_id is None

    def _all_chunks(self, names: Mapping[str, Any]) -> Iterator[memoryview]:
        for name in names:
            yield from self.snapshot.chunks(name)


class ShardReader(StorageReader):
    """DCP's reader of a checkpoint whose files were found whole (`damage`): any process reads any part of any tensor."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.index = json.loads((folder / INDEX).read_text())
        self._files: dict[MetadataIndex, str] = {}

    @staticmethod
    def dtype(entry: Mapping[str, Any]) -> torch.dtype:
        """Of an entry of `index`."""
        return DTYPES[entry["dtype"]]

    def reset(self, checkpoint_id: object = None) -> None:
        """A reader is for one checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found = {}
        for name, entry in self.index.items():
            chunks = []
            for part in entry["parts"]:
                chunks.append(ChunkStorageMetadata(torch.Size(part["offset"]), torch.Size(part["shape"])))
                self._files[MetadataIndex(name, part["offset"])] = part["file"]
            found[name] = TensorStorageMetadata(TensorProperties(dtype=self.dtype(entry)), torch.Size(entry["shape"]),
                                                chunks)
        return Metadata(found)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Everything was read by read_metadata."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies the wanted regions straight into the tensors of the run."""
        wanted: dict[str, list] = {}
        for request in plan.items:
            wanted.setdefault(self._files[request.storage_index], []).append(request)
        for name, requests in wanted.items():
            with safe_open(self.folder / name, framework="pt") as tensors:
                for request in requests:
                    region = tuple(slice(start, start + length) for start, length in
                                   zip(request.storage_offsets, request.lengths, strict=True))
                    fqn = request.storage_index.fqn
                    source = tensors.get_slice(fqn)[region] if region else tensors.get_tensor(fqn)
                    target = planner.resolve_tensor(request).detach()
                    target.copy_(source)
                    planner.commit_tensor(request, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return checkpoint_id is None


def damage(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What is wrong with a checkpoint's files, in words, by their lengths and digests; None where they are whole."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (found := path.stat().st_size) != expected["bytes"]:
            return f"{name} has {found:,} bytes of {expected['bytes']:,}"
        digest = xxhash.xxh3_128()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != expected["xxh3"]:
            return f"{name} is not what was written (its digest differs)"
    return None


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).contiguous()


def _write(path: Path, header: dict[str, Any], chunks: Iterator[memoryview]) -> dict[str, Any]:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest, size = xxhash.xxh3_128(), 0
    # Small tensors are gathered: each call of the system gives the interpreter away, and 5 ms to get it back.
    with path.open("wb", buffering=1 << 20) as file:
        for piece in (struct.pack("<Q", len(text)), text):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        _flush(file)
    return {"bytes": size, "xxh3": digest.hexdigest()}


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
