"""The graph is the golden one: every asset, check, job, schedule and sensor, and what each depends on.

After a change on purpose: `python -m tests.golden.graph.dump` writes it anew; read the difference."""

import json

import pytest

from tests.golden.graph.dump import GOLDEN, RECIPES, graph_of


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_graph_is_the_golden_one(recipe):
    golden, graph = json.loads(GOLDEN.read_text())[recipe], graph_of(RECIPES[recipe])
    changed = [
        f"{kind} {name}: {golden[kind].get(name)} is now {graph[kind].get(name)}"
        for kind in golden
        for name in sorted(golden[kind].keys() | graph[kind].keys())
        if golden[kind].get(name) != graph[kind].get(name)
    ]
    assert not changed, "; ".join(changed)
