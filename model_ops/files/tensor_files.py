"""Reads and checks headers of safetensors files, and writes such files one tensor at a time. No torch. A file is 8 bytes
(little-endian length of the header), a JSON header {name: {dtype, shape, data_offsets}}, and the tensors' bytes without
gaps."""

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4,
    "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one element by dtype name of the format."""

TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "I16": "int16",
    "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32", "I64": "int64",
    "U64": "uint64", "F64": "float64",
}  # fmt: skip
"""The format's dtype names -> torch's."""

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Name of a tensor -> dtype by the format's name, and shape."""

HEADER_LIMIT_BYTES = 100_000_000
"""The format's limit; every reader refuses a longer header."""


class TensorFileError(Exception):
    """The file is not safetensors, or its header and its bytes disagree."""


@dataclass(frozen=True)
class TensorHeader:
    """Place of one tensor: dtype by the format's name, byte offsets from the start of `file`."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def read(self) -> bytes:
        """The tensor's bytes."""
        with self.file.open("rb") as content:
            content.seek(self.start)
            return content.read(self.end - self.start)


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """The tensors of one safetensors file. Raises TensorFileError if header and bytes disagree."""
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as content:
            prefix = content.read(8)
            if len(prefix) < 8:
                raise TensorFileError(f"{path} is not a safetensors file, it has {file_bytes} bytes: copy it again")
            (header_bytes,) = struct.unpack("<Q", prefix)
            if header_bytes > min(HEADER_LIMIT_BYTES, file_bytes - 8):
                raise TensorFileError(
                    f"{path} is truncated or not a safetensors file, its header has {header_bytes} bytes of "
                    f"{file_bytes}: copy it again"
                )
            header = json.loads(content.read(header_bytes))
    except FileNotFoundError as error:
        raise TensorFileError(f"{path} does not exist") from error
    except ValueError as error:
        raise TensorFileError(f"{path} has a header that is not JSON: copy it again") from error
    if not isinstance(header, dict):
        raise TensorFileError(f"{path} has a header that is not a JSON object: copy it again")
    header.pop("__metadata__", None)
    tensors = {name: _one_header(path, name, entry, 8 + header_bytes) for name, entry in header.items()}
    _check_contiguous(path, tensors, 8 + header_bytes, file_bytes)
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata in the header of a safetensors file. Raises TensorFileError as read_headers does."""
    read_headers(path)  # checks the header before it is used
    with path.open("rb") as content:
        (header_bytes,) = struct.unpack("<Q", content.read(8))
        metadata = json.loads(content.read(header_bytes)).get("__metadata__")
    return {str(name): str(value) for name, value in metadata.items()} if isinstance(metadata, dict) else {}


def order_metadata(path: Path) -> None:
    """Sorts a file's metadata by name, so that the same tensors always give the same bytes. The safetensors package writes
    several metadata entries in an order that changes between processes. The header keeps its length. Raises TensorFileError as
    read_headers does."""
    read_headers(path)
    with path.open("r+b") as content:
        (header_bytes,) = struct.unpack("<Q", content.read(8))
        header = json.loads(content.read(header_bytes))
        if len(header.get("__metadata__", {})) < 2:
            return
        ordered = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}
        encoded = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
        if len(encoded) > header_bytes:
            raise TensorFileError(f"{path}: sorted metadata does not fit its header of {header_bytes} bytes; write it again")
        content.seek(8)
        content.write(encoded.ljust(header_bytes))


def read_directory(directory: Path) -> dict[str, TensorHeader]:
    """All tensors of a model directory: of model.safetensors, or of the shards that its index names. Raises TensorFileError if
    a file is missing, the index disagrees with its shards, or a header is wrong."""
    index_path = directory / "model.safetensors.index.json"
    if not index_path.exists():
        return read_headers(directory / "model.safetensors")
    try:
        weight_map = json.loads(index_path.read_text())["weight_map"]
        shards = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TensorFileError(f"{index_path} has no readable weight_map: copy it again") from error
    tensors: dict[str, TensorHeader] = {}
    for shard in shards:
        tensors.update(read_headers(directory / shard))
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise TensorFileError(f"{index_path} lists {name} in {shard}, which does not hold it: copy both again")
    return tensors


def write_stream(
    path: Path, layout: Layout, tensors: Iterable[tuple[str, bytes]], metadata: Mapping[str, str] | None = None
) -> int:
    """Writes a safetensors file from a stream of tensors; returns its size in bytes. layout: name -> (dtype, shape). tensors:
    (name, bytes) in the same order. Raises TensorFileError if the stream does not follow the layout; the file must not be used
    then."""
    header: dict[str, object] = {"__metadata__": dict(metadata or {"format": "pt"})}
    offset = 0
    for name, (dtype, shape) in layout.items():
        size = DTYPE_BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format aligns tensors to 8 bytes
    expected = iter(layout.items())
    with path.open("wb") as content:
        content.write(struct.pack("<Q", len(encoded)))
        content.write(encoded)
        for name, data in tensors:
            wanted, (dtype, shape) = next(expected, ("(nothing)", ("U8", (0,))))
            if name != wanted or len(data) != DTYPE_BYTES[dtype] * math.prod(shape):
                raise TensorFileError(f"{path}: wrote {name} ({len(data)} bytes) where {wanted} was announced")
            content.write(data)
        missing = next(expected, None)
        if missing is not None:
            raise TensorFileError(f"{path}: {missing[0]} was announced and never written")
        return content.tell()


def _one_header(path: Path, name: str, entry: Any, base: int) -> TensorHeader:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        size = DTYPE_BYTES[dtype] * math.prod(shape)
        valid = all(isinstance(number, int) and number >= 0 for number in (*shape, start, end))
    except (KeyError, TypeError, ValueError) as error:
        raise TensorFileError(f"{path}: the header of {name} is incomplete or of an unknown dtype") from error
    if not valid or end - start != size:
        raise TensorFileError(f"{path}: {name} is {dtype} {list(shape)}, which is not the {end - start} bytes given")
    return TensorHeader(path, dtype, shape, base + start, base + end)


def _check_contiguous(path: Path, tensors: Mapping[str, TensorHeader], base: int, file_bytes: int) -> None:
    position = base
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.start != position:
            raise TensorFileError(
                f"{path}: the bytes of {name} begin at {tensor.start}, not at {position}: tensors overlap or leave a hole"
            )
        position = tensor.end
    if position != file_bytes:
        raise TensorFileError(f"{path} is {file_bytes} bytes long where its header says {position}: copy it again")
