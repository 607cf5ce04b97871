"""The size of a release's weights on the approval page."""

from types import SimpleNamespace

from resources.releasing.approval_page import _Side, _size


def test_an_adapter_beside_merged_weights_is_counted_once():
    files = {"model-1.safetensors": 3_000_000, "adapter/adapter_model.safetensors": 500_000, "tokenizer.json": 9_000_000}
    target = SimpleNamespace(files=[SimpleNamespace(path=path, bytes=size) for path, size in files.items()])
    assert _size(_Side(served=[target]), 0) == "3.00"
