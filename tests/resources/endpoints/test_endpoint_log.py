"""The log of an endpoint: whole entries in a chain; what was changed, removed or damaged is named."""

import json
import os
import pwd

import pytest

from resources.endpoints import endpoint_log
from resources.endpoints.endpoint_log import Actor, ActorError, EndpointLog, EndpointLogError
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseRef

ANA = Actor("ana", "MILLRACE_USER", "read it")


@pytest.fixture
def log(tmp_path):
    """Three entries."""
    lake = LakeLayout.open(tmp_path / "lake")
    for version in ("r1", "r2", "r3"):
        Endpoint(lake, "tutor").promote(ReleaseRef(version=version), ANA)
    return EndpointLog(lake, "tutor")


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_entries_are_read_in_order_with_who_when_and_why(log):
    entries = log.entries()
    assert [(entry.number, entry.release, entry.by, entry.identity_from, entry.reason) for entry in entries] == [
        (number, f"r{number}", "ana", "MILLRACE_USER", "read it") for number in (1, 2, 3)
    ]
    assert entries[0].at <= entries[1].at <= entries[2].at and entries[0].at.tzinfo is not None
    assert [entry.before for entry in entries] == ["", entries[0].sha256, entries[1].sha256]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: change(folder / "000002.json", by="eve"), "entry 2 was changed"),
        (lambda folder: change(folder / "000003.json", reason="other"), "entry 3 was changed"),
        (lambda folder: change(folder / "000001.json", note="more"), "entry 1 was changed"),
        (lambda folder: (folder / "000002.json").unlink(), "entry 2 is missing"),
        (lambda folder: (folder / "000001.json").unlink(), "entry 1 is missing"),
        (lambda folder: (folder / "000002.json").write_text('{"number": 2, "at"'), "entry 000002.json cannot be read"),
        (lambda folder: (folder / "000003.json").write_bytes(b"\xff\x00"), "entry 000003.json cannot be read"),
        (lambda folder: (folder / "000002.json").write_text("[]"), "entry 000002.json cannot be read"),
        (lambda folder: (folder / "000002.json").write_text((folder / "000003.json").read_text()), "entry 2 was changed"),
    ],
)
def test_damage_is_one_sentence_and_nothing_is_written_after_it(log, tmp_path, damage, said):
    damage(log.folder)
    with pytest.raises(EndpointLogError, match=said) as raised:
        log.entries()
    assert "\n" not in str(raised.value) and "restore" in str(raised.value)
    files = sorted(log.folder.iterdir())
    with pytest.raises(EndpointLogError):
        Endpoint(LakeLayout.open(tmp_path / "lake"), "tutor").promote(ReleaseRef(version="r4"), ANA)
    assert sorted(log.folder.iterdir()) == files
    assert said in Endpoint(LakeLayout.open(tmp_path / "lake"), "tutor").problems()[0]


def test_a_replaced_entry_with_a_right_digest_of_its_own_breaks_the_chain(log):
    from resources.endpoints.endpoint_log import entry_digest

    path = log.folder / "000002.json"
    content = {**json.loads(path.read_text()), "by": "eve"}
    path.write_text(json.dumps({**content, "sha256": entry_digest(content)}))
    with pytest.raises(EndpointLogError, match="an entry before entry 3 was replaced"):
        log.entries()


def test_what_a_killed_write_leaves_beside_the_entries_is_no_entry(log):
    (log.folder / ".000004.json.x81").write_text('{"number": 4')
    assert len(log.entries()) == 3


def test_a_log_that_was_moved_away_begins_again_with_what_is_served(log, tmp_path):
    log.folder.rename(tmp_path / "away")
    endpoint = Endpoint(LakeLayout.open(tmp_path / "lake"), "tutor")
    endpoint.nominate(ReleaseRef(version="r4"))
    assert [(entry.action, entry.champion) for entry in endpoint.entries()] == [("found", "r3"), ("nominated", "r3")]


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    """Neither the environment nor git nor the system knows anybody."""
    for name in ("MILLRACE_USER", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(endpoint_log, "_git_email", lambda: "")

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_nobody_known_is_refused_with_how_to_set_it():
    with pytest.raises(ActorError, match="set MILLRACE_USER to your name"):
        Actor.of_command()


def test_the_order_in_which_a_person_is_looked_for(monkeypatch):
    monkeypatch.setenv("USER", "env")
    assert (Actor.of_command().name, Actor.of_command().identity_from) == ("env", "USER")
    monkeypatch.setattr(pwd, "getpwuid", lambda number: pwd.struct_passwd(("root", "x", 0, 0, "", "/", "/bin/sh")))
    assert (Actor.of_command().name, Actor.of_command().identity_from) == ("root", "system account")
    monkeypatch.setattr(endpoint_log, "_git_email", lambda: "ana@example.org")
    assert (Actor.of_command().name, Actor.of_command().identity_from) == ("ana@example.org", "git config user.email")
    monkeypatch.setenv("MILLRACE_USER", " Ana Müller ")
    assert (Actor.of_command().name, Actor.of_command().identity_from) == ("Ana Müller", "MILLRACE_USER")
    monkeypatch.setenv("MILLRACE_USER", "  ")
    assert Actor.of_command().identity_from == "git config user.email"


def test_git_is_asked_for_its_email(monkeypatch, tmp_path):
    monkeypatch.undo()
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n\temail = bo@example.org\n")
    monkeypatch.delenv("MILLRACE_USER", raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.fspath(config))
    monkeypatch.chdir(tmp_path)
    assert Actor.of_command().name == "bo@example.org"
    monkeypatch.setenv("PATH", "/nowhere")
    assert Actor.of_command().identity_from == "system account"


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31mred", "a\x00b", "a\u202eb", "a\u2028b", "\udcff", "a\tb", "\u200bz"])
def test_text_that_would_not_show_as_one_line_is_refused(monkeypatch, text):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    with pytest.raises(ActorError, match="--reason holds control characters"):
        Actor.of_command(f"x{text}x")
    if "\x00" not in text:
        monkeypatch.setenv("MILLRACE_USER", f"x{text}x")
        with pytest.raises(ActorError, match="MILLRACE_USER holds control characters"):
            Actor.of_command()


def test_any_language_and_emoji_are_text_and_there_is_an_end_to_it(monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    assert Actor.of_command(" перечитано 👩\u200d🔬 ").reason == "перечитано 👩\u200d🔬"
    with pytest.raises(ActorError, match="shorten it"):
        Actor.of_command("x" * 2_001)
