"""The same tensors are the same bytes, whatever process wrote them."""

import json
import struct

import torch
from safetensors.torch import load_file, save_file

from model_ops.files.tensor_files import order_metadata, read_metadata


def header_of(path):
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return list(json.loads(content[8 : 8 + size])["__metadata__"])


def test_metadata_stands_in_the_order_of_its_names_and_the_tensors_stay(tmp_path):
    metadata = {name: f'{{"é": "{name}"}}' for name in ("zeta", "format", "alpha", "middle")}
    tensors = {"a": torch.arange(7.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)}
    contents = set()
    for number in range(24):  # safetensors draws an order for every file
        path = tmp_path / f"{number}.safetensors"
        save_file(tensors, path, metadata=metadata)
        order_metadata(path)
        assert header_of(path) == sorted(metadata)
        assert read_metadata(path) == metadata
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in load_file(path).items())
        contents.add(path.read_bytes())
    assert len(contents) == 1
