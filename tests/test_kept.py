"""What is kept between runs of the tests: made once, anew after a change or a failure, and never taken from who reads it."""

import multiprocessing

import pytest

from tests import kept


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Asks for a kept folder from a process of its own, as another run of the tests does; gives what the folder says."""
    monkeypatch.setattr(kept, "kept_folder", lambda: tmp_path / "kept")

    class Factory:
        def getbasetemp(self):
            return tmp_path

    def make(text, folder):
        (folder / "text").write_text(text)

    def asked(digest, text):
        return (kept.kept(Factory(), "thing", digest, lambda folder: make(text, folder)) / "text").read_text()

    def ask(digest, text):
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        process = context.Process(target=lambda: results.put(asked(digest, text)))
        process.start()
        found = results.get(timeout=30)
        process.join()
        return found

    ask.here = asked
    return ask


def test_a_second_run_finds_what_the_first_made_until_its_digest_changes(ask):
    assert [ask("a", "1"), ask("a", "2"), ask("b", "3"), ask("b", "4")] == ["1", "1", "3", "3"]


@pytest.mark.parametrize(
    "exitstatus, found", [(pytest.ExitCode.OK, "1"), (pytest.ExitCode.TESTS_FAILED, "2"), (pytest.ExitCode.INTERRUPTED, "2")]
)
def test_a_failed_run_leaves_nothing_to_the_next(ask, exitstatus, found):
    ask("a", "1")
    kept.forget_kept_folders(exitstatus)
    assert ask("a", "2") == found


def test_what_a_run_reads_is_not_removed_by_one_of_other_code(ask, monkeypatch):
    monkeypatch.setattr(kept, "_in_use", [])
    assert ask.here("a", "1") == "1"
    assert ask("b", "2") == "2"  # in a folder of its own run
    assert ask("a", "3") == "1"


def test_the_digest_follows_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "PROJECT", tmp_path)
    (tmp_path / "sql").mkdir()
    found = []
    for name, text in (("sql/a.sql", "select 1"), ("sql/a.sql", "select 2"), ("sql/b.sql", ""), ("more.py", "")):
        (tmp_path / name).write_text(text)
        found.append(kept.digest_of_code("more.py") if name == "more.py" else kept.digest_of_code())
    assert len(set(found)) == len(found)
