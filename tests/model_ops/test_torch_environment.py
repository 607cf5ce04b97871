"""What the environment tells torch: read once, so each case is a process of its own."""

import json
import os
import subprocess
import sys
from datetime import timedelta

import pytest

from model_ops.files.atomic_files import file_lock, is_at, try_lock, unlock
from model_ops.machine import Backoff, pause_after
from model_ops.machine import compilation as compiled


def test_pauses_double_up_to_the_longest_one_and_begin_again_after_a_success():
    now = [100.0]
    backoff = Backoff(1.0, 10.0, lambda: now[0])
    assert backoff.is_over
    assert [backoff.begin() for _ in range(5)] == [1, 2, 4, 8, 10]
    assert not backoff.is_over
    now[0] += 10
    assert backoff.is_over
    backoff.reset()
    assert backoff.is_over and backoff.begin() == 1


def test_a_pause_is_of_any_length_and_does_not_overflow():
    assert pause_after(3, timedelta(minutes=1), timedelta(hours=1)) == timedelta(minutes=4)
    assert pause_after(5_000, 300.0, 86_400.0) == 86_400.0
    assert pause_after(5_000, timedelta(days=1), timedelta(days=30)) == timedelta(days=30)


def test_a_lock_is_exclusive_or_shared(tmp_path):
    path = tmp_path / "lock"
    with file_lock(path), path.open() as other:
        assert not try_lock(other) and not try_lock(other, shared=True)
    with path.open() as first, path.open() as second:
        assert try_lock(first, shared=True) and try_lock(second, shared=True)
        assert not try_lock(second)
        unlock(first)
        assert try_lock(second)


def test_a_file_that_was_replaced_is_not_at_its_path(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with path.open() as file:
        assert is_at(file.fileno(), path)
        (tmp_path / "new").write_text("new")
        (tmp_path / "new").replace(path)
        assert not is_at(file.fileno(), path)
        path.unlink()
        assert not is_at(file.fileno(), path)


def test_where_machine_code_cannot_be_kept_it_is_compiled_afresh(monkeypatch):
    real = compiled.numba.njit

    def nowhere(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(compiled.numba, "njit", nowhere)
    assert compiled.compiled(lambda number: number + 1)(1) == 2


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
