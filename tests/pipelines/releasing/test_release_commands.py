"""`approve`, `withdraw`, `rollback`: what is shown, what is asked, what counts, what SQL sees at once."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import pipelines.running.instance
from model_ops.jobs import CheckFailed, Misuse, UserError
from pipelines.cli import app
from pipelines.commands import release as commands
from resources.catalog.catalog import query
from resources.endpoints import approvals
from resources.endpoints.approvals import approve_release
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("release commands")]


@pytest.fixture
def lake(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    monkeypatch.setattr(
        pipelines.running.instance, "open_instance", lambda lake: SimpleNamespace(report_runless_asset_event=lambda event: None)
    )
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def call(lake):
    def call(*words, answer=None):
        result = CliRunner().invoke(app, [*words, "--lake", str(lake.root)], input=answer)
        assert isinstance(result.exception, (UserError, SystemExit, type(None))), result.exception
        return result

    return call


def champion(lake):
    return Endpoint(lake, "tutor").read().champion


def at_a_terminal(monkeypatch):
    monkeypatch.setattr(commands, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))


def test_a_release_is_shown_in_full_and_moves_with_who_why_and_the_way_back(lake, call, make_release):
    a, b = make_release(lake, 1), make_release(lake, 2)
    said = call("approve", a.name).output
    assert f"champion moved from none to {a.name}; approved by ana (MILLRACE_USER)" in said and "undo" not in said
    said = call("approve", b.name[:6], "--reason", "read 20 answers").output
    digest = json.loads((b / "manifest.json").read_text())["digest"]
    for words in (
        f"release {b.name} of tutor",
        digest,
        "tutor/sft_model@",
        "✓ gate    recovery: 0.999 is at least 0.99",
        f"champion  {a.name} at this moment, since",
        f"champion moved from {a.name} to {b.name}",
        "undo: millrace rollback tutor",
    ):
        assert words in said, words
    assert champion(lake) == b.name
    [row] = query(lake, "select who, reason from approvals where action = 'promoted' and reason is not null").to_pylist()
    assert row == {"who": "ana", "reason": "read 20 answers"}
    assert "is the champion already; approved once more by ana" in call("approve", b.name).output
    assert query(lake, "select count(*) n from approvals where action = 'approved'").to_pylist() == [{"n": 3}]


def test_a_short_beginning_moves_nothing_unless_someone_says_yes(lake, call, make_release, monkeypatch):
    release = make_release(lake, 1)
    short = release.name[:4]
    refused = call("approve", short)
    assert (
        isinstance(refused.exception, Misuse) and release.name in str(refused.exception) and "--yes" in str(refused.exception)
    )
    at_a_terminal(monkeypatch)
    declined = call("approve", short, answer="n\n")
    assert declined.exit_code == 1 and release.name in declined.output.split("Approve release")[0]
    assert "Nothing was changed" in declined.output
    assert champion(lake) is None and not (lake.root / "endpoints" / "log").exists()
    assert call("approve", short, answer="y\n").exit_code == 0 and champion(lake) == release.name


def test_the_page_to_read_is_named_before_the_question(lake, call, make_release, monkeypatch):
    release = make_release(lake, 1)
    at_a_terminal(monkeypatch)
    assert "approval.html" not in call("approve", release.name[:4], answer="n\n").output
    (release / "approval.html").write_text(
        "<p>read me</p>"
    )  # no part of the signature; the release's manifest does not list it
    asked = call("approve", release.name[:4], answer="n\n").output
    assert f"read      {release / 'approval.html'}" in asked.partition("Approve release")[0].replace("\n", "")


def test_an_approval_is_asked_for_at_a_terminal_and_a_script_names_the_version(lake, call, make_release, monkeypatch):
    a, b, c = (make_release(lake, number) for number in (1, 2, 3))
    assert call("approve", a.name).exit_code == 0 and champion(lake) == a.name  # no terminal: as in scripts
    at_a_terminal(monkeypatch)
    asked = call("approve", b.name, answer="n\n")
    assert asked.exit_code == 1 and f"Approve release {b.name} of tutor?" in asked.output and champion(lake) == a.name
    assert call("approve", b.name, answer="y\n").exit_code == 0 and champion(lake) == b.name
    said = call("approve", c.name, "--yes")
    assert said.exit_code == 0 and "Approve release" not in said.output and champion(lake) == c.name
    assert "Roll tutor back" not in call("rollback", "tutor").output  # of weights without erased rows, named in full


def test_a_rollback_to_weights_that_learnt_erased_rows_needs_a_yes(lake, call, make_release, monkeypatch):

    a, b = make_release(lake, 1), make_release(lake, 2)
    for directory in (a, b):
        call("approve", directory.name)
    monkeypatch.setattr(approvals, "erased_rows", lambda lake, release: 12)
    refused = call("rollback", "tutor")
    assert isinstance(
        refused.exception, CheckFailed
    ) and "learnt 12 rows that were erased since: no gate erased_rows is set" in str(refused.exception)
    assert f"--to {a.name} --yes" in str(refused.exception) and champion(lake) == b.name
    with monkeypatch.context() as terminal:
        at_a_terminal(terminal)
        assert call("rollback", "tutor", answer="n\n").exit_code == 1 and champion(lake) == b.name
    assert call("rollback", "tutor", "--yes").exit_code == 0 and champion(lake) == a.name
    assert "! served   rolled back by ana on" in call("rollback", "tutor", "--to", b.name).output


def test_a_release_is_pushed_only_where_it_can_be(lake, call, make_release, monkeypatch):
    from resources.releasing import push

    release = make_release(lake, 1)
    refused = call("push", release.name, "gs://company/tutor")
    assert isinstance(refused.exception, CheckFailed) and "name hf://ORG/REPOSITORY or s3://BUCKET/PREFIX" in str(
        refused.exception
    )
    monkeypatch.setattr(push, "push_release", lambda place, directory, to: push.PushReport(3, 2_000_000, 4, signed=False))
    said = call("push", release.name, "hf://company/tutor").output
    assert f"hf://company/tutor: release {release.name}, 3 files sent (2.0 MB), 4 were there" in said and "not signed" in said


def test_yes_is_an_answer_without_a_terminal(lake, call, make_release):
    release = make_release(lake, 1)
    assert call("approve", release.name[:1], "--yes").exit_code == 0 and champion(lake) == release.name


def test_two_rollbacks_and_a_named_one(lake, call, make_release):
    a, b, c = (make_release(lake, number) for number in (1, 2, 3))
    for directory in (a, b, c):
        call("approve", str(directory))
    said = call("rollback", "tutor", "--reason", "wrong prices").output
    assert f"champion moved from {c.name} back to {b.name}; rolled back by ana" in said
    assert f"undo: millrace rollback tutor --to {c.name}" in said
    call("rollback", "tutor")
    assert champion(lake) == a.name
    stuck = call("rollback", "tutor")
    assert isinstance(stuck.exception, CheckFailed) and "no previous release" in str(stuck.exception)
    assert isinstance(call("rollback", "tutor", "--to", c.name[:4]).exception, Misuse) and champion(lake) == a.name
    assert call("rollback", "tutor", "--to", c.name[:6]).exit_code == 0 and champion(lake) == c.name
    expected = [{"release": directory.name} for directory in (a, b, c, b, a, c)]
    assert query(lake, "select release from champions").to_pylist() == expected


def test_withdrawing_keeps_the_champion_and_is_undone_by_an_approval(lake, call, make_release):
    a, b, c = (make_release(lake, number) for number in (1, 2, 3))
    for directory in (a, b, c):
        call("approve", directory.name)
    assert f"release {b.name} is withdrawn by ana" in call("withdraw", b.name, "--reason", "leaks a name").output
    assert "millrace rollback tutor" in str(call("withdraw", c.name).exception)
    call("rollback", "tutor")
    assert champion(lake) == a.name
    expected = [{"standing": "approved", "n": 1}, {"standing": "withdrawn", "n": 2}]
    assert query(lake, "select standing, count(*) n from releases group by all order by all").to_pylist() == expected


def test_a_gate_that_is_missed_is_shown_and_refused(lake, call, make_release):
    release = make_release(lake, 1, recovery=1.114)
    refused = call("approve", release.name)
    assert "✗ gate    recovery: 1.114 is beyond 1" in refused.output
    assert isinstance(refused.exception, CheckFailed) and "run the recipe again" in str(refused.exception)
    assert champion(lake) is None


@pytest.mark.parametrize(("words", "kind", "said"), [
    (("rollback", "no-such"), Misuse, "no endpoint of 'no-such'; there are: tutor"),
    (("rollback", "../tutor"), Misuse, "no endpoint of"),
    (("rollback", "tutor", "--to", "zzzz"), Misuse, "names no release of tutor"),
    (("approve", ""), Misuse, "names no release"),
    (("withdraw", "zzzzzz"), Misuse, "names no release"),
    (("approve", "zzzzzz", "--reason", "two\nlines"), Misuse, "control characters"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence(lake, call, make_release, words, kind, said):
    call("approve", make_release(lake, 1).name)
    refused = call(*words)
    assert isinstance(refused.exception, kind) and said in str(refused.exception)


def test_nobody_known_approves_nothing(lake, call, make_release, monkeypatch):
    from resources.endpoints import endpoint_log

    def unknown():
        raise endpoint_log.ActorError("set MILLRACE_USER")

    monkeypatch.setattr(endpoint_log, "_person", unknown)
    refused = call("approve", make_release(lake, 1).name)
    assert isinstance(refused.exception, Misuse) and champion(lake) is None


def test_the_systems_account_is_told_how_to_be_a_person(lake, call, make_release, monkeypatch):
    from resources.endpoints import endpoint_log

    monkeypatch.setattr(endpoint_log, "_person", lambda: ("root", "system account"))
    said = call("approve", make_release(lake, 1).name).output
    assert "approved by root (system account)" in said and "set MILLRACE_USER" in said


def test_verify_of_the_endpoints_finds_a_changed_entry(lake, call, make_release):
    call("approve", make_release(lake, 1).name)
    assert call("verify", "endpoints").exit_code == 0
    entry = lake.root / "endpoints" / "log" / "tutor" / "000001.json"
    entry.write_text(entry.read_text().replace("ana", "eve"))
    found = call("verify", "endpoints")
    assert found.exit_code == 1 and "entry 1 was changed" in found.output


def test_a_further_alias_names_an_approved_release_until_it_is_withdrawn_or_removed(lake, call, make_release):
    a, b = make_release(lake, 1), make_release(lake, 2)
    assert "not approved" in str(call("promote", b.name, "--to", "canary").exception)
    for directory in (a, b):
        call("approve", directory.name)
    assert f"canary names release {a.name}" in call("promote", a.name, "--to", "canary").output
    assert Endpoint(lake, "tutor").read().named == {"canary": a.name} and champion(lake) == b.name
    expected = [{"aliases": ["canary"]}, {"aliases": []}]
    assert query(lake, "select aliases from releases order by is_champion").to_pylist() == expected
    for name in ("champion", "Canary", "a/b", ""):
        assert "cannot be the name of an alias" in str(call("promote", a.name, "--to", name).exception)
    call("withdraw", a.name)
    assert Endpoint(lake, "tutor").read().named == {}
    call("promote", b.name, "--to", "eu-1")
    assert "eu-1 is removed" in call("promote", "tutor", "--to", "eu-1", "--remove").output
    assert "has no alias 'eu-1'" in str(call("promote", "tutor", "--to", "eu-1", "--remove").exception)
    assert Endpoint(lake, "tutor").problems() == []


def test_releases_are_listed_and_compared(lake, call, make_release):
    assert "There is no release yet" in call("releases").output
    a, b = make_release(lake, 1), make_release(lake, 2, drafts=True)
    assert "has no champion to compare" in str(call("compare", b.name).exception)
    call("approve", a.name)
    call("reject", b.name, "--reason", "worse answers")
    listed = {row["version"]: row for row in json.loads(call("releases", "tutor", "--format", "json").output)}
    assert listed[a.name]["aliases"] == ["champion"] and listed[b.name]["decision"] == "withdrawn"
    assert "withdrawn" in call("releases").output
    assert "no release of 'other'; there are: tutor" in str(call("releases", "other").exception)
    found = json.loads(call("compare", b.name, "--format", "json").output)
    assert {row["what"]: (row["before"], row["after"]) for row in found["parts"]}["drafter"] == ("none", "eagle3, 2 tokens")
    assert found["measurements"] == [{"what": "recovery", "before": "0.9990", "after": "0.9990"}]
    assert "eagle3, 2 tokens" in call("compare", b.name, a.name).output
    assert "name another one" in str(call("compare", a.name, a.name).exception)


def test_what_signs_and_packs_says_what_is_missing(lake, call, make_release, tmp_path):
    release = make_release(lake, 1)
    assert "set MILLRACE_SIGNING_KEY" in str(call("sign", release.name).exception)
    assert "is not signed" in str(call("package", release.name, str(tmp_path / "out.tar")).exception)
    assert not (tmp_path / "out.tar").exists()


@pytest.mark.parametrize(
    ("shown", "yes", "allowed"), [("", False, False), ("it learnt 3 erased rows", False, True), ("", True, True)]
)
def test_a_yes_to_erased_rows_counts_only_where_they_were_shown(tmp_path, make_release, monkeypatch, shown, yes, allowed):
    lake, asked = LakeLayout.open(tmp_path / "lake"), []
    old, new = make_release(lake, 1), make_release(lake, 2)
    for release in (old, new):
        approve_release(lake, release, Actor("ana", "MILLRACE_USER"))

    def roll_back(*_, though_tainted):
        asked.append(though_tainted)
        raise Misuse("enough")

    monkeypatch.setenv("MILLRACE_USER", "ana")
    monkeypatch.setattr(commands, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(commands.typer, "confirm", lambda question: True)
    monkeypatch.setattr(approvals, "taint_of", lambda *_: shown)
    monkeypatch.setattr(approvals, "roll_back", roll_back)
    with pytest.raises(Misuse, match="enough"):
        commands.rollback("tutor", yes=yes, lake=str(lake.root))
    assert asked == [allowed]
