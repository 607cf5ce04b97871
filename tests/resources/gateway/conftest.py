"""Servers that a front passes requests on to."""

import pytest
from front_server import Server


@pytest.fixture
def servers():
    made = []

    def make(*arguments, **named):
        made.append(Server(*arguments, **named))
        return made[-1]

    yield make
    for server in made:
        server.gate.set()
        server.stop()
