"""What the environment tells torch: read once, so each case is a process of its own."""

import json
import os
import subprocess
import sys

import pytest

PRODUCTS = """
import ctypes, json, sys
if sys.argv[1] == "ours":
    from model_ops.machine.process import set_torch_environment
    set_torch_environment()
import torch

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Heap
weight = torch.zeros(256, 256, dtype=torch.bfloat16)

def in_use_after(rows):
    for count in rows:
        torch.zeros(count, 256, dtype=torch.bfloat16) @ weight
    return library.mallinfo2().uordblks

before = in_use_after(range(64, 192))
print(json.dumps(in_use_after(range(192, 576)) - before))
"""


def growth(whose: str) -> int:
    environment = {key: value for key, value in os.environ.items() if "CACHE_CAPACITY" not in key}
    done = subprocess.run([sys.executable, "-c", PRODUCTS, whose], check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc how much of its heap is in use")
@pytest.mark.slow
def test_products_of_ever_new_shapes_do_not_pile_up_their_kernels():
    theirs, ours = growth("torch's"), growth("ours")
    if theirs < 1 << 20:
        pytest.skip("this processor's bfloat16 products keep no kernel for each shape")
    assert ours < theirs / 4


def test_what_the_user_set_stays(monkeypatch):
    from model_ops.machine.process import set_torch_environment

    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    set_torch_environment()
    assert (os.environ["LRU_CACHE_CAPACITY"], os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) == ("7", "64")


def test_torch_s_own_choice_of_cudnn_s_attention_is_off_unless_the_user_set_it(monkeypatch):
    from model_ops.machine.process import set_torch_environment

    for value, wanted in ((None, "1"), ("0", "0")):
        monkeypatch.delenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", raising=False)
        if value is not None:
            monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", value)
        set_torch_environment()
        assert os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == wanted
