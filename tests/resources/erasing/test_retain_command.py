"""`millrace retain` as a person calls it."""

from datetime import date

import pyarrow as pa
from filled_lake import LakeLayout, Tables

from model_ops.files.atomic_files import write_text
from resources.lake.tables import SCHEMAS
from tests.command import millrace


def row(workload, day):
    return {"workload": workload, "dt": date(2020, 6, day), "interaction_id": f"{workload}-{day}", "messages": "[]"}


def test_rows_of_workloads_that_a_source_is_mapped_to_are_named_and_stay(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    rows = [row("tutor", 1), row("tutor", 2), row("sales", 1)]
    Tables(lake).append("interactions", pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"]))
    recipe = tmp_path / "tutor.yaml"
    sources = f"{{gateway: {{uri: {tmp_path}/logs, workloads: {{sell: sales, x: idle}}}}}}"
    recipe.write_text(f"workload: tutor\nbase_model: tiny\nsources: {sources}\nretention: {{rows_days: 30}}\n")
    for day in ("2020-06-01", "2999-06-01"):
        write_text(lake.root / "chats" / "tutor" / f"dt={day}" / "chat-1.jsonl", "{}\n{}\n")
    for words in ([], ["--apply"]):
        said = millrace("retain", recipe, "--lake", lake.root, *words, check=0).stdout
        assert "rows: 2 of interactions" in said and "rated chats: 1 answer." in said
        assert "Rows of sales stay (1 of interactions)" in said and "workload: sales" in said and "idle" not in said
    left = Tables(lake).open("interactions").to_pyarrow_table().to_pylist()
    assert [each["workload"] for each in left] == ["sales"]
    assert [path.parent.name for path in (lake.root / "chats").rglob("*.jsonl")] == ["dt=2999-06-01"]
