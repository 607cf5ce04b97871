"""Each cause is told once, at every channel, whatever hangs, refuses or is restarted."""

import base64
import fcntl
import threading
import time
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest
from pydantic import ValidationError

from resources.deciding.evidence import BudgetSettings
from resources.deciding.policy import refusal
from resources.endpoints.approvals import record_approval, roll_back, withdraw
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.monitoring.alerts.release_alerts import FailedRun, budget_alerts, drift_alerts, failed_run_alerts, release_alerts
from resources.monitoring.alerts.settings import Alert, AlertSettings
from resources.monitoring.alerts.tell import DeliveryError, deliver, tell
from resources.releases.release import ReleasePolicy, ReleaseRef
from tests.resources.deciding.examples import NOW as DECIDED
from tests.resources.deciding.examples import decision
from tests.resources.monitoring.receivers import MailServer, Webhook

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


def alert(cause="3f2a/2026-07-01", kind="drift", **more):
    more |= {"title": "shop: drift since 2026-07-01 (novelty)", "text": "novelty over 1 d: 0.4 <b>", "todo": "Look & decide."}
    facts = {"release": "3f2a", "alarms": 2}
    return Alert(kind=kind, workload="shop", cause=cause, at=datetime.now(UTC), facts=facts, **more)


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture
def webhook(monkeypatch):
    with Webhook().listening() as server:
        monkeypatch.setenv("HOOK", server.url)
        yield server


@pytest.fixture
def mail():
    with MailServer().listening() as server:
        yield server


def settings(mail=None, **more):
    email = {"host": "127.0.0.1", "port": mail.port if mail else 25, "security": "none"}
    email |= {"sender": "m@example.com", "to": ["a@example.com", "b@example.com"]}
    channels = {"webhook": {"url_env": "HOOK"}, **({"email": email} if mail else {})}
    return AlertSettings(**{**channels, "timeout_s": 2, **more})


def test_an_alert_reaches_every_channel_once_also_after_a_restart(lake, webhook, mail, monkeypatch):
    monkeypatch.setenv("SLACK", webhook.url)
    chosen = settings(mail, slack={"url_env": "SLACK"})
    assert tell(lake, "shop", chosen, [alert()]).sent == 3
    assert tell(lake, "shop", chosen, [alert()]).sentence == "nothing to tell"  # reads the outbox anew, as another process does
    plain = next(each for each in webhook.got if "id" in each)
    about = {"id": alert().id, "kind": "drift", "workload": "shop", "at": plain["at"], "lake": lake.place}
    words = {"title": alert().title, "text": "novelty over 1 d: 0.4 <b>", "what_to_do": "Look & decide."}
    assert plain == {**about, **words, "facts": {"release": "3f2a", "alarms": 2}}
    section, context = next(each for each in webhook.got if "blocks" in each)["blocks"]
    assert "0.4 &lt;b&gt;" in section["text"]["text"] and "release: 3f2a" in context["elements"][0]["text"]
    [got] = mail.mails
    assert got["to"] == "a@example.com, b@example.com" and got["subject"] == "[millrace] shop: drift since 2026-07-01 (novelty)"
    assert "What to do: Look & decide." in got.get_content() and alert().id in got["message-id"]
    assert webhook.keys == [alert().id] * 2
    assert tell(lake, "shop", chosen, [alert("3f2a/2026-07-20")]).sent == 3  # another cause


def test_a_webhook_that_hangs_delays_no_other_channel_and_is_told_once(lake, webhook, mail):
    webhook.status = None
    chosen, began = settings(mail, timeout_s=0.3), time.monotonic()
    first = tell(lake, "shop", chosen, [alert()])
    assert time.monotonic() - began < 3
    [note] = first.notes  # of the request, or of the thread that waits for it
    assert note.replace(" (HOOK)", "") == (
        "the channel webhook did not answer within 0.3 s: its alerts wait, and it is tried again"
    )
    assert [each["subject"] for each in mail.mails] == [
        "[millrace] shop: drift since 2026-07-01 (novelty)",
        "[millrace] shop: alerts do not reach the channel webhook",
    ]
    later = tell(lake, "shop", chosen, [alert()], now=datetime.now(UTC) + timedelta(minutes=5))
    assert later.notes == [] and len(mail.mails) == 2 and later.waiting == 1
    webhook.status = 200
    webhook.released.set()
    again = tell(lake, "shop", chosen, [alert()], now=datetime.now(UTC) + timedelta(minutes=30))
    assert again.notes == ["the channel webhook takes alerts again"] and [each["id"] for each in webhook.got] == [alert().id]


def test_a_failing_channel_is_tried_after_growing_pauses_and_a_bounded_number_of_times(lake, webhook):
    webhook.status = 500
    chosen, now, tried = settings(tries=3), datetime.now(UTC), []
    for minute in range(20):
        before = len(webhook.keys)
        tell(lake, "shop", chosen, [alert()], now=now + timedelta(minutes=minute))
        tried += [minute] * (len(webhook.keys) - before)
    assert tried == [0, 1, 3]
    webhook.status = 200
    last = tell(lake, "shop", chosen, [alert(), alert("later")], now=now + timedelta(hours=2))
    assert last.sent == 1  # the first was given up
    assert [each["id"] for each in webhook.got] == [alert("later").id]


def test_two_daemons_tell_a_cause_once(lake, webhook):
    folder = lake.root / "alerts" / "shop"
    folder.mkdir(parents=True)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert tell(lake, "shop", settings(), [alert()]).busy
    assert webhook.got == []
    threads = [threading.Thread(target=tell, args=(lake, "shop", settings(), [alert()])) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    tell(lake, "shop", settings(), [alert()])
    assert len(webhook.got) == 1


def test_what_was_long_ago_when_alerts_are_switched_on_is_not_told_but_what_waits_for_a_person_is(lake, webhook):
    old = {"at": datetime.now(UTC) - timedelta(days=30)}
    told = tell(lake, "shop", settings(), [each.model_copy(update=old) for each in (alert(), alert("r", kind="approval"))])
    assert told.sent == 1 and [each["kind"] for each in webhook.got] == ["approval"]


def test_kinds_that_the_recipe_leaves_out_are_not_told(lake, webhook):
    assert tell(lake, "shop", settings(kinds=["budget"]), [alert()]).sent == 0


def test_a_missing_variable_and_an_unreachable_server_are_said_without_secrets(lake, monkeypatch):
    monkeypatch.delenv("HOOK", raising=False)
    [note] = tell(lake, "shop", settings(), [alert()]).notes
    assert note.startswith("the environment variable HOOK, which alerts need, is not set where the Dagster daemon runs")
    for url in ("http://127.0.0.1:1/hook?token=SECRET", "http://[::1:bad/SECRET", "ftp://127.0.0.1/SECRET"):
        monkeypatch.setenv("HOOK", url)
        with pytest.raises(DeliveryError) as refused:
            deliver("webhook", settings().webhook, alert(), "lake", 1)
        assert "SECRET" not in str(refused.value) and "HOOK" in str(refused.value)


def test_a_mail_server_gets_the_password_of_the_environment_and_its_refusal_is_said(mail, monkeypatch):
    monkeypatch.setenv("MAIL_PASSWORD", "hush")
    email = {**settings(mail).email.model_dump(), "user": "mill", "password_env": "MAIL_PASSWORD"}
    chosen = AlertSettings(email=email)
    deliver("email", chosen.email, alert(), "lake", 2)
    assert base64.b64decode(mail.login) == b"\0mill\0hush"
    mail.refuses = True
    with pytest.raises(DeliveryError, match=r"took no mail|answered 550"):
        deliver("email", chosen.email, alert(), "lake", 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "alerts need a channel"),
        ({"webhook": {"url_env": "https://hooks/SECRET"}}, "not the name of an environment variable"),
        ({"email": {"host": "h", "sender": "m@x.de", "to": ["a@x.de"], "user": "u"}}, "user and password_env belong together"),
        ({"email": {"host": "h", "sender": "m@x.de\nBcc: z@x.de", "to": ["a@x.de"]}}, "not a mail address"),
        ({"email": {"host": "h:x y", "sender": "m@x.de", "to": ["a@x.de"]}}, "not the name of a host"),
        ({"webhook": {"url_env": "HOOK"}, "kinds": ["rain"]}, "drift"),
    ],
)
def test_wrong_settings_are_refused(given, said):
    with pytest.raises(ValidationError, match=said):
        AlertSettings.model_validate(given)


def test_a_mail_server_that_answers_each_word_in_time_and_all_of_them_too_late_gets_no_mail(lake):
    with MailServer(pause_s=0.1).listening() as slow:
        with pytest.raises(DeliveryError, match="did not answer within"):
            deliver("email", settings(slow).email, alert(), lake.place, 0.3)
        assert slow.mails == []  # it is tried again, and must not come twice
        deliver("email", settings(slow).email, alert(), lake.place, 5.0)
        assert len(slow.mails) == 1


def test_an_alert_of_another_machine_is_sent_only_when_that_machine_is_gone(lake, webhook, monkeypatch):
    away = settings()
    monkeypatch.setenv("HOOK", "http://127.0.0.1:9/")
    assert tell(lake, "shop", away, [alert()]).waiting == 1
    monkeypatch.setenv("HOOK", webhook.url)
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert tell(lake, "shop", away, [alert()]).sent == 0
    assert tell(lake, "shop", away, [alert()], now=datetime.now(UTC) + timedelta(hours=3)).sent == 1


ANA, BOB, WATCH = (Actor(name, "MILLRACE_USER", "because") for name in ("ana", "bob", "millrace watch"))


def compared(lake, *days, test="novelty", alarm=True, release="", ts=datetime(2026, 8, 1, tzinfo=UTC)):
    """Rows of the table drift: days of July."""
    row = dict.fromkeys(SCHEMAS["drift"].names) | {"workload": "tutor", "release": release, "window_days": 1, "test": test}
    row |= {"value": 0.4, "bound": 0.25, "p": 1e-5, "alarm": alarm, "ts": ts}
    rows = [{**row, "dt": date(2026, 7, 1) + timedelta(days=day - 1)} for day in days]
    Tables(lake).append("drift", pa.Table.from_pylist(rows, schema=SCHEMAS["drift"]))


def test_alarms_of_days_that_follow_each_other_are_one_change(lake):
    assert drift_alerts(Tables(lake), "tutor", "") == []
    compared(lake, 3, 4, 5, 9)
    compared(lake, 3, test="language")
    compared(lake, 1, 2, alarm=False)
    compared(lake, 1, release="other")
    [one] = drift_alerts(Tables(lake), "tutor", "")
    assert one.title == "tutor: drift since 2026-07-03 (language, novelty)" and one.facts["alarms"] == 5
    assert "language over 1 d: 0.4, alarms from 0.25; novelty" in one.text and "the first window of the logs" in one.text
    compared(lake, 10, 17)  # it goes on
    [same] = drift_alerts(Tables(lake), "tutor", "")
    assert same.id == one.id
    compared(lake, 25, 120)
    assert [each.cause for each in drift_alerts(Tables(lake), "tutor", "")] == ["/2026-07-03", "/2026-07-25", "/2026-10-28"]


def test_a_change_is_told_once_though_late_logs_move_its_first_day(lake, monkeypatch):
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1")
    chosen, sent, now = AlertSettings(webhook={"url_env": "HOOK"}), [], datetime.now(UTC)

    def told():
        sent.clear()
        alerts = drift_alerts(Tables(lake), "tutor", "")
        tell(lake, "tutor", chosen, alerts, now, send=lambda name, channel, alert, *_: sent.append(alert.cause))
        return sent

    compared(lake, 10, 12, 13, ts=now)
    assert told() == ["/2026-07-10"] and told() == []
    Tables(lake).replace("drift", SCHEMAS["drift"].empty_table(), workload="tutor", dt=date(2026, 7, 10))
    assert [each.cause for each in drift_alerts(Tables(lake), "tutor", "")] == ["/2026-07-12"] and told() == []
    compared(lake, 8, ts=now)
    assert told() == []
    compared(lake, 21, ts=now)  # eight days without an alarm: another change
    assert told() == ["/2026-07-21"]


def held_alert(lake, why):
    """The alert of a decision that a budget kept from being run."""
    schema, said = SCHEMAS["retraining_decisions"], f"nothing is run: {why}"
    about = {"workload": "tutor", "decision_id": "d1", "ts": DECIDED, "cause": "new_logs", "why": said}
    Tables(lake).append("retraining_decisions", pa.Table.from_pylist([dict.fromkeys(schema.names) | about], schema=schema))
    [one] = budget_alerts(Tables(lake), "tutor")
    return one


@pytest.mark.parametrize(
    ("budget", "title", "waiting_helps"),
    [
        ({"runs_per_week": 0}, "tutor: the budget runs_per_week is 0", False),
        ({"device_hours_per_week": 1}, "tutor: the budget device_hours_per_week is too small", False),
        ({"device_hours_per_week": 5}, "tutor: the budget device_hours_per_week is used", True),
    ],
)
def test_waiting_for_a_budget_is_advised_only_where_it_helps(lake, budget, title, waiting_helps):
    before = decision(days_ago=0.0, cost_s=4 * 3600.0)
    one = held_alert(lake, refusal(BudgetSettings(**budget), [before], cost_hours=2.0, money=None, now=DECIDED))
    assert one.title == title and ("Or wait" in one.todo) == waiting_helps


@pytest.mark.parametrize(
    ("budget", "hours", "helps"),
    [
        ({"device_hours_per_week": 5}, None, "millrace run RECIPE"),
        ({"money_per_week": 5}, 2.0, "price_per_device_hour"),
        ({"money_per_week": 5}, None, "millrace run RECIPE"),
    ],
)
def test_a_budget_that_an_unknown_cost_cannot_be_held_against_is_not_said_to_be_used(lake, budget, hours, helps):
    one = held_alert(lake, refusal(BudgetSettings(**budget), [], cost_hours=hours, money=None, now=DECIDED))
    [name] = budget
    assert one.title == f"tutor: the budget {name} needs a cost that is unknown"
    assert helps in one.todo and "Raise" not in one.todo and "wait" not in one.todo


def test_a_candidate_waits_until_enough_people_approved_it_or_one_withdrew_it(lake, make_release):
    assert release_alerts(lake, "tutor") == []
    release = make_release(lake, 1, policy=ReleasePolicy(people=2))
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release))
    [first] = release_alerts(lake, "tutor")
    assert first.kind == "approval" and first.title == f"tutor: release {release.name} waits for 2 people"
    assert f"millrace approve {release.name} --lake {lake.place}" in first.todo and "recovery 0.999" in first.text
    record_approval(lake, release, ANA)
    [second] = release_alerts(lake, "tutor")
    assert second.id != first.id and "Approved so far by 1." in second.text
    assert second.title.endswith("waits for one more person")
    record_approval(lake, release, BOB)
    assert release_alerts(lake, "tutor") == []
    withdraw(lake, release, ANA)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release))
    assert [each for each in release_alerts(lake, "tutor") if each.kind == "approval"] == []


def test_missed_gates_are_told_with_their_numbers(lake, make_release):
    release = make_release(lake, 1, recovery=0.9)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release))
    [one] = release_alerts(lake, "tutor")
    assert one.kind == "gates" and one.title == f"tutor: release {release.name} missed 1 gate"
    assert "gate recovery: 0.9" in one.text and "at least 0.99" in one.text


def test_only_the_rollback_of_the_watch_is_told(lake, make_release):
    first, second = make_release(lake, 1), make_release(lake, 2)
    for release in (first, second):
        record_approval(lake, release, ANA)
        Endpoint(lake, "tutor").promote(ReleaseRef.of(release), ANA)
    roll_back(lake, first, BOB)
    assert release_alerts(lake, "tutor") == []
    record_approval(lake, second, ANA)
    Endpoint(lake, "tutor").promote(ReleaseRef.of(second), ANA)
    roll_back(lake, first, WATCH)
    [one] = release_alerts(lake, "tutor")
    assert one.kind == "rollback" and one.text == "because." and one.facts["replaced"] == second.name


def test_a_failed_run_names_steps_and_kinds_of_errors_but_no_message():
    at, steps = datetime(2026, 7, 1, tzinfo=UTC), ["sft_model", "student_model"]
    [one] = failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", "train", at, steps, ["WorkerKilled", ""])])
    assert one.title == "tutor: a run of train failed at sft_model, student_model"
    assert "Failed: sft_model (WorkerKilled), student_model." in one.text and "run 0a1b2c3d in" in one.todo
    [gone] = failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", "train", at, process_is_gone=True)])
    assert "Its process is gone." in gone.text and gone.id == one.id  # once, whether it is marked as failed later or not


def test_a_refused_decision_is_no_failed_run():
    at = datetime(2026, 7, 1, tzinfo=UTC)
    assert failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", "approve", at, ["approve_release"], ["Failure"])]) == []
    [one] = failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", "rollback", at, ["roll_back_endpoint"], ["OSError"])])
    assert "did not move" not in one.text and "continues" not in one.todo
    assert failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", "train", at, ["sft_model"], ["Failure"])])


@pytest.mark.parametrize("job", ["retrain", "withdraw_request"])
def test_a_refused_request_is_no_failed_run(job):
    at = datetime(2026, 7, 1, tzinfo=UTC)
    assert failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", job, at, ["ask"], ["Failure"])]) == []
    [one] = failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", job, at, ["ask"], ["OSError"])])
    assert "Finished steps" not in one.text and "continues" not in one.todo and "millrace decisions tutor" in one.todo
