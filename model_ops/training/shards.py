"""Files of a checkpoint: a background thread of each process writes its part of live tensors as safetensors, 16 MiB at a time
with a digest (128-bit XXH3, against accidents). torch.distributed.checkpoint plans who writes and reads each part; its own
formats do not fit: FileSystemWriter pickles its index, HuggingFaceStorageWriter takes three times a file's memory."""

import json
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
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
HOST_SHARE = 0.5
"""Share of the available host memory that copies of a snapshot may take."""
SAFETENSORS_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in SAFETENSORS_NAMES.items()}


class Snapshot:
    """The values of tensors at one moment, for a thread that reads them while training continues.

    On the CPU nothing is copied until `detach`, which copies tensors that the reader has not read yet; if it has read all, the
    snapshot costs neither time nor memory. On an accelerator the copies start at once on a separate stream, and `detach` makes
    the device wait for them, not the program. Copies take at most `host_bytes`; for tensors beyond them, `detach` waits until
    they are read. The reader should read in the order of `tensors`: the last ones are copied."""

    def __init__(self, tensors: Mapping[str, Tensor], host_bytes: int | None = None):
        self._changed = threading.Condition()
        self._live = {name: _local(tensor) for name, tensor in tensors.items()}
        self._copied: set[str] = set()
        self._room = host_memory_for_copies() if host_bytes is None else host_bytes
        self._detached = self._ended = False
        self._stream: torch.cuda.Stream | None = None
        self._copied_at: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in self._live.values()):
            self._copy_beside_the_run()

    def detach(self) -> None:
        """Allows the tensors to change. Called before every update; only the first call costs time."""
        if self._detached:
            return
        for name in reversed(list(self._live)):
            with self._changed:
                tensor = self._live.get(name)
                if tensor is not None and not tensor.is_cuda and name not in self._copied and self._takes_room(tensor.nbytes):
                    self._live[name] = tensor.clone()
                    self._copied.add(name)
        if self._copied_at is not None:
            torch.cuda.current_stream().wait_event(self._copied_at)
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self._live.keys() - self._copied)
        self._detached = True

    def end(self) -> None:
        """Tells `detach` that nothing more will be read, also if reading failed."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def keep(self, names: Iterable[str]) -> None:
        """Frees all tensors except these; other processes write the rest."""
        stay = set(names)
        with self._changed:
            self._live = {name: tensor for name, tensor in self._live.items() if name in stay}
            self._changed.notify_all()

    def chunks(self, name: str) -> Iterator[memoryview]:
        """The bytes of this process's part of a tensor, CHUNK_BYTES at a time; afterwards the snapshot frees it. A chunk is
        valid until the next one is requested."""
        if self._copied_at is not None:
            self._copied_at.synchronize()
        size = self._bytes(name).numel()
        buffer = torch.empty(min(CHUNK_BYTES, size), dtype=torch.uint8, pin_memory=self._stream is not None)
        for start in range(0, size, CHUNK_BYTES):
            with self._changed:
                length = self._read(name, start, buffer)
            yield memoryview(buffer.numpy())[:length]
        with self._changed:
            del self._live[name]
            self._changed.notify_all()

    def _read(self, name: str, start: int, buffer: Tensor) -> int:
        """Copies the bytes from `start` on into the buffer; returns their number. A tensor on the device is read on the stream
        of the copies, which sees the values of the snapshot's moment and does not wait for the step that runs now."""
        if self._stream is None or not self._live[name].is_cuda:
            part = self._bytes(name)[start : start + CHUNK_BYTES]
            buffer[: len(part)].copy_(part)
            return len(part)
        with torch.cuda.stream(self._stream):
            part = self._bytes(name)[start : start + CHUNK_BYTES]
            buffer[: len(part)].copy_(part, non_blocking=True)
        self._stream.synchronize()
        return len(part)

    def _bytes(self, name: str) -> Tensor:
        return self._live[name].reshape(-1).view(torch.uint8)

    def _takes_room(self, size: int) -> bool:
        if size > self._room:
            self._room = 0  # the rest are read first, so that the reader frees them all as early as it can
            return False
        self._room -= size
        return True

    def _copy_beside_the_run(self) -> None:
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for name, tensor in reversed(self._live.items()):
                if not tensor.is_cuda:
                    continue
                tensor.record_stream(self._stream)  # its memory must not be reused before the copy ends
                if not self._takes_room(_pinned_bytes(tensor)):
                    continue
                self._live[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                self._live[name].copy_(tensor, non_blocking=True)
                self._copied.add(name)
            self._copied_at = self._stream.record_event()


def host_memory_for_copies() -> int:
    """Bytes that this process's copies may take now: HOST_SHARE of the memory that is available, shared with the other
    processes of the machine. Decide once in a run: torch keeps pinned memory and uses it again."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return int(psutil.virtual_memory().available * HOST_SHARE) // max(1, processes)


def pin_ahead(tensors: Mapping[str, Tensor], host_bytes: int) -> threading.Thread:
    """Allocates the pinned memory of a snapshot of these tensors, in a thread, and gives it back to torch, which keeps it for
    the copies. Half of a large machine's memory takes 15 to 30 seconds, in which a first checkpoint would stop the run. Join
    the thread before the snapshot."""
    sizes: list[int] = []
    for tensor in reversed(list(tensors.values())):
        size = _pinned_bytes(tensor) if tensor.is_cuda else 0
        if sum(sizes) + size > host_bytes:
            break
        sizes += [size] if size else []

    def allocate() -> None:
        with suppress(RuntimeError):  # the machine pins less: the snapshot fails where it needs it
            [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes]

    thread = threading.Thread(target=allocate, name="pinned memory", daemon=True)
    thread.start()
    return thread


def _pinned_bytes(tensor: Tensor) -> int:
    """What torch pins for a copy of this process's part: whole powers of two."""
    return 1 << ((tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes - 1).bit_length()


class ShardWriter(StorageWriter):
    """StorageWriter of DCP for one checkpoint: writes this process's parts into one file; the coordinator publishes at the end.
    publish(files) is called on the coordinator after the files of all processes are on disk. files: name -> {"bytes": ...,
    "xxh3": ...}."""

    def __init__(self, folder: Path, snapshot: Snapshot, publish: Callable[[dict[str, dict[str, Any]]], None]):
        self.folder, self.snapshot, self.publish = folder, snapshot, publish

    def reset(self, checkpoint_id: object = None) -> None:
        """Does nothing: each checkpoint has its own writer."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Does nothing: prepare_global_plan creates the folder."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator, before any process writes: creates an empty folder and names a file for each process."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        return [
            SavePlan(plan.items, f"shard-{rank:05d}.safetensors", plan.planner_data, plan.usable)
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this process's parts and flushes them to the disk."""
        items = [item for item in plan.items if item.tensor_data.chunk.sizes.numel()]
        items.sort(key=lambda item: -item.tensor_data.properties.dtype.itemsize)  # keeps every tensor aligned in the file
        self.snapshot.keep(item.index.fqn for item in items)
        results = []
        if items:
            header, end = {}, 0
            for item in items:
                data = item.tensor_data
                size = data.chunk.sizes.numel() * data.properties.dtype.itemsize
                header[item.index.fqn] = {
                    "dtype": SAFETENSORS_NAMES[data.properties.dtype],
                    "shape": list(data.chunk.sizes),
                    "data_offsets": [end, end + size],
                }
                end += size
            written = _write(self.folder / plan.storage_data, header, self._all_chunks(header))
            for item in items:
                entry = header[item.index.fqn]
                first, last = entry["data_offsets"]
                part = {
                    "file": plan.storage_data,
                    "offset": list(item.tensor_data.chunk.offsets),
                    "shape": entry["shape"],
                    "dtype": entry["dtype"],
                    "written": written,
                }
                results.append(WriteResult(item.index, last - first, part))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator: writes the index of all parts, then calls `publish`."""
        index: dict[str, Any] = {}
        files = {}
        for result in (result for of_rank in results for result in of_rank):
            part, name = result.storage_data, result.index.fqn
            entry = index.setdefault(
                name, {"dtype": part["dtype"], "parts": [], "shape": list(metadata.state_dict_metadata[name].size)}
            )
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
    """StorageReader of DCP for a checkpoint that `damage` has checked: any process reads any part of any tensor."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.index = json.loads((folder / INDEX).read_text())
        self._files: dict[MetadataIndex, str] = {}

    @staticmethod
    def dtype(entry: Mapping[str, Any]) -> torch.dtype:
        """The dtype of an entry of `index`."""
        return DTYPES[entry["dtype"]]

    def reset(self, checkpoint_id: object = None) -> None:
        """Does nothing: each checkpoint has its own reader."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors = {}
        for name, entry in self.index.items():
            chunks = []
            for part in entry["parts"]:
                chunks.append(ChunkStorageMetadata(torch.Size(part["offset"]), torch.Size(part["shape"])))
                self._files[MetadataIndex(name, part["offset"])] = part["file"]
            tensors[name] = TensorStorageMetadata(TensorProperties(dtype=self.dtype(entry)), torch.Size(entry["shape"]), chunks)
        return Metadata(tensors)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Does nothing: read_metadata has read everything."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies the requested regions directly into the tensors of the run."""
        wanted: dict[str, list] = {}
        for request in plan.items:
            wanted.setdefault(self._files[request.storage_index], []).append(request)
        for name, requests in wanted.items():
            with safe_open(self.folder / name, framework="pt") as tensors:
                for request in requests:
                    region = tuple(
                        slice(start, start + length)
                        for start, length in zip(request.storage_offsets, request.lengths, strict=True)
                    )
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
    """A sentence on what is wrong with a checkpoint's files by their lengths and digests; None if they are complete."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (size := path.stat().st_size) != expected["bytes"]:
            return f"{name} has {size:,} bytes of {expected['bytes']:,}"
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
    # Small tensors are written together: each system call releases the GIL, and getting it back takes up to 5 ms.
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
