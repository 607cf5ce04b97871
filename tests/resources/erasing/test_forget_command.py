"""`millrace forget` as a person calls it: dry run, apply, old files later, and wrong requests."""

import json
import shutil
from datetime import date

import pyarrow as pa
from deltalake import write_deltalake
from filled_lake import LakeLayout, Tables, rebuild

from model_ops.files.atomic_files import write_text
from resources.digests.user_hash import keyed_hash
from resources.erasing.raw_keys import named_in_logs
from resources.lake.lake_use import at_work
from resources.lake.tables import SCHEMAS
from tests.command import millrace
from tests.resources.records.test_formats import read


def row(number, user):
    said = json.dumps([{"role": "user", "content": f"question {number}"}])
    about = {"workload": "tutor", "dt": date(2026, 6, 1), "source_uri": "log.jsonl", "source_row": number}
    return {**about, "interaction_id": f"i{number}", "user_hash": keyed_hash(user), "messages": said}


def test_forget_says_what_it_does_and_refuses_in_one_sentence(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    tables = Tables(lake)
    tables.append("interactions", pa.Table.from_pylist([row(1, "ann"), row(2, "bob")], schema=SCHEMAS["interactions"]))
    rebuild(lake)

    def forget(*words, check=0):
        done = millrace("forget", *words, "--lake", lake.root, check=check)
        return done.stdout + done.stderr

    dry = forget("--user", "ann")
    assert "Would erase: 1 interaction (1 of tutor)." in dry and "This was a dry run" in dry
    assert "log.jsonl: 1 record, line 1" in dry and tables.open("erasures") is None
    for words, code, part in (
        (["--user", "nobody"], 1, "Nothing was written; --apply --even-unseen"),
        ([], 2, "one of --user, --session and"),
        (["--user", "a", "--session", "b"], 2, "one of --user"),
        (["--user", "nobody", "--apply"], 1, "Nothing was written"),
    ):
        assert part in forget(*words, check=code), words
    with at_work(lake):
        assert "a run is at work on" in forget("--user", "ann", "--apply", check=2)
    assert tables.open("erasures") is None
    done = forget("--user", "ann", "--apply")
    assert "Erased: 1 interaction" in done and "still hold the rows" in done
    later = forget("--user", "ann", "--apply", "--vacuum")
    assert "It was erased before" in later and "Old files of the tables were removed" in later
    assert len(list((lake.root / "tables" / "interactions").rglob("part-*.parquet"))) == 1
    assert "A tombstone was written" in forget("--user", "zoe", "--apply", "--even-unseen")
    found = json.loads(forget("--user", "bob", "--format", "json"))
    assert found["interactions"] == 1 and found["tables"] == {"decisions": 1, "interactions": 1}


def test_a_user_inside_a_request_is_found_in_logs_whose_keys_are_all_read(tmp_path):
    asked = {"messages": [{"role": "user", "content": "what is it"}], "customer_ref": "U7"}
    said = {"choices": [{"message": {"role": "assistant", "content": "it is a lamp"}}]}
    read(tmp_path, [{"request": asked, "response": said}])
    said = millrace("forget", "--user", "U7", "--lake", tmp_path / "lake", check=1).stdout
    assert "this user stands under request.customer_ref in 1 record" in said
    assert "fields: {user: request.customer_ref}" in " ".join(said.split())
    assert "customer_ref" not in millrace("forget", "--user", "U8", "--lake", tmp_path / "lake", check=1).stdout


def test_logs_are_searched_for_a_lake_whose_ledger_has_no_unread_keys_yet(tmp_path):
    asked = {"messages": [{"role": "user", "content": "what is it"}], "customer_ref": "U7"}
    read(tmp_path, [{"request": asked, "response": {"choices": [{"message": {"role": "assistant", "content": "a lamp"}}]}}])
    lake = LakeLayout.open(tmp_path / "lake")
    older = Tables(lake).open("objects").to_pyarrow_table().drop_columns(["unread_keys"])
    shutil.rmtree(lake.table("objects"))
    write_deltalake(lake.table("objects"), older)
    [said] = named_in_logs(lake, "U7", True)
    assert "under request.customer_ref in 1 record" in said


def day_row(workload, day):
    return {"workload": workload, "dt": date(2020, 6, day), "interaction_id": f"{workload}-{day}", "messages": "[]"}


def test_rows_of_workloads_that_a_source_is_mapped_to_are_named_and_stay(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    rows = [day_row("tutor", 1), day_row("tutor", 2), day_row("sales", 1)]
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
