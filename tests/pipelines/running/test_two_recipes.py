"""Two recipes of one lake at the same time: they wait for each other where they write the lake, and each gets its own rows."""

import json

import pytest

from pipelines.running.instance import open_instance
from pipelines.running.submission import submit
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from tests.logged import pair

RECIPE = """
workload: {name}
base_model: tiny
sources: {{gateway: {{uri: logs-{name}}}}}
first_day: 2026-06-01
last_day: 2026-06-01
drift: {{enabled: false}}
"""


@pytest.mark.slow
def test_two_runs_of_two_recipes_on_one_lake(tmp_path, monkeypatch):
    for name in ("MILLRACE_HOME", "MILLRACE_LAKE", "MILLRACE_POSTGRES"):
        monkeypatch.delenv(name, raising=False)
    for name, numbers in (("shop", range(40)), ("club", range(100, 130))):
        (tmp_path / f"{name}.yaml").write_text(RECIPE.format(name=name))
        (tmp_path / f"logs-{name}").mkdir()
        asked = ((number, f"{name} asks for {number}", f"Here is {number}.") for number in numbers)
        lines = [pair(*each, timestamp=1780300800 + each[0]) for each in asked]
        (tmp_path / f"logs-{name}" / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = [
        submit(tmp_path / f"{name}.yaml", tmp_path / "lake", ["interactions", "cleaned_interactions"])
        for name in ("shop", "club")
    ]
    outcomes = [run.wait(timeout=500) for run in runs]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0], [outcome.messages for outcome in outcomes]
    lake = LakeLayout.open(tmp_path / "lake")
    found = Tables(lake).open("interactions").to_pyarrow_table(columns=["workload"])["workload"].to_pylist()
    assert (found.count("shop"), found.count("club"), len(found)) == (40, 30, 70)
    with open_instance(lake) as instance:
        storage = instance.event_log_storage
        assert {run.status.value for run in instance.get_runs()} == {"SUCCESS"}
        assert all(storage.get_concurrency_info(pool).active_slot_count == 0 for pool in storage.get_concurrency_keys())
