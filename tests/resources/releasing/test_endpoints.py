"""Endpoint aliases: moved by compare-and-swap, rolled back in one step."""

import threading

import pytest

from resources.lake import Lake
from resources.releasing.endpoints import Endpoint, EndpointError


@pytest.fixture
def endpoint(tmp_path):
    return Endpoint(Lake.open(tmp_path / "lake"), "math-tutor")


def test_promotion_keeps_the_previous_champion_and_rollback_swaps(endpoint):
    endpoint.nominate("r1")
    assert endpoint.read().candidate == "r1"
    endpoint.promote("r1", by="ana")
    assert (endpoint.read().champion, endpoint.read().previous, endpoint.read().candidate) == ("r1", None, None)
    endpoint.promote("r2", by="ana")
    assert (endpoint.read().champion, endpoint.read().previous) == ("r2", "r1")
    rolled = endpoint.roll_back(by="bo")
    assert (rolled.champion, rolled.previous, rolled.changed_by) == ("r1", "r2", "bo")


def test_promoting_the_champion_again_changes_nothing(endpoint):
    endpoint.promote("r1", by="ana")
    before = endpoint.read()
    assert endpoint.promote("r1", by="bo") == before


def test_nothing_to_roll_back_to(endpoint):
    with pytest.raises(EndpointError, match="no previous release"):
        endpoint.roll_back(by="ana")


def test_a_change_in_between_is_noticed(endpoint):
    seen = endpoint.read()
    endpoint.nominate("r1")
    with pytest.raises(EndpointError, match="changed by someone else"):
        endpoint._swap(seen, {"champion": "r9"}, by="late")
    assert endpoint.read().champion is None


def test_many_writers_lose_no_generation(endpoint):
    done = []

    def nominate(number):
        while True:
            try:
                done.append(endpoint.nominate(f"r{number}").generation)
                return
            except EndpointError:
                continue

    threads = [threading.Thread(target=nominate, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(1, 9))


def test_nominating_the_champion_changes_nothing(endpoint):
    endpoint.promote("r1", by="ana")
    before = endpoint.read()
    assert endpoint.nominate("r1") == before
