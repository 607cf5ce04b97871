"""Delivers one alert to one channel: JSON to a webhook, Slack's form, or a mail.

    deliver("webhook", settings.webhook, alert, lake="/srv/lake", timeout_s=10)       # raises DeliveryError

A message never holds an address with its secret: a channel is named by the environment variable that holds it.
"""

from __future__ import annotations

import json
import os
import smtplib
import ssl
import time
from collections.abc import Callable
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from urllib.parse import urlsplit

import urllib3

from resources.alerting.alert import Alert
from resources.alerting.settings import EmailSettings, SlackSettings, WebhookSettings

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
    return {"id": alert.id, "kind": alert.kind, "workload": alert.workload, "at": alert.at.isoformat(), "title": alert.title,
            "text": alert.text, "what_to_do": alert.todo, "facts": alert.facts, "lake": lake}


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
    mail.set_content(f"{alert.text}\n\nWhat to do: {alert.todo}\n\n{facts}\n  at: {alert.at:%Y-%m-%d %H:%M} UTC\n"
                     f"  lake: {lake}\n  alert: {alert.id} ({alert.kind})\n")
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
            answer = pool.request("POST", url, body=json.dumps(content).encode(), headers=headers, redirect=False,
                                  preload_content=False)
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
        server = (smtplib.SMTP_SSL(channel.host, channel.port, timeout=timeout_s, context=context) if channel.security == "tls"
                  else smtplib.SMTP(channel.host, channel.port, timeout=timeout_s))
        with server:
            if channel.security == "starttls":
                server.starttls(context=context)
            if channel.user is not None:
                server.login(channel.user, password)
            server.data = partial(_data_in_time, server.data, ends)
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
    found = os.environ.get(variable, "").strip()
    if not found:
        raise DeliveryError(f"the environment variable {variable}, which alerts need, is not set where the Dagster daemon runs")
    return found


def _slack_text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
