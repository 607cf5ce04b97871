"""Pauses that double, and kernel locks."""

from datetime import timedelta

from model_ops.files.atomic_files import is_at, locked, try_lock, unlock
from model_ops.machine.backoff import Backoff, pause_after


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
    with locked(path), path.open() as other:
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
