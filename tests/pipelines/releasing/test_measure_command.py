"""`millrace measure`: two servers on the same prompts, as a person would ask."""

import json

import pytest
from fake_vllm import fake_vllm

from pipelines.releasing.measuring import MeasureError, read_concurrency, read_prompts


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "chats.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"add {n}"}, {"role": "assistant", "content": "4"}]} for n in range(5)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.slow
def test_two_servers_are_compared_on_the_same_prompts(cli, prompts):
    with fake_vllm() as (drafted, seen), fake_vllm(latency_s=0.3, drafting=False) as (plain, seen_plain):
        done = cli(
            "measure", drafted, prompts, "--against", plain, "--concurrency", "1,4", "--format", "json", "--max-tokens", "6"
        )
        shown = cli("measure", drafted, prompts, "--prompts", "3", "--concurrency", "2").stdout
    rows = json.loads(done.stdout)
    assert [(row["server"], row["concurrency"]) for row in rows] == [(drafted, 1), (drafted, 4), (plain, 1), (plain, 4)]
    assert rows[0]["tau"] == 2.0 and rows[0]["accepted_by_position"] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert rows[2]["tau"] is None and rows[0]["speed_ratio"] > 1 and rows[2]["speed_ratio"] is None
    assert rows[0]["requests"] == 5 and rows[0]["tokens"] == 30 and rows[0]["first_answer"] == "four"
    assert len(seen) == 10 + 3 and len(seen_plain) == 10
    assert [request["body"]["messages"] for request in seen[:5]] == [request["body"]["messages"] for request in seen_plain[:5]]
    assert all(request["body"]["messages"][-1]["role"] == "user" for request in seen)
    assert "2.00" in shown and "says first: 'four'" in shown


def test_misuse_and_failing_servers_are_one_sentence(cli, prompts, tmp_path):
    assert "is the server running" in cli("measure", "http://127.0.0.1:9", prompts, check=1).stderr
    assert "give one or more numbers" in cli("measure", "http://127.0.0.1:9", prompts, "--concurrency", "0", check=2).stderr
    expected = "holds no key: set it"
    assert expected in cli("measure", "http://127.0.0.1:9", prompts, "--api-key-env", "NO_SUCH_KEY", check=2).stderr
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x"}\n')
    assert "row 0 has no messages" in cli("measure", "http://127.0.0.1:9", bad, check=2).stderr
    empty = tmp_path / "empty.jsonl"
    empty.write_text(json.dumps({"messages": [{"role": "assistant", "content": "hi"}]}) + "\n")
    with pytest.raises(MeasureError, match="holds no prompt"):
        read_prompts(empty, 3)
    assert read_concurrency("1,8") == [1, 8]


def test_a_datasets_test_rows_are_its_prompts(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    chat = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "r"},
        {"role": "assistant", "content": "b"},
    ]
    pq.write_table(
        pa.table({"row_id": ["1"], "messages": [json.dumps(chat)], "tools": [json.dumps([{"type": "function"}])]}),
        tmp_path / "test.parquet",
    )
    (found,) = read_prompts(tmp_path, 9)
    assert found.messages == chat[:3] and found.tools == [{"type": "function"}]
    with pytest.raises(MeasureError, match=r"test\.parquet cannot be read"):
        read_prompts(tmp_path / "..", 9)
