"""One person whose id is written in several ways: one user of the lake, or named before anything is erased."""

import json
import unicodedata

import pytest

from pipelines.asking import forget_text
from resources.digests.user_hash import keyed_hash, user_of
from resources.erasing.journal import ask_for
from resources.erasing.raw_keys import named_in_logs, near_ids
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading import ingest
from resources.sources import SourceSettings
from tests.command import millrace
from tests.resources.records.test_formats import read

ADDRESS = "anna.meier@example.com"


@pytest.mark.parametrize(
    "written",
    [
        "Anna.Meier@Example.COM",
        " anna.meier@example.com\n",
        "\u200banna.meier@example.com\ufeff",
        "mailto:anna.meier@example.com",
        "<Anna.Meier@example.com>",
        '"Meier, Anna" <anna.meier@EXAMPLE.com>',
        "\uff41nna.meier@example.com",
        "anna.meier@example.com.",
    ],
)
def test_a_mail_address_is_one_person_in_any_spelling(written):
    assert user_of(written) == ADDRESS


def test_a_domain_in_letters_and_in_punycode_is_one():
    assert user_of("a@xn--mller-kva.example") == user_of("A@Mu\u0308ller.example") == "a@müller.example"


@pytest.mark.parametrize(
    "identifier", ["aB3xQ", "Ab3xQ", "x@y", "google-oauth2|1", "straße@example.com", "strasse@example.com"]
)
def test_other_ids_keep_their_case(identifier):
    assert user_of(f" {identifier}\t") == identifier


def test_every_visible_ascii_id_without_an_at_sign_is_hashed_as_it_is():
    """The macro user_name calls no Python for them."""
    assert all(user_of(f"{chr(code)}a{chr(code)}") == f"{chr(code)}a{chr(code)}" for code in range(0x21, 0x7F) if code != 0x40)


def chat(number, user, question="why"):
    asked = {"messages": [{"role": "user", "content": f"{question} {number}"}], "user": user}
    said = {"id": f"chatcmpl-{number}x7f", "choices": [{"message": {"role": "assistant", "content": f"because {number}"}}]}
    return {"request": asked, "response": said}


def test_rows_and_the_asked_user_meet_whatever_spelling_either_has(tmp_path):
    names = [ADDRESS, "Anna.Meier@Example.COM ", unicodedata.normalize("NFD", "Jürgen"), "Jürgen", "ab", "aB"]
    rows, _, _, _ = read(tmp_path, [chat(number, name) for number, name in enumerate(names)])
    hashes = [row["user_hash"] for row in rows]
    assert len(set(hashes)) == 4 and hashes[0] == hashes[1] == keyed_hash(ADDRESS)
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    assert ask_for(tables, "user", " ANNA.MEIER@example.com").hashes == (hashes[0],)
    assert ask_for(tables, "user", unicodedata.normalize("NFD", "Jürgen")).hashes == (hashes[3],)
    said = millrace("forget", "--user", "ANNA.meier@example.com ", "--lake", tmp_path / "lake").stdout
    assert "Would erase: 2 interactions" in said


def test_an_id_of_another_case_is_named_and_no_tombstone_is_offered(tmp_path):
    read(tmp_path, [chat(1, "ANNA"), chat(2, "ANNA"), chat(3, "AnnaMeier42"), chat(4, "anna@example.com")])
    lake = tmp_path / "lake"
    said = " ".join(millrace("forget", "--user", "anna", "--apply", "--lake", lake, check=1).stdout.split())
    assert "another user of almost this id has 2 rows: --user ANNA" in said and "--even-unseen" not in said
    tables = Tables(LakeLayout.open(lake))
    assert tables.open("erasures") is None
    assert list(near_ids(tables, "user", "Bob")) == []
    assert list(near_ids(tables, "user", "anna+x@example.com")) == [
        "another user of almost this id has 1 row: --user anna@example.com"
    ]
    [told] = named_in_logs(tables.lake, "annameier42", everywhere=True)
    assert "a user of almost this id stands under request.user in 1 record" in told and "--user AnnaMeier42" in told
    said = millrace("forget", "--user", "annameier42", "--lake", lake, check=1).stdout
    assert "--even-unseen" not in said and "AnnaMeier42" in said


def test_an_id_in_quotes_and_one_without_name_each_other_and_a_tag_names_its_address(tmp_path):
    read(tmp_path, [chat(1, "'quoted'"), chat(2, "bare"), chat(3, '"Cased"'), chat(4, "bob+tag@example.org")])
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    named = {asked: list(near_ids(tables, "user", asked)) for asked in ("quoted", '"bare"', "Cased", "bob@example.org")}
    before = "another user of almost this id has 1 row: --user "
    assert [[line.removeprefix(before) for line in lines] for lines in named.values()] == [
        ["''\"'\"'quoted'\"'\"''"],
        ["bare"],
        ["'\"Cased\"'"],
        [],  # a tag can be any word
    ]


@pytest.mark.parametrize("asked", ["ann", "zoe"])
def test_ids_of_almost_the_asked_one_are_named_once_and_before_anything_is_erased(tmp_path, monkeypatch, asked):
    read(tmp_path, [chat(1, "ann"), chat(2, "ANN"), chat(3, "ZOE"), {"user": asked, "model": 3}])
    tables, seen = Tables(LakeLayout.open(tmp_path / "lake")), []
    monkeypatch.setattr(forget_text, "say", lambda console, text, *_: seen.append((text, tables.open("erasures") is None)))
    millrace("forget", "--user", asked, "--apply", "--even-unseen", "--lake", tmp_path / "lake", check=None)
    assert any("(text removed, place kept)" in text for text, _ in seen), "what stays of the record in quarantine"
    assert [told for told in seen if "another user" in told[0]] == [
        (f"! another user of almost this id has 1 row: --user {asked.upper()}.", True)
    ]
    assert [text for text, before in seen if "of almost this id" in text and not before] == []
    assert not seen[-1][1] and tables.open("erasures").to_pyarrow_table().num_rows


def test_sessions_and_requests_of_another_case_are_named(tmp_path):
    read(tmp_path, [chat(1, "ann") | {"session_id": "S-Abc"}])
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    assert list(near_ids(tables, "session", "s-abc")) == ["another session of almost this id has 1 row: --session S-Abc"]
    assert list(near_ids(tables, "interaction", "CHATCMPL-1X7F")) == [
        "another interaction of almost this id has 1 row: --interaction chatcmpl-1x7f"
    ]
    assert list(near_ids(tables, "session", "S-Abc")) == []


def test_an_address_in_the_texts_of_others_is_named(tmp_path):
    read(tmp_path, [chat(1, "bob", "my address is Anna.Meier@Example.COM, so")])
    [told] = named_in_logs(LakeLayout.open(tmp_path / "lake"), ADDRESS, everywhere=True)
    assert "the address stands in the texts of 1 record" in told and "log.jsonl:1 first" in told


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
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        body = {"id": f"chatcmpl-{number}", "model": "m", "choices": choices}
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
