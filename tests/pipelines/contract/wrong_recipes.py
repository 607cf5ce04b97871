"""Recipes with one key set to one value, for tests that try all of them."""

from pipelines.contract.keys import ANY_NAME, Key, keys_of
from pipelines.contract.recipe import Recipe

SMALLEST = "workload: math-tutor\nbase_model: tiny\nsources:\n  gateway: {uri: logs/}\n"
VALUES = (None, "", "x", -1, 0, 1.5, 99999999999, True, [], {}, {"nope": 1}, [[]], "2026-02-30", 1e308)
NAMES = {"sources": "gateway", "seeds": "handmade", "evals": "suite", "datasets": "gateway", "preference": "right"}


def unlike_keys() -> list[Key]:
    """One key for each field of the schema: training keys, which four sections share, once."""
    seen = {}
    for key in keys_of(Recipe):
        seen.setdefault((id(key.field), key.name), key)
    return list(seen.values())


def recipe_with(key: Key, value: object) -> tuple[dict, str]:
    """The smallest recipe with one key set, and what that key needs beside it."""
    content = {
        "workload": "shop",
        "base_model": "tiny",
        "sources": {"gateway": {"uri": "logs"}},
        "seeds": {"handmade": {"uri": "a"}},
        "evals": {"suite": {"uri": "a"}},
    }
    path = [NAMES[key.path[0]] if part == ANY_NAME else part for part in key.path]
    if path[0] in ("preference", "reward_model"):
        content["datasets"] = {"preference": {}}
    if path[:2] == ["rft", "server"]:
        content |= {"datasets": {"rl_prompts": {}}, "rft": {"grader": "verifier", "engine": "vllm"}}
    at = content
    for part in path[:-1]:
        at = at.setdefault(part, {})
        if part == "right":
            at["by"] = "judge"
        if part == "mix":
            at["handmade"] = 1
        if part in ("judge", "endpoint"):
            at.update(base_url="http://localhost/v1", model="m")
    if "lora" in path[:-1]:
        holder = content
        for part in path[: path.index("lora")]:
            holder = holder[part]
        holder["method"] = "lora"
    at[path[-1]] = value
    return content, ".".join(path)
