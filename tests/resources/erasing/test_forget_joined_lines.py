"""Users in lines that are joined to one record, such as a batch's: found where they stand in the logs."""

import json

import pytest

from resources.erasing.raw_keys import named_in_logs
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading import ingest
from resources.sources import SourceSettings

SPELLINGS = ["ann@example.org", "Ann@Example.org", '"Ann" <ANN@example.org>', "bob@example.org"]


def asked_in(batch, number, user, key):
    metadata = {"metadata": {key: user, "ses": f"s{number}"}}
    asked = {"model": "m", "messages": [{"role": "user", "content": f"what is thing {number}"}]}
    if batch == "openai":
        return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": asked | metadata}
    return {"custom_id": f"c{number}", "params": asked | metadata | {"max_tokens": 9}}


def said_in(batch, number):
    if batch == "openai":
        message = {"role": "assistant", "content": f"thing {number} is a lamp"}
        body = {
            "id": f"chatcmpl-{number}",
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        answer = {"status_code": 200, "request_id": f"q{number}", "body": body}
        return {"id": f"b{number}", "custom_id": f"c{number}", "response": answer, "error": None}
    content = [{"type": "text", "text": f"thing {number} is a lamp"}]
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m", "content": content}
    message |= {"stop_reason": "end_turn", "usage": {"input_tokens": 3, "output_tokens": 4}}
    return {"custom_id": f"c{number}", "result": {"type": "succeeded", "message": message}}


def ingested(tmp_path, batch="openai", key="requested_by", **source):
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = {
        "input": [asked_in(batch, number, user, key) for number, user in enumerate(SPELLINGS)],
        "output": [said_in(batch, number) for number in range(len(SPELLINGS))],
    }
    for name, records in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    lake = LakeLayout.open(tmp_path / "lake")
    return lake, ingest(Tables(lake), "shop", {"batch": SourceSettings(uri=str(folder), **source)})


@pytest.mark.parametrize("everywhere", [True, False])  # False: the user has rows of another source
@pytest.mark.parametrize("key", ["requested_by", "author", "owner_mail"])
@pytest.mark.parametrize(("batch", "body"), [("openai", "body"), ("anthropic", "params")])
def test_a_user_under_an_unread_key_of_a_batch_is_found_with_key_count_and_remedy(tmp_path, batch, body, key, everywhere):
    lake, _ = ingested(tmp_path, batch, key)
    [told] = named_in_logs(lake, "ann@example.org", everywhere)
    assert told.startswith(f"source batch: this user stands under {body}.metadata.{key} in 3 records (")
    assert "input.jsonl:1 first" in told and f"Add fields: {{user: {body}.metadata.{key}}} to the source" in told


def test_a_key_of_a_joined_line_that_fields_names_is_read(tmp_path):
    lake, report = ingested(tmp_path, fields={"user": "body.metadata.requested_by"})
    assert [(key.path, key.records) for key in report.unread_keys["batch"]] == [("request.metadata.ses", 4)]
    assert len(set(Tables(lake).open("interactions").to_pyarrow_table()["user_hash"].to_pylist())) == 2
    assert list(named_in_logs(lake, "ann@example.org", False)) == []
