"""Sends alerts: each cause once, to every channel of the recipe (webhook, Slack, mail), within a bounded time.

Channels are served in parallel, each in a thread that is abandoned if it does not return in time, so one that hangs delays
no other and not the sensor. A channel that takes nothing is tried again after 1, 2, 4, ... 60 minutes, with its oldest alert;
this is said once, and told through the other channels. A message never holds an address with its secret: a channel is named by
the environment variable that holds it."""

import json
import os
import smtplib
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from urllib.parse import urlsplit

import urllib3

from model_ops.jobs import counted
from resources.lake import LakeLayout
from resources.monitoring.alerts.outbox import Outbox
from resources.monitoring.alerts.settings import Alert, AlertSettings, EmailSettings, SlackSettings, WebhookSettings

Channel = WebhookSettings | SlackSettings | EmailSettings


class DeliveryError(Exception):
    """A channel did not take an alert; the message says why, without secrets."""


def deliver(name: str, channel: Channel, alert: Alert, lake: str, timeout_s: float) -> None:
    """Sends one alert. Raises DeliveryError."""
    if isinstance(channel, EmailSettings):
        _mail(channel, alert, lake, timeout_s)
    else:
        content = slack_form(alert) if isinstance(channel, SlackSettings) else webhook_form(alert, lake)
        _post(name, channel.url_env, content, alert.id, timeout_s)


def webhook_form(alert: Alert, lake: str) -> dict[str, object]:
    """The JSON of a webhook."""
    return {
        "id": alert.id,
        "kind": alert.kind,
        "workload": alert.workload,
        "at": alert.at.isoformat(),
        "title": alert.title,
        "text": alert.text,
        "what_to_do": alert.todo,
        "facts": alert.facts,
        "lake": lake,
    }


def slack_form(alert: Alert) -> dict[str, object]:
    """The JSON of an incoming webhook of Slack."""
    title, text, todo = (_slack_text(each) for each in (alert.title, alert.text, alert.todo))
    section = {"type": "section", "text": {"type": "mrkdwn", "text": f"*{title}*\n{text}\n_What to do:_ {todo}"[:3000]}}
    facts = " · ".join(f"{_slack_text(key)}: {_slack_text(str(value))}" for key, value in alert.facts.items())
    context = [{"type": "context", "elements": [{"type": "mrkdwn", "text": facts[:2000]}]}] if facts else []
    return {"text": title, "blocks": [section, *context]}


def mail_form(channel: EmailSettings, alert: Alert, lake: str) -> EmailMessage:
    """The mail. Its Message-ID is made of the alert's id, so a mail that is sent twice is known to be the same."""
    mail = EmailMessage()
    mail["From"], mail["To"] = channel.sender, ", ".join(channel.to)
    mail["Subject"] = f"[millrace] {alert.title}"[:200]
    mail["Date"] = format_datetime(alert.at)
    mail["Message-ID"] = f"<{alert.id}.millrace@{channel.sender.rpartition('@')[2]}>"
    facts = "\n".join(f"  {key}: {value}" for key, value in alert.facts.items())
    mail.set_content(
        f"{alert.text}\n\nWhat to do: {alert.todo}\n\n{facts}\n  at: {alert.at:%Y-%m-%d %H:%M} UTC\n"
        f"  lake: {lake}\n  alert: {alert.id} ({alert.kind})\n"
    )
    return mail


def _post(name: str, variable: str, content: dict[str, object], alert_id: str, timeout_s: float) -> None:
    url = _secret(variable)
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DeliveryError(f"{variable} holds no address that begins with http:// or https://")
    headers = {"content-type": "application/json", "idempotency-key": alert_id, "user-agent": "millrace"}
    try:
        with urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(total=timeout_s)) as pool:
            answer = pool.request(
                "POST", url, body=json.dumps(content).encode(), headers=headers, redirect=False, preload_content=False
            )
            status = answer.status
            answer.close()
    except urllib3.exceptions.TimeoutError as error:
        raise DeliveryError(f"the channel {name} ({variable}) did not answer within {timeout_s:g} s") from error
    except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
        raise DeliveryError(f"the channel {name} ({variable}) cannot be reached ({type(error).__name__})") from None
    if not 200 <= status < 300:
        raise DeliveryError(f"the channel {name} ({variable}) answered {status}")


def _mail(channel: EmailSettings, alert: Alert, lake: str, timeout_s: float) -> None:
    password = _secret(channel.password_env) if channel.password_env else ""
    context, ends = ssl.create_default_context(), time.monotonic() + timeout_s
    try:
        server = (
            smtplib.SMTP_SSL(channel.host, channel.port, timeout=timeout_s, context=context)
            if channel.security == "tls"
            else smtplib.SMTP(channel.host, channel.port, timeout=timeout_s)
        )
        with server:
            if channel.security == "starttls":
                server.starttls(context=context)
            if channel.user is not None:
                server.login(channel.user, password)
            vars(server)["data"] = partial(_data_in_time, server.data, ends)
            server.send_message(mail_form(channel, alert, lake))
    except TimeoutError as error:
        raise DeliveryError(f"the mail server {channel.host}:{channel.port} did not answer within {timeout_s:g} s") from error
    except smtplib.SMTPResponseException as error:
        raise DeliveryError(f"the mail server {channel.host}:{channel.port} answered {error.smtp_code}") from None
    except (smtplib.SMTPException, OSError) as error:
        raise DeliveryError(f"the mail server {channel.host}:{channel.port} took no mail ({type(error).__name__})") from None


def _data_in_time(data: Callable[[bytes | str], tuple[int, bytes]], ends: float, message: bytes | str) -> tuple[int, bytes]:
    """Sends the mail itself, unless its time is over: whoever waited counts it as not sent and sends it again. timeout_s alone
    bounds each answer of the server, and not all of them together."""
    if time.monotonic() > ends:
        raise TimeoutError
    return data(message)


def _secret(variable: str) -> str:
    secret = os.environ.get(variable, "").strip()
    if not secret:
        raise DeliveryError(f"the environment variable {variable}, which alerts need, is not set where the Dagster daemon runs")
    return secret


def _slack_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


MOST_AT_ONCE = 20
"""Most alerts of a channel in one call; the others wait for the next one."""


@dataclass
class DeliveryReport:
    sent: int = 0
    """Deliveries."""
    waiting: int = 0
    """Alerts that a channel has not taken yet."""
    notes: list[str] = field(default_factory=list)
    """News about channels, one sentence each."""
    busy: bool = False
    """Another process was sending, so nothing was done."""

    @property
    def sentence(self) -> str:
        if self.busy:
            return "another process is telling alerts"
        waits = f"; {counted(self.waiting, 'alert')} waiting for a channel" if self.waiting else ""
        return f"{counted(self.sent, 'alert')} sent{waits}" if self.sent or self.waiting else "nothing to tell"


def tell(
    lake: LakeLayout,
    workload: str,
    settings: AlertSettings,
    alerts: Sequence[Alert],
    now: datetime | None = None,
    send: Callable[[str, Channel, Alert, str, float], None] = deliver,
) -> DeliveryReport:
    """Keeps the new ones of these alerts and sends what waits. Returns within about twice `timeout_s`."""
    outbox, report, now = Outbox(lake, workload), DeliveryReport(), now or datetime.now(UTC)
    send_to = _Round(outbox, settings, report, lake, now, send)
    with outbox.opened() as mine:
        if not mine:
            return DeliveryReport(busy=True)
        for alert in alerts:
            if alert.kind in settings.kinds:
                outbox.add(alert, list(settings.channels), now)
        send_to.channels(list(settings.channels))
        for name, trouble in list(outbox.notes.trouble.items()):
            others = [other for other in settings.channels if other != name]
            alert = _undelivered(workload, name, trouble.since, trouble.why)
            if name in settings.channels and others and outbox.add(alert, others, now):
                send_to.channels(others)
        report.waiting = sum(len(outbox.waiting(name, now)) for name in settings.channels)
    return report


@dataclass
class _Round:
    outbox: Outbox
    settings: AlertSettings
    report: DeliveryReport
    lake: LakeLayout
    now: datetime
    send: Callable[[str, Channel, Alert, str, float], None]

    def channels(self, names: Sequence[str]) -> None:
        """One look at each of these channels, side by side."""
        outbox, settings, now, attempts = self.outbox, self.settings, self.now, {}
        for name in names:
            if (trouble := outbox.notes.trouble.get(name)) is None or trouble.next_try <= now:
                alerts = outbox.waiting(name, now)[:MOST_AT_ONCE]
                send = partial(self.send, name, settings.channels[name])
                attempts[name] = _Attempt(name, alerts, self.lake.place, settings.timeout_s, send)
                attempts[name].start()
        deadline = time.monotonic() + settings.timeout_s + 1
        for name, attempt in attempts.items():
            attempt.join(max(0.0, deadline - time.monotonic()))
            for alert, problem in attempt.results():
                self.report.sent += outbox.settle(alert, name, problem, settings.tries, now) == "sent"
                if outbox.trouble(name, problem, now):
                    waits = f"{problem}: its alerts wait, and it is tried again"
                    self.report.notes.append(waits if problem else f"the channel {name} takes alerts again")


class _Attempt(threading.Thread):
    """Sends a channel's waiting alerts one after the other, until one fails or the time is over."""

    def __init__(
        self, name: str, alerts: Sequence[Alert], lake: str, timeout_s: float, send: Callable[[Alert, str, float], None]
    ):
        super().__init__(daemon=True, name=f"alerts to {name}")
        self._name_of_channel, self._alerts, self._lake, self._timeout_s, self._send = name, alerts, lake, timeout_s, send
        self._tried: list[tuple[Alert, str]] = []
        self._over, self._guard = False, threading.Lock()

    def run(self) -> None:
        ends = time.monotonic() + self._timeout_s
        for alert in self._alerts:
            if self._over or time.monotonic() >= ends:
                return
            problem = ""
            try:
                self._send(alert, self._lake, self._timeout_s)
            except DeliveryError as error:
                problem = str(error)
            except Exception as error:  # of one channel; the others still get the alert
                problem = f"the channel {self._name_of_channel} failed ({type(error).__name__})"
            with self._guard:
                if self._over:
                    return
                self._tried.append((alert, problem))
            if problem:
                return

    def results(self) -> list[tuple[Alert, str]]:
        """What was tried, and why it failed. An alert that is still being sent counts as failed, and nothing more is sent."""
        with self._guard:
            self._over = True
            done = list(self._tried)
        if self.is_alive() and len(done) < len(self._alerts):
            late = f"the channel {self._name_of_channel} did not answer within {self._timeout_s:g} s"
            done.append((self._alerts[len(done)], late))
        return done


def _undelivered(workload: str, channel: str, since: datetime, why: str) -> Alert:
    return Alert(
        kind="undelivered",
        workload=workload,
        cause=f"{channel}/{since.isoformat()}",
        at=since,
        title=f"{workload}: alerts do not reach the channel {channel}",
        text=f"Since {since:%Y-%m-%d %H:%M} UTC: {why}.",
        todo=f"Check `alerts.{channel}` of the recipe and its environment variables where the Dagster daemon runs. What "
        "waits is sent when the channel takes alerts again.",
        facts={"channel": channel},
    )
