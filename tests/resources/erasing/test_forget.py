"""Erasing a user, a session or an interaction: every place searched by bytes, kills, re-reading, taint, refusals."""

import json
import shutil

import pyarrow as pa
import pytest
from filled_lake import CURATION, MARK, made, pair, sources

from benchmarks.lake_bytes import places_of
from resources.artefacts.registry import Registry, up_to_date
from resources.artefacts.taint import find_taints
from resources.catalog.catalog import query
from resources.curating.cleaning import clean
from resources.endpoints.approvals import recheck
from resources.endpoints.endpoint_log import Actor
from resources.erasing import erasure as forget_module
from resources.erasing.erasure import complete_unfinished, forget, plan_erasure
from resources.erasing.journal import ForgetError, ask_for
from resources.erasing.sought import PAGE_NOTE
from resources.lake.lake import LakeError
from resources.lake.lake_use import LakeInUse, at_work
from resources.lake.tables import SCHEMAS, Tables
from resources.manifests.manifest import ManifestError, changed_files, read_manifest
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("forget")]

BY = Actor("tester", "test", "request 1")


def asked(lake, kind="user", identifier="ann"):
    return ask_for(Tables(lake), kind, identifier)


def changed(log):
    """Gives a log another content with the same records, so that it is read again."""
    with log.open("a") as file:
        file.write("\n")


def content(lake, name):
    table = Tables(lake).open(name)
    return [] if table is None else sorted(table.to_pyarrow_table().to_pylist(), key=str)


def test_no_byte_of_a_user_is_left_and_others_stay(lake):
    before = {name: len(content(lake, name)) for name in SCHEMAS}
    assert len(places_of({MARK}, lake.root)) >= 15
    plan = forget(lake, asked(lake), BY, vacuum=True)
    assert places_of({MARK}, lake.root) == []
    assert plan.interactions == 4 and plan.workloads == {"tutor": 4}
    after = {name: len(content(lake, name)) for name in SCHEMAS}
    assert after["interactions"] == before["interactions"] - 4 and after["quarantine"] == before["quarantine"]
    assert [row["comment"] for row in content(lake, "feedback")] == ["bob says no"]
    assert not [row for row in content(lake, "interactions") if "ann" in row["session_id"]]
    assert [json.loads(line)["key"] for line in (lake.root / "answers/tutor.jsonl").read_text().splitlines()] == ["k2"]
    assert (lake.dagster_home / "submitted/1/run.log").read_text() == "a line\n[erased]\n"
    page = next(lake.root.glob("releases/tutor/*/approval.html"))
    assert page.read_text() == PAGE_NOTE and not changed_files(page.parent, read_manifest(page.parent))
    lines = next(lake.root.glob("datasets/tutor/length_report/*/side_by_side.jsonl")).read_text().splitlines()
    assert any("bob" in line for line in lines) and all(json.loads(line) for line in lines)


def test_a_page_that_shows_answers_beside_ids_goes_whole_even_if_what_was_said_is_too_short_to_seek(tmp_path):
    """A prompt of a few words cannot be sought, but the row's id can, and answers to it stand beside it."""
    from resources.erasing.sought import ErasedTexts, ReportFile, clean_page

    sought = ErasedTexts([], ["4864d30a9aee94cf"])
    for name, said in (("approval.html", PAGE_NOTE), ("report.html", "<p>ann: hi</p><p>row [erased]</p>")):
        (tmp_path / name).write_text("<p>ann: hi</p><p>row 4864d30a9aee94cf</p>")
        clean_page(ReportFile(tmp_path / name, sought.in_bytes((tmp_path / name).read_bytes())), sought, "erasure")
        assert (tmp_path / name).read_text() == said


def test_the_lines_of_the_sources_that_hold_the_user_are_named(lake, whole):
    plan = forget(lake, asked(lake), BY)
    named = {(place.uri.rsplit("/", 1)[-1], line) for place in plan.places for line in place.lines}
    held = {
        (log.name, number)
        for log in whole[1].glob("*.jsonl")
        for number, line in enumerate(log.read_text().splitlines(), 1)
        if MARK in line
    }
    assert {name for name, _ in held} == {"gateway.jsonl", "thumbs.jsonl"} and named == held
    assert sum(place.records for place in plan.places) == len(held)


def test_a_dry_run_says_the_same_and_writes_nothing(lake):
    def state():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in lake.root.rglob("*")}

    before = state()
    plan = plan_erasure(lake, asked(lake))
    assert state() == before
    done = forget(lake, asked(lake), BY)
    assert plan.tables == done.tables and plan.interactions == done.interactions
    assert [(hit.node, hit.path, hit.rows) for hit in plan.files] == [(hit.node, hit.path, hit.rows) for hit in done.files]
    assert sorted(taint.node for taint in plan.tainted) == sorted(taint.node for taint in done.tainted)
    assert plan.endpoints == done.endpoints and {page.path for page in plan.pages} >= {page.path for page in done.pages}


def test_reading_the_sources_again_brings_nothing_back_and_changes_nothing(lake, whole):
    forget(lake, asked(lake), BY, vacuum=True)
    tables = Tables(lake)
    expected = {name: content(lake, name) for name in ("interactions", "feedback", "quarantine")}
    decisions = [row for row in content(lake, "decisions") if row["stage"] == "ingest"]
    for name in ("gateway.jsonl", "thumbs.jsonl"):
        changed(whole[1] / name)
    report = ingest(tables, "tutor", sources(whole[1]))
    assert report.total.objects == 2 and report.total.erased == 5
    assert places_of({MARK}, lake.root) == []
    assert {name: content(lake, name) for name in expected} == expected
    assert [row for row in content(lake, "decisions") if row["stage"] == "ingest"] == decisions
    assert {row["rule"] for row in decisions} == {"erased"} and {row["interaction_id"] for row in decisions} == {None}


@pytest.mark.slow
def test_names_of_prompt_shapes_that_only_erased_rows_had_go_from_cards_and_reports(lake):
    """A shape is named for the first telling word of a prompt: ann's are all `zebras#...`, and nobody else's."""
    registry = Registry(lake, "tutor")
    [hers] = {row["prompt_shape"] for row in content(lake, "cleaned_interactions") if row["prompt_shape"].startswith("zebra")}
    shapes = (row["prompt_shape"] for row in content(lake, "cleaned_interactions"))
    other = next(shape for shape in shapes if not shape.startswith("zebra"))
    card = registry.directory(registry.current("dataset", "sft_dataset")) / "README.md"
    card.write_text(f"| `{hers}` | 8 | 2.8% |\n| `{other}` | 9 | 3.1% |\n| `x{hers}` | 9 | 3.1% |\n")
    report = registry.directory(registry.current("dataset", "length_report")) / "lengths.json"
    report.write_text(json.dumps({"tau_by": {hers: 1.5, other: 1.5}, "widest": hers}))
    plan = forget(lake, asked(lake), BY, vacuum=True)
    assert card.read_text() == f"| `[erased]` | 8 | 2.8% |\n| `{other}` | 9 | 3.1% |\n| `x{hers}` | 9 | 3.1% |\n"
    assert json.loads(report.read_text()) == {"tau_by": {"[erased]": 1.5, other: 1.5}, "widest": "[erased]"}
    assert {card, report} <= {page.path for page in plan.pages} and places_of({f" `{hers}"}, lake.root) == []


class Killed(BaseException):
    pass


TABLES = ("feedback", "decisions", "quarantine", "interactions")
BEFORE = ("journal.write", "_bury", "erase_rows", "erase_answers", "clean_page", "keep_taint")
STEPS = (*BEFORE, *(f"remove_rows:{table}" for table in TABLES), "remove_old_files", "rebuild")


@pytest.mark.parametrize("after", thorough_except([False], [False, True]))
@pytest.mark.parametrize("step", thorough_except(["remove_rows:interactions"], STEPS))
def test_a_kill_anywhere_is_completed_by_the_next_try(lake, monkeypatch, step, after):
    name, _, table = step.partition(":")
    target, attribute = (forget_module.journal, "write") if name == "journal.write" else (forget_module, name)
    real, calls = getattr(target, attribute), []

    def killed(*arguments, **named):
        if table and arguments[-1] != table:
            return real(*arguments, **named)
        calls.append(1)
        if after:
            real(*arguments, **named)
        raise Killed

    expected = asked(lake)
    with monkeypatch.context() as patched:
        patched.setattr(target, attribute, killed)
        with pytest.raises(Killed):
            forget(lake, expected, BY, vacuum=True)
    assert calls
    if (lake.root / ".erasing").exists() and list((lake.root / ".erasing").iterdir()):
        assert complete_unfinished(lake) == 1
    else:
        forget(lake, expected, BY, vacuum=True)
    assert places_of({MARK}, lake.root) == [] and complete_unfinished(lake) == 0
    assert not list((lake.root / ".erasing").iterdir())
    erased = [row for row in content(lake, "decisions") if row["rule"] == "erased"]
    assert len(erased) == 4
    assert {taint.name for taint in find_taints(lake).values()} == {"tutor/sft_model", "tutor/merged_model", "tutor/release"}
    for manifest in lake.root.glob("datasets/*/*/*/manifest.json"):
        assert changed_files(manifest.parent, read_manifest(manifest.parent)) == []


def test_models_and_releases_that_learnt_the_rows_are_tainted_and_their_gate_refuses(lake):
    registry = Registry(lake, "tutor")
    release = registry.current("release", "release")
    assert recheck(lake, registry.directory(release)) == recheck(lake, registry.directory(release))
    before = [problem for problem in recheck(lake, registry.directory(release)) if "erased_rows" in problem]
    plan = forget(lake, asked(lake), BY)
    found = {taint.name: taint for taint in plan.tainted}
    assert set(found) == {"tutor/sft_model", "tutor/merged_model", "tutor/release"}
    assert found["tutor/sft_model"].rows == 2 and plan.endpoints == [f"tutor: champion {release.version}"]
    [problem] = [problem for problem in recheck(lake, registry.directory(release)) if "erased_rows" in problem]
    assert before == [] and "2 rows" in problem and "run the recipe again" in problem
    assert query(lake, "select distinct name from tainted order by 1")["name"].to_pylist() == sorted(found)
    assert query(lake, "select erased_rows from releases")["erased_rows"].to_pylist() == [2]
    shutil.rmtree(lake.root / "datasets")  # the taint stays when the dataset goes
    assert {taint.name for taint in find_taints(lake).values()} == set(found)


@pytest.mark.slow
def test_an_erased_dataset_verifies_has_another_digest_and_is_not_taken_for_the_old_one(lake):
    registry = Registry(lake, "tutor")
    before = registry.current("dataset", "sft_dataset")
    model = registry.current("model", "sft_model")
    forget(lake, asked(lake), BY)
    now = registry.current("dataset", "sft_dataset")
    assert now.version == before.version and now.digest != before.digest
    assert changed_files(registry.directory(now), now) == []
    with pytest.raises(ManifestError, match="of which rows were erased since"):
        up_to_date(registry, "model", "sft_model")
    work = lambda output: output.mkdir(exist_ok=True) or (output / "w").write_text("new")  # noqa: E731
    again = made(registry, "model", "sft_model", [now.as_input()], work)
    assert again.version != model.version and f"model:tutor/sft_model@{again.version}" not in find_taints(lake)
    forget(lake, asked(lake, "session", "bob-1"), BY)  # the new model learnt these rows, and only these
    assert find_taints(lake)[f"model:tutor/sft_model@{again.version}"].rows == 1
    assert find_taints(lake)[f"model:tutor/sft_model@{model.version}"].rows == 3
    (registry.directory(now) / "train.parquet").write_bytes(b"tampered")
    assert changed_files(registry.directory(now), now) == ["train.parquet"]


def test_a_record_of_an_erasure_hides_no_changed_weights(lake):
    registry = Registry(lake, "tutor")
    model = registry.current("model", "sft_model")
    home = registry.directory(model)
    (home / "model.safetensors").write_bytes(b"other weights")
    file = {"path": "model.safetensors", "bytes": 13, "sha256": "0" * 64}
    (home / "erased.json").write_text(json.dumps({"removals": [], "files": {"model.safetensors": file}}))
    assert changed_files(home, read_manifest(home)) == ["model.safetensors"]


@pytest.mark.slow
def test_a_session_and_an_interaction_take_the_turns_that_repeat_them(lake):
    rows = {row["request_id"]: row["interaction_id"] for row in content(lake, "interactions")}
    plan = plan_erasure(lake, asked(lake, "interaction", rows["request-bob-1-1"][:12]))
    assert plan.interactions == 2  # the second turn repeats the first
    assert plan_erasure(lake, asked(lake, "interaction", "request-bob-1-2")).interactions == 1
    forget(lake, asked(lake, "session", "bob-1"), BY, vacuum=True)
    left = {row["session_id"] for row in content(lake, "interactions")}
    assert left == {"ann-1", "ann-2", "bob-2", "bob-3", "eve-1", "eve-2"}
    assert places_of({rows["request-bob-1-1"], "bob says no", "request-bob-1-1"}, lake.root) == []


def test_cleaning_after_an_erasure_still_adds_up(lake):
    forget(lake, asked(lake), BY)
    tables = Tables(lake)
    days = sorted(tables.rows_by_day("interactions", "tutor"))
    before = content(lake, "cleaned_interactions")
    assert clean(tables, "tutor", days, CURATION).read == len(content(lake, "interactions")) == len(before)
    assert content(lake, "cleaned_interactions") == before


def test_other_users_of_a_shared_session_stay_and_are_counted(lake):
    tables = Tables(lake)
    rows = [
        {**row, "session_id": "ann-1", "interaction_id": "other", "user_hash": "f" * 64}
        for row in content(lake, "interactions")
        if row["request_id"] == "request-eve-1-1"
    ]
    tables.append("interactions", pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"]))
    plan = forget(lake, asked(lake), BY)
    assert plan.interactions == 4 and plan.shared == (1, 1)
    assert "other" in {row["interaction_id"] for row in content(lake, "interactions")}


def test_an_unseen_user_is_remembered_only_if_asked(lake, whole):
    plan = plan_erasure(lake, asked(lake, identifier="nobody"))
    assert plan.is_empty and not plan.is_known and content(lake, "erasures") == []
    forget(lake, asked(lake, identifier="zoe"), BY)
    [tombstone] = content(lake, "erasures")
    assert tombstone["who"] == "tester" and tombstone["reason"] == "request 1" and "zoe" not in str(tombstone)
    line = pair("z", "zoe", None, [{"role": "user", "content": "hello"}], "hi", 3)
    (lake.root.parent / "new.jsonl").write_text(json.dumps(line) + "\n")
    report = ingest(Tables(lake), "tutor", {"new": SourceSettings(uri=str(lake.root.parent / "new.jsonl"))})
    assert report.total.erased == 1 and report.total.rows == 0


@pytest.mark.parametrize("order", thorough_except(["feedback first"], ["request first", "feedback first", "together"]))
def test_feedback_about_a_request_that_was_dropped_is_dropped_whichever_comes_first(lake, order):
    forget(lake, asked(lake), BY, vacuum=True)
    home = lake.root.parent / "new"
    home.mkdir()
    said = [{"role": "user", "content": "hello there miller"}]
    files = {
        "requests": [pair("new-ann", "ann", "ann-9", said, "hi", 3), pair("new-bob", "bob", "bob-9", said, "hi", 3)],
        "thumbs": [
            {"request_id": f"new-{who}", "score": 0, "comment": f"{who} says {MARK}", "timestamp": "2026-06-03T11:00:00Z"}
            for who in ("ann", "bob")
        ],
    }
    names = {"request first": ["requests", "thumbs"], "feedback first": ["thumbs", "requests"], "together": ["thumbs requests"]}
    for several in names[order]:
        for name in several.split():
            (home / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in files[name]))
        ingest(Tables(lake), "tutor", {"new": SourceSettings(uri=str(home))})
    assert {row["comment"] for row in content(lake, "feedback")} == {"bob says no", f"bob says {MARK}"}
    ids = [row for row in content(lake, "erasures") if row["who"] == "ingest"]
    assert {row["kind"] for row in ids} == {"about"} and "new-ann" not in str(ids) and ids


def test_a_correction_that_names_the_answer_by_its_text_goes_with_it_and_stays_away(lake):
    answers = {row["request_id"]: json.loads(row["completion"])["content"] for row in content(lake, "interactions")}
    edits = lake.root.parent / "edits.jsonl"
    lines = [{"original": answers[f"request-{who}-1-1"], "corrected": f"{MARK} of {who}"} for who in ("ann", "bob")]
    edits.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = {"edits": SourceSettings(uri=str(edits))}
    ingest(Tables(lake), "tutor", source)
    assert [row["tie"] for row in content(lake, "feedback") if row["name"] == "correction"] == ["answer"] * 2
    forget(lake, asked(lake), BY, vacuum=True)
    changed(edits)
    ingest(Tables(lake), "tutor", source)
    assert [row["comment"] for row in content(lake, "feedback") if row["name"] == "correction"] == [f"{MARK} of bob"]


@pytest.mark.slow
def test_a_second_erasure_takes_feedback_that_a_tombstone_names(lake):
    forget(lake, asked(lake), BY, vacuum=True)
    about = {"interaction_id": None, "request_id": "request-ann-1-1", "tie": "unknown", "comment": MARK}
    late = content(lake, "feedback")[0] | about
    Tables(lake).append("feedback", pa.Table.from_pylist([late], schema=SCHEMAS["feedback"]))
    plan = plan_erasure(lake, asked(lake))
    assert plan.tables == {"feedback": 1} and not plan.is_empty
    forget(lake, asked(lake), BY, vacuum=True)
    assert [row["comment"] for row in content(lake, "feedback")] == ["bob says no"] and places_of({MARK}, lake.root) == []


def test_refused_while_a_run_is_at_work_with_another_key_and_for_an_unclear_id(lake, whole, monkeypatch):
    with at_work(lake), pytest.raises(LakeInUse, match="a run is at work on"):
        forget(lake, asked(lake), BY)
    assert content(lake, "erasures") == [] and not list((lake.root / ".erasing").glob("*"))
    with pytest.raises(ForgetError, match="--session is empty"):
        asked(lake, "session", " ")
    forget(lake, asked(lake), BY)
    monkeypatch.setenv("MILLRACE_USER_HASH_KEY", "another")
    with pytest.raises(LakeError, match="hashed without a key, and MILLRACE_USER_HASH_KEY is set"):
        plan_erasure(lake, asked(lake))
    with pytest.raises(LakeError, match="hashed without a key, and MILLRACE_USER_HASH_KEY is set"):
        changed(whole[1] / "gateway.jsonl")
        ingest(Tables(lake), "tutor", sources(whole[1]))
