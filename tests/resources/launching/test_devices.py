"""Groups of devices that workers share: how they are named, and that two workers never have the same."""

import multiprocessing
import os
import select
import signal
import time

import pytest

from resources.launching import processes as subject
from resources.launching.processes import DevicesError, devices, leased_devices


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(subject.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(subject, "WAITS_S", 0.01)
    monkeypatch.delenv("MILLRACE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("given", "groups"),
    [
        ("", []),
        ("0", ["0"]),
        ("0;1", ["0", "1"]),
        (" 0, 1 ; 2,3 ;", ["0,1", "2,3"]),
        ("GPU-8f2c;MIG-1a", ["GPU-8f2c", "MIG-1a"]),
    ],
)
def test_groups_are_named_as_cuda_names_devices(given, groups, monkeypatch):
    monkeypatch.setenv("MILLRACE_DEVICES", given)
    assert devices() == groups


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("cuda:0", "name groups"),
        ("0,,1", "name groups"),
        ("0;0", "a device twice"),
        (";", "name groups"),
        ("../x", "name groups"),
    ],
)
def test_what_names_no_devices_is_refused(given, said, monkeypatch):
    monkeypatch.setenv("MILLRACE_DEVICES", given)
    with pytest.raises(DevicesError, match=said):
        devices()


def test_without_the_variable_nothing_is_taken(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with leased_devices() as leased:
        assert leased is False and os.environ["CUDA_VISIBLE_DEVICES"] == "3"


def _leased(pipe):
    with leased_devices():
        os.write(pipe, f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\n".encode())
        time.sleep(60)


def test_two_workers_have_different_devices_and_a_third_waits_until_one_is_killed(monkeypatch):
    monkeypatch.setenv("MILLRACE_DEVICES", "0,1;2,3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reading, writing = os.pipe()
    workers = [multiprocessing.get_context("fork").Process(target=_leased, args=(writing,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        with os.fdopen(reading) as lines:
            held = dict(lines.readline().split() for _ in range(2))
            assert set(held.values()) == {"0,1", "2,3"}
            assert not select.select([lines], [], [], 0.3)[0]
            pid, group = next(iter(held.items()))
            os.kill(int(pid), signal.SIGKILL)
            next_pid, next_group = lines.readline().split()
            assert next_group == group and next_pid not in held
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        os.close(writing)
    with leased_devices() as leased:
        assert leased and os.environ["CUDA_VISIBLE_DEVICES"] in ("0,1", "2,3")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
