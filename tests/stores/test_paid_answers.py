"""Paid answers of several machines in one file: none is lost, and an erased one does not come back."""

import pytest

from resources.composing.teachers.answer_store import AnswerStore, StoredAnswer
from stores.mirror.pulling import digests_of, joined

PLACE = "answers/tutor.jsonl"


def kept(lake):
    return AnswerStore(lake.root / PLACE)


def keep(answers, *names):
    answers.keep_all((name, StoredAnswer("m", {"content": name}, "", "stop", 1, 1, 0.5)) for name in names)


def names_in(lake):
    lake.mirror.pull()
    lake.mirror.fetch(lake.root / "answers")
    with kept(lake) as answers:
        return {name for name in "abcdefg" if answers.find(name) is not None}


def erase(lake, name):
    path = lake.root / PLACE
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(keepends=True) if f'"{name}"'.encode() not in line))


@pytest.mark.parametrize(("mine", "seen", "others", "expected"), [
    (b"1\n2\n", b"1\n", b"1\n3\n", b"1\n2\n3\n"),
    (b"1\n2", b"1\n", b"1\n3\n", b"1\n2\n3\n"),  # a killed process left the last line without its end
    (b"1\n2\n", b"1\n2\n", b"1\n", b"1\n"),  # erased there
    (b"1\n3\n", b"1\n2\n", b"1\n2\n", b"1\n3\n"),  # erased here
    (b"3\n", b"", b"1\n2\n", b"3\n1\n2\n"),
    (b"1\n2\n", b"1\n", b"", b"2\n"),
])  # fmt: skip
def test_lines_of_two_files_are_joined(mine, seen, others, expected):
    assert joined(mine, set(digests_of(seen)), others) == expected


def test_answers_kept_during_a_pull_of_others_are_published(machine):
    a, b = machine("a"), machine("b")
    with kept(a) as of_a:
        keep(of_a, "a")
        a.mirror.push()
        assert names_in(b) == {"a"}
        with kept(b) as of_b:
            keep(of_b, "b")
            b.mirror.push()
        a.mirror.pull()
        keep(of_a, "c")
        a.mirror.push()
        assert of_a.find("a") is not None and of_a.find("b") is not None
    assert names_in(machine("c")) == names_in(b) == {"a", "b", "c"}


def test_answers_go_on_in_the_file_when_an_erasure_replaces_it(machine):
    a, b = machine("a"), machine("b")
    with kept(a) as of_a:
        keep(of_a, "a", "b", "c")
        a.mirror.push()
        assert names_in(b) == {"a", "b", "c"}
        erase(b, "b")
        b.mirror.push()
        keep(of_a, "d")
        a.mirror.pull()
        keep(of_a, "e")
        assert of_a.find("b") is None and of_a.find("c").message == {"content": "c"}
        a.mirror.push()
    assert names_in(machine("c")) == names_in(b) == {"a", "c", "d", "e"}


def test_answers_of_a_machine_that_has_not_fetched_the_file_are_added_to_it(machine):
    a, b = machine("a"), machine("b")
    with kept(a) as of_a:
        keep(of_a, "a")
    a.mirror.push()
    b.mirror.pull()
    with kept(b) as of_b:
        keep(of_b, "b")
    b.mirror.push()
    (a.root / PLACE).unlink()
    a.mirror.pull()
    with kept(a) as of_a:
        keep(of_a, "c")
    a.mirror.push()
    assert names_in(machine("c")) == names_in(a) == {"a", "b", "c"}


def test_answers_that_were_not_published_stay_when_the_object_is_removed(machine, server, bucket):
    a = machine("a")
    with kept(a) as of_a:
        keep(of_a, "a")
        a.mirror.push()
        keep(of_a, "b")
        server.delete(bucket, f"lakes/tutor/{PLACE}")
        a.mirror.pull()
        keep(of_a, "c")
        server.delete(bucket, f"lakes/tutor/{PLACE}")
        a.mirror.push()
    assert names_in(machine("b")) == {"b", "c"}


def test_a_line_that_is_no_answer_is_passed_over_and_its_request_is_asked_again(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"key": "a", "answer": {"model": "m"}}\n{"key": "b"}\n{"key": "c", "answer": null}\n')
    with AnswerStore(path) as answers:
        assert answers.find("a") is None and answers.cost_of(["a", "b", "c"]) == 0
        keep(answers, "a")
    with AnswerStore(path) as answers:
        assert answers.find("a").cost == answers.cost_of(["a"]) == 0.5
