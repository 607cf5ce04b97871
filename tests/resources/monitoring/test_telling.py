"""Each cause is told once, at every channel, whatever hangs, refuses or is restarted."""

import base64
import fcntl
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from resources.lake.lake import LakeLayout
from resources.monitoring.alerts.settings import Alert, AlertSettings
from resources.monitoring.alerts.tell import DeliveryError, deliver, tell
from tests.resources.monitoring.receivers import MailServer, Webhook

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


def alert(cause="3f2a/2026-07-01", kind="drift", **more):
    return Alert(
        kind=kind,
        workload="shop",
        cause=cause,
        at=datetime.now(UTC),
        title="shop: drift since 2026-07-01 (novelty)",
        text="novelty over 1 d: 0.4 <b>",
        todo="Look & decide.",
        facts={"release": "3f2a", "alarms": 2},
        **more,
    )


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
    email = {
        "host": "127.0.0.1",
        "port": mail.port if mail else 25,
        "security": "none",
        "sender": "m@example.com",
        "to": ["a@example.com", "b@example.com"],
    }
    channels = {"webhook": {"url_env": "HOOK"}, **({"email": email} if mail else {})}
    return AlertSettings(**{**channels, "timeout_s": 2, **more})


def test_an_alert_reaches_every_channel_once_also_after_a_restart(lake, webhook, mail, monkeypatch):
    monkeypatch.setenv("SLACK", webhook.url)
    chosen = settings(mail, slack={"url_env": "SLACK"})
    assert tell(lake, "shop", chosen, [alert()]).sent == 3
    assert tell(lake, "shop", chosen, [alert()]).sentence == "nothing to tell"  # reads the outbox anew, as another process does
    plain = next(each for each in webhook.got if "id" in each)
    assert plain == {
        "id": alert().id,
        "kind": "drift",
        "workload": "shop",
        "at": plain["at"],
        "title": alert().title,
        "text": "novelty over 1 d: 0.4 <b>",
        "what_to_do": "Look & decide.",
        "facts": {"release": "3f2a", "alarms": 2},
        "lake": lake.place,
    }
    slack = next(each for each in webhook.got if "blocks" in each)
    assert (
        "0.4 &lt;b&gt;" in slack["blocks"][0]["text"]["text"] and "release: 3f2a" in slack["blocks"][1]["elements"][0]["text"]
    )
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
    assert first.notes == [
        "the channel webhook (HOOK) did not answer within 0.3 s: its alerts wait, and it is tried again"
    ] or first.notes == ["the channel webhook did not answer within 0.3 s: its alerts wait, and it is tried again"]
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
    assert (
        tell(lake, "shop", chosen, [alert(), alert("later")], now=now + timedelta(hours=2)).sent == 1
    )  # the first was given up
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
    old = datetime.now(UTC) - timedelta(days=30)
    told = tell(
        lake,
        "shop",
        settings(),
        [alert().model_copy(update={"at": old}), alert("r", kind="approval").model_copy(update={"at": old})],
    )
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
