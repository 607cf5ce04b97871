"""What is said of a processor whose bfloat16 products are slow, and that nothing is said elsewhere."""

import pytest
import torch

from model_ops.training import slow_bfloat16 as module
from model_ops.training.slow_bfloat16 import product_seconds, slow_bfloat16

CPU = torch.device("cpu")


@pytest.fixture
def rates(monkeypatch):
    """Sets how many seconds a product takes, by dtype."""
    def takes(float32, bfloat16):
        monkeypatch.setattr(module, "product_seconds", {torch.float32: float32, torch.bfloat16: bfloat16}.__getitem__)

    return takes


def test_a_slow_processor_is_named_with_the_remedy(rates):
    rates(float32=0.010, bfloat16=0.020)
    assert slow_bfloat16("bfloat16", CPU) == (
        "this processor multiplies bfloat16 at 0.5 of float32's speed: precision: float32 would train faster")


def test_nothing_is_said_where_bfloat16_is_as_fast_or_not_asked_for(rates):
    rates(float32=0.010, bfloat16=0.011)
    assert slow_bfloat16("bfloat16", CPU) is None
    rates(float32=0.010, bfloat16=0.020)
    assert slow_bfloat16("float32", CPU) is None
    assert slow_bfloat16("bfloat16", torch.device("meta")) is None


def test_products_are_really_timed():
    assert 1e-5 < product_seconds(torch.float32) < 10
