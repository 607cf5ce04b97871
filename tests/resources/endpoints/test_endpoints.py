"""Endpoint aliases: moved by compare-and-swap, on record, and whole again after a kill between log and file."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from resources.endpoints import endpoints
from resources.endpoints.endpoint_log import Actor, EndpointLog
from resources.endpoints.endpoints import Endpoint, EndpointError, workloads_with_endpoints
from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseRef

ANA, BO = Actor("ana", "MILLRACE_USER"), Actor("bo", "MILLRACE_USER", "answers in the wrong language")


def release(version):
    return ReleaseRef(version=version, digest=version * 2)


@pytest.fixture
def endpoint(tmp_path):
    return Endpoint(LakeLayout.open(tmp_path / "lake"), "math-tutor")


def served(endpoint):
    aliases = endpoint.read()
    return aliases.champion, aliases.previous, aliases.candidate


def actions(endpoint):
    return [(entry.action, entry.release, entry.by) for entry in endpoint.entries()]


def test_promotion_keeps_the_previous_champion_and_rollback_swaps(endpoint):
    endpoint.nominate(release("r1"))
    assert endpoint.read().candidate == "r1"
    endpoint.promote(release("r1"), ANA)
    assert served(endpoint) == ("r1", None, None)
    endpoint.promote(release("r2"), ANA)
    assert served(endpoint) == ("r2", "r1", None)
    rolled = endpoint.roll_back(release("r1"), BO)
    assert (rolled.champion, rolled.previous, rolled.changed_by) == ("r1", "r2", "bo")
    assert actions(endpoint) == [
        ("nominated", "r1", "pipeline"),
        ("promoted", "r1", "ana"),
        ("promoted", "r2", "ana"),
        ("rolled back", "r1", "bo"),
    ]
    last = endpoint.entries()[-1]
    assert (last.replaces, last.reason, last.digest, last.generation) == ("r2", "answers in the wrong language", "r1r1", 4)


def test_promoting_the_champion_again_changes_nothing(endpoint):
    endpoint.promote(release("r1"), ANA)
    before = endpoint.read()
    assert endpoint.promote(release("r1"), BO) == before and len(endpoint.entries()) == 1


def test_a_change_in_between_is_noticed_and_leaves_no_entry(endpoint):
    _, seen = endpoint.seen()
    endpoint.nominate(release("r1"))
    for late in (endpoint.promote, endpoint.roll_back):
        with pytest.raises(EndpointError, match="endpoint was changed"):
            late(release("r9"), ANA, seen)
    with pytest.raises(EndpointError, match="endpoint was changed"):
        endpoint.decide("approved", release("r9"), ANA, seen)
    assert endpoint.read().champion is None and len(endpoint.entries()) == 1


def test_many_writers_lose_no_entry_and_no_generation(endpoint):
    done = []

    def work(number):
        done.append(endpoint.promote(release(f"r{number}"), ANA).generation)
        endpoint.decide("approved", release(f"r{number}"), BO)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(1, 9))
    assert [entry.number for entry in endpoint.entries()] == list(range(1, 17)) and endpoint.problems() == []


def test_two_approvals_by_two_people_are_two_entries(endpoint):
    for by in (ANA, BO):
        endpoint.decide("approved", release("r1"), by)
    assert actions(endpoint) == [("approved", "r1", "ana"), ("approved", "r1", "bo")]
    assert endpoint.read().generation == 0


def test_what_was_withdrawn_is_no_candidate_and_becomes_none(endpoint):
    endpoint.nominate(release("r1"))
    endpoint.decide("withdrawn", release("r1"), ANA)
    assert endpoint.read().candidate is None
    endpoint.nominate(release("r1"))
    assert endpoint.read().candidate is None
    endpoint.promote(release("r2"), ANA)
    endpoint.promote(release("r3"), ANA)
    endpoint.roll_back(release("r2"), BO)
    endpoint.nominate(release("r3"))
    assert served(endpoint) == ("r2", "r3", None)
    endpoint.decide("approved", release("r1"), ANA)
    endpoint.nominate(release("r1"))
    assert endpoint.read().candidate == "r1"


def test_the_champion_is_not_withdrawn_but_rolled_back(endpoint):
    endpoint.promote(release("r1"), ANA)
    with pytest.raises(EndpointError, match="millrace rollback math-tutor"):
        endpoint.decide("withdrawn", release("r1"), ANA)


def test_a_kill_after_the_entry_is_made_good_by_the_next_change(endpoint, monkeypatch):
    endpoint.promote(release("r1"), ANA)
    with monkeypatch.context() as patch:
        patch.setattr(endpoints, "write_text", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            endpoint.promote(release("r2"), BO)
    assert served(endpoint) == ("r1", None, None) and len(endpoint.entries()) == 2
    assert "name different releases" in endpoint.problems()[0]
    assert endpoint.seen()[1].champion == "r2"
    endpoint.nominate(release("r3"))
    assert served(endpoint) == ("r2", "r1", "r3") and endpoint.problems() == []
    assert [entry.generation for entry in endpoint.entries()] == [1, 2, 3]


def test_a_kill_before_the_entry_changes_nothing(endpoint, monkeypatch):
    endpoint.promote(release("r1"), ANA)
    with monkeypatch.context() as patch:
        patch.setattr(EndpointLog, "append", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            endpoint.promote(release("r2"), BO)
    assert served(endpoint) == ("r1", None, None) and len(endpoint.entries()) == 1 and endpoint.problems() == []


def test_killed_processes_leave_whole_entries_and_a_log_that_goes_on(tmp_path):
    """SIGKILL at several moments while a process promotes without pause."""
    lake = LakeLayout.open(tmp_path / "lake")
    program = textwrap.dedent("""
        import itertools, sys
        from resources.lake.lake import LakeLayout
        from resources.endpoints.endpoints import Endpoint
        from resources.endpoints.endpoint_log import Actor
        from resources.releases.release import ReleaseRef
        endpoint, by = Endpoint(LakeLayout.open(sys.argv[1]), "tutor"), Actor("ana", "MILLRACE_USER")
        for number in itertools.count():
            endpoint.promote(ReleaseRef(version=f"{sys.argv[2]}-{number}"), by)
            print("moved", flush=True)
    """)
    endpoint, before = Endpoint(lake, "tutor"), 0
    for turn, moves in enumerate((1, 3, 6)):
        process = subprocess.Popen([sys.executable, "-c", program, lake.root, str(turn)], stdout=subprocess.PIPE, text=True)
        for _ in range(moves):
            assert process.stdout.readline() == "moved\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        entries, aliases = endpoint.seen()
        assert len(entries) >= before + moves and aliases.champion == entries[-1].champion
        before = len(entries)
    endpoint.promote(release("last"), ANA)
    assert endpoint.problems() == [] and endpoint.read().champion == "last"
    assert [entry.generation for entry in endpoint.entries()] == list(range(1, len(endpoint.entries()) + 1))


def test_a_file_that_someone_else_wrote_is_taken_over_and_said_so(endpoint):
    endpoint.promote(release("r1"), ANA)
    path = endpoint._path
    path.write_text(json.dumps({**json.loads(path.read_text()), "champion": "r7", "generation": 9, "changed_by": "eve"}))
    assert "name different releases" in endpoint.problems()[0]
    endpoint.nominate(release("r8"))
    assert actions(endpoint)[1:] == [("found", "r7", "eve"), ("nominated", "r8", "pipeline")]
    assert endpoint.read().generation == 10 and endpoint.problems() == []


def test_an_endpoint_file_that_is_gone_comes_back_from_the_log(endpoint):
    endpoint.promote(release("r1"), ANA)
    endpoint._path.unlink()
    endpoint.nominate(release("r2"))
    assert served(endpoint) == ("r1", None, "r2")


def test_workloads_are_found_by_any_of_their_files(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    assert workloads_with_endpoints(lake) == []
    Endpoint(lake, "log").promote(release("r1"), ANA)
    Endpoint(lake, "b").decide("approved", release("r1"), ANA)
    assert workloads_with_endpoints(lake) == ["b", "log"]
    assert Endpoint(lake, "log").problems() == []
