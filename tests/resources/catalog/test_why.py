"""What became of one request or line: every way a row can leave, told from the tables alone."""

import json
import re

import pyarrow as pa
import pytest
from interaction_rows import days_of, interaction, store, thumb

from resources.catalog.build import rebuild
from resources.catalog.catalog import CatalogError
from resources.catalog.why import UnknownIdError, history_of
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings


def steps(lake, identifier):
    return [(step["stage"], step["rule"]) for step in history_of(lake, identifier).steps.to_pylist()]


def pair(number, answer="A channel to a wheel.", **changes):
    record = {
        "timestamp": 1780300000 + number,
        "workload_id": "w",
        "client_id": "c",
        "session_id": f"s{number}",
        "request": {"model": "m", "messages": [{"role": "user", "content": f"What is a mill race, number {number}?"}]},
        "response": {
            "id": f"r{number}",
            "object": "chat.completion",
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}],
        },
    }
    return record | changes


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """A lake that has read one file of pairs and one of feedback: lines 1 to 7, with a repeated, a bad and a blank one."""
    home = tmp_path_factory.mktemp("why")
    logs = home / "logs"
    logs.mkdir()
    lines = [
        json.dumps(pair(1)),
        json.dumps(pair(2)),
        "",
        "{not json",
        json.dumps(pair(1)),
        json.dumps(pair(5, request={"n": 1})),
    ]
    (logs / "gateway.jsonl").write_text("\n".join(lines) + "\n")
    thumbs = [
        {"response_id": "r2", "name": "thumbs", "value": "down", "comment": "SECRET WORDS"},
        {"response_id": "nobody", "name": "thumbs", "value": "up"},
    ]
    (logs / "thumbs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in thumbs))
    (logs / "picture.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    lake = LakeLayout.open(home / "lake")
    ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(logs))})
    rebuild(lake)
    return lake


def test_a_line_that_became_a_row_is_found_by_the_end_of_its_path_and_by_every_id(read):
    history = history_of(read, "logs/gateway.jsonl:2")
    [step] = history.steps.to_pylist()
    assert (step["stage"], step["rule"]) == ("interactions", "read")
    assert step["detail"].endswith("gateway.jsonl:2")
    for identifier in ("r2", "s2", step["interaction_id"], step["interaction_id"][:8]):
        assert history_of(read, identifier).steps.to_pylist() == history.steps.to_pylist()
    assert history_of(read, "s2").what == "session"


def test_a_repeated_line_tells_which_copy_stayed(read):
    [dropped, kept] = history_of(read, "gateway.jsonl:5").steps.to_pylist()
    assert dropped["rule"] == "repeated_record" and not dropped["kept"]
    assert "gateway.jsonl:5 gave way to" in dropped["detail"]
    assert dropped["detail"].endswith("gateway.jsonl:1, the same content")
    assert kept["detail"].endswith("gateway.jsonl:1")


def test_lines_in_quarantine_and_lines_of_feedback(read):
    assert steps(read, "gateway.jsonl:4") == [("quarantine", "malformed_json")]
    assert steps(read, "gateway.jsonl:6") == [("quarantine", "missing_field")]
    assert steps(read, "thumbs.jsonl:1") == [("feedback", "thumbs"), ("interactions", "read")]
    assert steps(read, "thumbs.jsonl:2") == [("feedback", "thumbs")]
    assert steps(read, "nobody") == [("feedback", "thumbs")]
    assert "SECRET" not in str(history_of(read, "thumbs.jsonl:1").steps.to_pylist())
    details = [history_of(read, f"thumbs.jsonl:{row}").steps.to_pylist()[0]["detail"] for row in (1, 2)]
    assert details == ["value -1, about r2", "value 1, about nobody, an id that no interaction read so far has"]


@pytest.mark.parametrize("asked, said", [
    ("zzz", "no interaction, request, trace, session or feedback has the id zzz"),
    ("elsewhere.jsonl:3", "no log object elsewhere.jsonl is known"), ("gateway.jsonl:3", "no row came of line 3 "),
    ("gateway.jsonl:0", "no row came of line 0 "), ("gateway.jsonl:99", "no record at line 99: the last one is at 6"),
    ("picture.jsonl:2", "as a whole it is in quarantine: invalid_utf8"), ("deadbeefdeadbeef", "has the id deadbeefdeadbeef"),
])  # fmt: skip
def test_what_is_not_there_is_said_in_one_sentence(read, asked, said):
    with pytest.raises(UnknownIdError, match=said):
        history_of(read, asked)


@pytest.fixture
def spelled(read, monkeypatch):
    """The folder of the lake of `read`, as the working directory and as the home, with links to its logs."""
    home = read.root.parent
    for name, target in (("link", "logs"), ("one.jsonl", "logs/gateway.jsonl")):
        if not (home / name).is_symlink():
            (home / name).symlink_to(target)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.parametrize("path", [
    "logs/gateway.jsonl", "./logs//gateway.jsonl", "logs/../logs/gateway.jsonl", "../{name}/logs/gateway.jsonl",
    "~/logs/gateway.jsonl", "link/gateway.jsonl", "one.jsonl", "{home}/link/../logs/./gateway.jsonl",
    "file://{home}/logs/gateway.jsonl", "file://localhost{home}/link/gatew%61y.jsonl", "file:{home}/logs/gateway.jsonl",
    "gateway.jsonl", "../../elsewhere/../logs/gateway.jsonl",
])  # fmt: skip
def test_a_line_and_an_object_are_found_by_any_spelling_of_their_path(read, spelled, path):
    path = path.format(home=spelled, name=spelled.name)
    assert steps(read, f"{path}:2") == [("interactions", "read")]
    assert steps(read, path)[0] == ("object", "read")


@pytest.mark.parametrize("asked, said", [
    ("{home}/logs", "logs is a folder of 3 log objects: ask for one of them, such as {home}/logs/gateway.jsonl"),
    ("logs/", "logs/ is a folder of 3 log objects"), ("link", "link is a folder of 3 log objects"),
    ("logs:4", "logs is a folder of 3 log objects"), ("{home}/lake", "is a folder, and no log object in it is known"),
    ("/gone/gateway.jsonl:4", "no log object /gone/gateway.jsonl is known to .*: {home}/logs/gateway.jsonl has that name"),
    ("gateway.jsonl:99999999999999999999999999", "no record at line"), (":12", "has the id :12"),
    ("a\udcff.jsonl:1", "is not UTF-8 text"), ("\0.jsonl:1", "no log object"),
])  # fmt: skip
def test_what_is_no_object_says_what_is_near_it(read, spelled, asked, said):
    with pytest.raises(UnknownIdError, match=said.format(home=spelled)):
        history_of(read, asked.format(home=spelled))


def test_names_with_colons_accents_and_escapes_are_found(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    names = ["log", "log:2", "12:30:00.jsonl", "e\u0301.jsonl", "100%25.jsonl", "a b.jsonl"]
    for number, name in enumerate(names):
        (tmp_path / "logs" / name).write_text(f"{json.dumps(pair(number))}\n{json.dumps(pair(number + 100))}\n")
    lake = LakeLayout.open(tmp_path / "lake")
    ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(tmp_path / "logs"))})
    rebuild(lake)
    monkeypatch.chdir(tmp_path)
    for asked, what in (
        ("logs/log:2", "log object .*/log:2$"),
        ("log:2", "line 2 of .*/log$"),
        ("log:2:1", "line 1 of .*/log:2$"),
        ("12:30:00.jsonl:2", "line 2 of .*/12:30:00.jsonl$"),
        ("logs/\u00e9.jsonl:1", "line 1 of .*/e\u0301.jsonl$"),
        ("100%25.jsonl", "log object .*/100%25.jsonl$"),
        (f"file://{tmp_path}/logs/100%2525.jsonl:1", "line 1 of .*100%25.jsonl$"),
        (f"file://{tmp_path}/logs/a%20b.jsonl", "log object .*/a b.jsonl$"),
        ("a b.jsonl:1", "line 1 of .*/a b.jsonl$"),
    ):
        assert re.match(what, history_of(lake, asked).what), asked


def test_an_object_on_s3_is_found_by_its_uri_and_its_end(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    known = {"workload": "w", "source": "g", "bytes": 1, "rows": 0, "days": [], "state": "read", "format": "openai_pairs"}
    uris = ["s3://logs/gateway/a.jsonl", "s3://logs//gateway/a.jsonl"]
    Tables(lake).append("objects", pa.Table.from_pylist([{**known, "uri": uri} for uri in uris], schema=SCHEMAS["objects"]))
    rebuild(lake)
    for asked in ("s3://logs/gateway/a.jsonl", "s3a://logs/gateway/a.jsonl", "S3://logs/gateway/a.jsonl"):
        assert history_of(lake, asked).what == "log object s3://logs/gateway/a.jsonl"
    assert history_of(lake, uris[1]).what == "log object s3://logs//gateway/a.jsonl"
    with pytest.raises(CatalogError, match="may be any of 2 log objects"):
        history_of(lake, "gateway/a.jsonl")
    with pytest.raises(UnknownIdError, match="s3://logs/gateway is a folder of 1 log object:"):
        history_of(lake, "s3://logs/gateway")


def test_a_path_that_means_two_objects_is_asked_back(tmp_path):
    for day in ("a", "b"):
        (tmp_path / "logs" / day).mkdir(parents=True)
        (tmp_path / "logs" / day / "part.jsonl").write_text(json.dumps(pair(ord(day))) + "\n")
    lake = LakeLayout.open(tmp_path / "lake")
    ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(tmp_path / "logs"))})
    rebuild(lake)
    with pytest.raises(CatalogError, match="may be any of 2 log objects"):
        history_of(lake, "part.jsonl:1")
    assert steps(lake, "a/part.jsonl:1") == [("interactions", "read")]


def test_duplicates_dislikes_and_scores_are_steps_of_their_own(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    tables = Tables(lake)
    answer = " ".join(f"word{number}" for number in range(60))
    rows = [
        interaction(1, "what is a mill for, and who pays", answer),
        interaction(2, "what is a mill for, and who pays", answer + " again", minutes=1),
        interaction(3, "mail ann@example.org about bread", "it is baked", minutes=2),
        interaction(4, "nobody likes this", "indeed", minutes=3),
    ]
    store(tables, "interactions", rows)
    store(tables, "feedback", [thumb(-1, request_id="r4")])
    clean(tables, "tutor", days_of(rows), CurationSettings())
    score = dict.fromkeys(SCHEMAS["judgements"].names) | {
        "workload": "tutor",
        "dt": rows[0]["dt"],
        "interaction_id": "i3",
        "name": "quality",
        "score": 7.0,
        "model": "big",
        "ts": rows[0]["ts"],
    }
    store(tables, "judgements", [score])
    curate(tables, "tutor", tmp_path / "c1", CurationSettings(), None)
    rebuild(lake)
    near = history_of(lake, "i1").steps.to_pylist()[-1]
    assert (near["rule"], near["kept"], near["kept_id"]) == ("near_duplicate", False, "i2")
    told = {step["stage"]: step["detail"] for step in history_of(lake, "i3").steps.to_pylist()}
    assert "EMAIL 1" in told["clean"] and told["judge"] == "7 of 10" and "ann" not in str(told)
    assert steps(lake, "i4")[-1] == ("curate", "thumbs_down")


def test_an_erased_interaction_is_still_answered_for(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    decision = dict.fromkeys(SCHEMAS["decisions"].names) | {
        "workload": "tutor",
        "stage": "ingest",
        "interaction_id": "ab" * 32,
        "rule": "erased",
        "kept": False,
        "detail": json.dumps({"uri": "log.jsonl", "row": 3}),
    }
    Tables(lake).append("decisions", pa.Table.from_pylist([decision], schema=SCHEMAS["decisions"]))
    rebuild(lake)
    assert steps(lake, "abababab") == [("ingest", "erased")]


def test_a_log_object_as_a_whole_says_what_came_of_its_records(read):
    history = history_of(read, "logs/gateway.jsonl")
    assert [(step["stage"], step["rule"], step["detail"], step["kept"]) for step in history.steps.to_pylist()] == [
        ("object", "read", "tutor: 5 records of the format openai_pairs", True),
        ("interactions", "read", "2 interactions, the first at line 1", True),
        ("ingest", "repeated_record", "1 record, the first at line 5", False),
        ("quarantine", "malformed_json", "1 record, the first at line 4", False),
        ("quarantine", "missing_field", "1 record, the first at line 6", False),
    ]


def test_an_object_that_could_not_be_read_says_why(tmp_path, monkeypatch):
    import resources.sources.ledger as module

    def shut(item):
        raise PermissionError(13, "Permission denied", item.uri)

    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "shut.jsonl").write_text(json.dumps(pair(1)) + "\n")
    lake = LakeLayout.open(tmp_path / "lake")
    with monkeypatch.context() as patched:
        patched.setattr(module, "open_object", shut)
        ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(tmp_path / "logs"))})
    rebuild(lake)
    [step] = history_of(lake, "shut.jsonl").steps.to_pylist()
    assert not step["kept"] and step["detail"] == "tutor: could not be read: Permission denied; the next run tries again"
    with pytest.raises(UnknownIdError, match=r"shut.jsonl could not be read: Permission denied; the next run tries again"):
        history_of(lake, "shut.jsonl:1")
    ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(tmp_path / "logs"))})
    rebuild(lake)
    assert steps(lake, "shut.jsonl:1") == [("interactions", "read")]


def test_the_story_of_an_object_and_of_a_line_reads_well(read, tmp_path):
    from rich.console import Console

    from pipelines.asking.why_text import print_history

    console = Console(width=200, record=True)
    print_history(history_of(read, "gateway.jsonl"), "table", console)
    print_history(history_of(read, "gateway.jsonl:2"), "table", console)
    said = console.export_text()
    assert "log object " in said and "2 interactions, the first at line 1" in said
    assert "a copy was dropped: 1 record, the first" in said
    assert "waits to be cleaned" in said
