"""Chains of turns, splits by session, sampling by weight, and every curated row's fate."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from interaction_rows import days_of, interaction, read, store

from resources.composing.datasets import DatasetError, DatasetSettings, build_sft_dataset
from resources.composing.seeds import import_seeds
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate

KEEP_ALL = CurationSettings(near_duplicates={"enabled": False})
ALL_TRAIN = DatasetSettings(validation_share=0, test_share=0)


def curated(tables, rows, output, curation=KEEP_ALL):
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), curation)
    curate(tables, "tutor", output, curation, None)
    return output / "curated.parquet"


def built(curated_path, output, dataset_settings=ALL_TRAIN, seeds=None, tables=None):
    report = build_sft_dataset(curated_path, seeds, output, dataset_settings, tables)
    splits = {name: pq.read_table(output / f"{name}.parquet").to_pylist() for name in ("train", "validation", "test")}
    return report, splits


def conversation(session, answers, number=0, **changes):
    """The rows a chat client makes: each request repeats the history."""
    history, rows = [{"role": "system", "content": "be brief"}], []
    for turn, answer in enumerate(answers):
        history = [*history, {"role": "user", "content": f"{session} question {turn}"}]
        rows.append(interaction(f"{session}.{turn}", history, answer, session_id=session, minutes=number + turn, **changes))
        said = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        history = [*history, said]
    return rows


def weights(row):
    return [message["weight"] for message in json.loads(row["messages"]) if message["role"] == "assistant"]


def test_the_longest_row_carries_its_session(tables, tmp_path):
    rows = conversation("a", ["one answer", "two answers", "three answers"])
    report, splits = built(curated(tables, rows, tmp_path / "c"), tmp_path / "d", tables=tables)
    (row,) = splits["train"]
    assert row["row_id"] == "ia.2" and row["interaction_ids"] == ["ia.0", "ia.1", "ia.2"]
    messages = json.loads(row["messages"])
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 3]
    assert weights(row) == [1, 1, 1] and messages[-1]["content"] == "three answers"
    found = {item["interaction_id"]: item for item in read(tables, "decisions") if item["stage"] == "dataset"}
    assert found["ia.0"]["rule"] == "subsumed_by_later_turn" and found["ia.0"]["kept_id"] == "ia.2"
    assert found["ia.2"]["rule"] == "kept" and found["ia.2"]["version"] == "d" and found["ia.0"]["kept"]
    assert report.by_rule == {"kept": 1, "subsumed_by_later_turn": 2} and report.sessions["train"] == 1


def test_reasoning_is_learnt_with_its_own_answer_and_is_no_part_of_later_contexts(tables, tmp_path):
    rows = conversation("a", ["one answer", "two answers", "three answers"])
    rows[0]["reasoning"], rows[2]["reasoning"] = "The first is one; ask ada.lovelace@example.com.", "So it is three."
    _, splits = built(curated(tables, rows, tmp_path / "c"), tmp_path / "d")
    first, second, third = [message for message in json.loads(splits["train"][0]["messages"]) if message["role"] == "assistant"]
    assert first["learnt_reasoning"].startswith("The first is one; ask <EMAIL") and "reasoning_content" not in first
    assert "learnt_reasoning" not in second and third["reasoning_content"] == "So it is three."
    assert "ada.lovelace" not in json.dumps(splits["train"][0], default=str)


def test_what_the_request_gave_the_template_reaches_the_dataset(tables, tmp_path):
    rows = conversation("a", ["one answer", "two answers"])
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    rows[1]["params"] = json.dumps(
        {"temperature": 0.5, "extra_body": off, "response_format": {"type": "json_object"}, "continue_final_message": True}
    )
    _, splits = built(curated(tables, rows, tmp_path / "c"), tmp_path / "d")
    (row,) = splits["train"]
    assert json.loads(row["request"]) == {**off, "response_format": {"type": "json_object"}, "continue_final_message": True}
    first, second = [message for message in json.loads(row["messages"]) if message["role"] == "assistant"]
    assert first["learnt_request"] == {} and "learnt_request" not in second, "the first request had no such parameters"


def test_how_answers_become_tokens_is_written_beside_the_rows(tables, tmp_path):
    rows = conversation("a", ["one answer"])
    built(
        curated(tables, rows, tmp_path / "c"),
        tmp_path / "d",
        DatasetSettings(thinking="strip", test_share=0, validation_share=0),
    )
    assert json.loads((tmp_path / "d" / "rendering.json").read_text()) == {"thinking": "strip", "most_unrenderable": 0.1}


def test_answers_that_curation_dropped_are_context_only(tables, tmp_path):
    rows = conversation("a", ["one answer", "cut", "three answers"])
    rows[1]["finish_reason"] = "length"
    _, splits = built(curated(tables, rows, tmp_path / "c"), tmp_path / "d")
    (row,) = splits["train"]
    assert weights(row) == [1, 0, 1] and row["interaction_ids"] == ["ia.0", "ia.2"]


def test_cut_answers_that_are_kept_are_marked_so_that_they_teach_no_end(tables, tmp_path):
    rows = conversation("a", ["one answer", "cut", "cut again"])
    rows[1]["finish_reason"], rows[2]["finish_reason"] = "length", "max_tokens"
    keep_cut = CurationSettings(near_duplicates={"enabled": False}, status={"drop_truncated": False})
    _, splits = built(curated(tables, rows, tmp_path / "c", keep_cut), tmp_path / "d")
    answers = [message for message in json.loads(splits["train"][0]["messages"]) if message["role"] == "assistant"]
    assert [(message["weight"], message.get("learnt_cut")) for message in answers] == [(1, None), (1, True), (1, True)]


def test_histories_match_though_clients_repeat_them_a_little_differently(tables, tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []}
    first = [{"role": "user", "content": "look it up"}]
    later = [
        *first,
        {"role": "assistant", "content": "", "tool_calls": [{**call, "id": "other"}]},
        {"role": "tool", "content": "found", "tool_call_id": "other"},
    ]
    rows = [interaction(1, first, answer, session_id="a"), interaction(2, later, "It is found.", session_id="a", minutes=1)]
    _, splits = built(curated(tables, rows, tmp_path / "c"), tmp_path / "d")
    assert [row["row_id"] for row in splits["train"]] == ["i2"] and weights(splits["train"][0]) == [1, 1]


def test_branches_train_a_shared_answer_once(tables, tmp_path):
    rows = conversation("a", ["root", "left"])
    other = conversation("a", ["root", "right", "right again"])
    other[1]["interaction_id"], other[2]["interaction_id"] = "ir.1", "ir.2"
    report, splits = built(curated(tables, [*rows, *other[1:]], tmp_path / "c"), tmp_path / "d")
    found = {row["row_id"]: weights(row) for row in splits["train"]}
    assert found == {"ir.2": [1, 1, 1], "ia.1": [0, 1]}
    assert report.by_rule == {"kept": 2, "subsumed_by_later_turn": 2}


def test_copies_of_an_answer_are_carried_once(tables, tmp_path):
    """A request that was logged twice, where curation lets exact copies stand: the conversation says its answer once."""
    rows = conversation("a", ["one answer", "two answers"])
    rows.append({**rows[0], "interaction_id": "ia.0-again", "request_id": "retry", "ts": rows[0]["ts"]})
    both = KEEP_ALL.model_copy(update={"exact_duplicates": False})
    report, splits = built(curated(tables, rows, tmp_path / "c", both), tmp_path / "d", tables=tables)
    (row,) = splits["train"]
    messages = json.loads(row["messages"])
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 2]
    assert row["interaction_ids"] == ["ia.0", "ia.1", "ia.0-again"] and weights(row) == [1, 1]
    assert report.by_rule == {"kept": 1, "subsumed_by_later_turn": 2}


def test_another_session_never_carries_a_row(tables, tmp_path):
    rows = conversation("a", ["one", "two"])
    rows[0]["session_id"] = "b"
    _, splits = built(curated(tables, rows, tmp_path / "c"), tmp_path / "d")
    assert {row["row_id"]: weights(row) for row in splits["train"]} == {"ia.0": [1], "ia.1": [0, 1]}


def test_splits_hold_whole_sessions_and_stay_when_days_arrive(tables, tmp_path):
    rows = [row for n in range(120) for row in conversation(f"s{n}", [f"answer {n}", f"more {n}"], n)]
    spec = DatasetSettings(validation_share=0.2, test_share=0.2)
    report, splits = built(curated(tables, rows, tmp_path / "c"), tmp_path / "d", spec)
    sides = {row["session_id"]: name for name, found in splits.items() for row in found}
    assert sum(report.sessions.values()) == len(sides) == 120
    assert 10 < report.rows["test"] < 40 and 10 < report.rows["validation"] < 40
    late = [row for n in range(30) for row in conversation(f"late{n}", [f"later answer {n}"], n, day=2)]
    for row in late:
        row["ts"], row["dt"] = row["ts"], row["ts"].date()
    store(tables, "interactions", late)
    clean(tables, "tutor", days_of(late), KEEP_ALL)
    curate(tables, "tutor", tmp_path / "c2", KEEP_ALL, None)
    _, after = built(tmp_path / "c2" / "curated.parquet", tmp_path / "d2", spec)
    later_sides = {row["session_id"]: name for name, found in after.items() for row in found}
    assert {name: later_sides[name] for name in sides} == sides and len(later_sides) == 150
    _, other = built(tmp_path / "c" / "curated.parquet", tmp_path / "d3", spec.model_copy(update={"seed": 1}))
    assert {row["session_id"]: name for name, found in other.items() for row in found} != sides


def test_a_split_far_from_its_share_says_why(tables, tmp_path):
    few = [row for n in range(4) for row in conversation(f"s{n}", [f"answer {n}"], n)]
    report, _ = built(curated(tables, few, tmp_path / "c"), tmp_path / "d", DatasetSettings(test_share=0.1, validation_share=0))
    assert report.split_notes == [
        "test has 25% of the rows where test_share asks for 10%, because each user is held out whole: 1 of 4"
        + (", 1 of them so that every stratum is measured (stratify_by)" if report.lent else "")
    ]
    assert f"T{report.split_notes[0][1:]}." in (tmp_path / "d" / "README.md").read_text()
    whole, _ = built(tmp_path / "c" / "curated.parquet", tmp_path / "d2", DatasetSettings(test_share=0.25, validation_share=0))
    assert whole.rows["test"] != 1 or whole.split_notes == []


@pytest.mark.parametrize("groups", [3, 4, 6])
def test_small_traffic_still_has_held_out_sides(tables, tmp_path, groups):
    rows = [row for n in range(groups) for row in conversation(f"s{n}", [f"answer {n}"])]
    report, _ = built(curated(tables, rows, tmp_path / "c"), tmp_path / "d", DatasetSettings())
    assert min(report.rows.values()) >= 1


def seed_file(path, *texts):
    path.write_text(
        "\n".join(
            text
            if text.startswith("{") or text == "rubbish"
            else json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]})
            for text in texts
        )
        + "\n"
    )
    return path


def test_seeds_are_imported_counted_and_mixed_into_training_only(tables, tmp_path):
    path = seed_file(
        tmp_path / "seeds.jsonl",
        *[f"seed {n}" for n in range(20)],
        "seed 1",
        "rubbish",
        '{"messages": []}',
        '{"messages": [{"role": "user", "content": "q"}]}',
        '{"messages": [{"role": "king", "content": "q"}, {"role": "assistant", "content": "a"}]}',
    )
    seeds = import_seeds({"handmade": path}, tmp_path / "seeds")
    assert (seeds.lines, seeds.rows, seeds.duplicates, seeds.bad) == (25, 20, 1, 4)
    bad = pq.read_table(tmp_path / "seeds" / "bad_lines.parquet").to_pylist()
    assert [row["source_row"] for row in bad] == [22, 23, 24, 25] and "no role" in bad[3]["message"]
    rows = [row for n in range(200) for row in conversation(f"s{n}", [f"answer {n}"], n)]
    path = curated(tables, rows, tmp_path / "c")
    spec = DatasetSettings(mix={"gateway": 0.8, "handmade": 0.2}, max_rows=50)
    report, splits = built(path, tmp_path / "d", spec, tmp_path / "seeds" / "seeds.parquet")
    assert report.sources == {"gateway": 40, "handmade": 10} and report.rows["train"] == 50
    assert all(row["origin"] == "interaction" for name in ("validation", "test") for row in splits[name])
    assert {row["row_id"][:5] for row in splits["train"] if row["origin"] == "seed"} == {"seed:"}
    assert report.by_rule["sampled_out"] == 200 - 40 - len(splits["test"]) - len(splits["validation"]) + (20 - 10)
    bytes_before = (tmp_path / "d" / "train.parquet").read_bytes()
    built(path, tmp_path / "d", spec, tmp_path / "seeds" / "seeds.parquet")
    assert (tmp_path / "d" / "train.parquet").read_bytes() == bytes_before
    only, _ = built(path, tmp_path / "e", DatasetSettings(mix={"handmade": 1}), tmp_path / "seeds" / "seeds.parquet")
    assert only.sources == {"handmade": 20} and only.by_rule["source_not_in_mix"] > 100


def test_nothing_to_train_on_is_said_in_words(tables, tmp_path):
    path = curated(tables, conversation("a", ["one"]), tmp_path / "c")
    with pytest.raises(DatasetError, match=r"datasets\.sft\.mix takes rows of nobody, which have none; .* gateway \(1\)"):
        build_sft_dataset(path, None, tmp_path / "d", DatasetSettings(mix={"nobody": 1}, test_share=0, validation_share=0))


SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data/tau_airline.json")
def test_tool_calling_conversations_become_one_row_each(tables, tmp_path):
    rows, last = [], {}
    for trial in json.loads((SHARED / "tau_airline.json").read_text())[:20]:
        name = f"{trial['task_id']}-{trial['trial']}"
        for at, message in enumerate(trial["traj"]):
            if message["role"] == "assistant":
                rows.append(interaction(f"{name}-{at}", trial["traj"][:at], message, session_id=name, minutes=at))
                last[name] = rows[-1]["interaction_id"]
    report, splits = built(curated(tables, rows, tmp_path / "c"), tmp_path / "d", DatasetSettings())
    found = [row for split in splits.values() for row in split]
    exact = sum(row["rule"] == "exact_duplicate" for row in read(tables, "decisions"))
    assert sorted(name for row in found for name in row["interaction_ids"]) == sorted(
        row["interaction_id"] for row in read(tables, "decisions") if row["stage"] == "curate" and row["kept"]
    )
    assert set(last.values()) <= {row["row_id"] for row in found}
    assert report.by_rule["kept"] == len(found) and len(found) <= len(last) + exact
    assert all(weights(row)[-1] == 1 and json.loads(row["messages"])[-1]["role"] == "assistant" for row in found)


def test_a_rare_prompt_shape_is_not_drowned_and_its_rows_say_what_their_shape_gave(tables, tmp_path):
    rows = [interaction(n, f"summarise report number {n}", f"it says {n}") for n in range(60)]
    rows += [interaction(n, f"translate line {n}", f"line {n}") for n in range(60, 64)]
    path = curated(tables, rows, tmp_path / "c1")
    shapes = {}
    for balance in ("none", "sqrt", "uniform"):
        settings = DatasetSettings(validation_share=0, test_share=0, max_rows=16, balance=balance)
        report, splits = built(path, tmp_path / balance, settings)
        found = [row["prompt_shape"].split("#")[0] for row in splits["train"]]
        assert len(found) == 16 and report.by_rule["sampled_out"] == 48
        shapes[balance] = found.count("translate")
        again, _ = built(path, tmp_path / "again" / balance, settings)
        assert [row["rule"] for row in again.decisions.to_pylist()] == [row["rule"] for row in report.decisions.to_pylist()]
    assert shapes["sqrt"] == 3 and shapes["uniform"] == 4 and shapes["none"] < 4
    said = {row["detail"] for row in report.decisions.to_pylist() if row["rule"] == "sampled_out"}
    assert len(said) == 1 and said.pop().endswith("gave 12 rows")
    everything, _ = built(path, tmp_path / "all")
    assert everything.by_rule == {"kept": 64}
