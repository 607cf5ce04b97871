"""Who holds what on 1, 8, 64 and 1,024 devices, against the files in tests/golden/sharding.

A rule that was changed on purpose: `python -m tests.golden.sharding.dump` writes them anew; read the diff.
"""

import json

import pytest

from model_ops.parallel import MeshSettings, sharding
from tests.golden.sharding.dump import CASES, golden, path_of, placed, planned, written

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("golden sharding")]

IDS = [path_of(name, mesh).stem for name, mesh in CASES]
USUAL = {"llama-8b-1", "llama-8b-8", "llama-8b-64", "qwen3-30b-a3b-8", "gpt-oss-20b-64", "gpt-oss-20b-1024"}
"""Each family, and each number of devices."""


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        pytest.param(*case, id=name, marks=() if name in USUAL else pytest.mark.thorough)
        for case, name in zip(CASES, IDS, strict=True)
    ],
)
def test_parameters_lie_where_the_golden_file_says(name, mesh):
    assert written(golden(name, mesh)) == path_of(name, mesh).read_text()


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        pytest.param(*case, id=name, marks=() if name in USUAL else pytest.mark.thorough)
        for case, name in zip(CASES, IDS, strict=True)
        if name.endswith(("-8", "-1024"))
    ],
)
def test_the_rules_predict_what_is_placed(name, mesh):
    assert planned(name, mesh) == placed(name, mesh, 0)


def test_another_rule_is_another_file(monkeypatch):
    name, mesh = "llama-8b", MeshSettings(dp_shard=16, tp=4)
    without = tuple(rule for rule in sharding.RULES if rule != ("vocab", "tp"))
    monkeypatch.setattr(sharding, "RULES", without)
    assert written(golden(name, mesh)) != path_of(name, mesh).read_text()


@pytest.mark.parametrize(("name", "mesh"), CASES, ids=IDS)
def test_devices_share_a_model_evenly(name, mesh):
    content = json.loads(path_of(name, mesh).read_text())
    depth = {"llama-8b": 32, "qwen3-30b-a3b": 48, "gpt-oss-20b": 24}[name]
    whole = held = 0
    for key, entry in content["parameters"].items():
        count = depth if ".layers.*." in key else 1
        size = part = count
        for n, m in zip(entry["shape"], entry["local"], strict=True):
            size, part = size * n, part * m
        whole, held = whole + size, held + part
    shares = content["processes"] // content["mesh"].get("dp_replicate", 1)
    assert whole / shares <= held < 1.3 * whole / shares
