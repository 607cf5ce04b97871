"""Sends alerts: each cause once, to every channel of the recipe, within a bounded time.

    told = tell(lake, "math-tutor", settings, alerts)        # told.sent, told.waiting, told.notes

Channels are served in parallel, each in a thread that is abandoned if it does not return in time, so one that hangs delays
no other and not the sensor. A channel that takes nothing is tried again after 1, 2, 4, ... 60 minutes, with its oldest alert;
this is said once, and told through the other channels.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from model_ops.wording import counted
from resources.alerting.alert import Alert
from resources.alerting.delivery import Channel, DeliveryError, deliver
from resources.alerting.outbox import Outbox
from resources.alerting.settings import AlertSettings
from resources.lake import Lake

MOST_AT_ONCE = 20
"""Most alerts of a channel in one call; the others wait for the next one."""


@dataclass
class Told:
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


def tell(lake: Lake, workload: str, settings: AlertSettings, alerts: Sequence[Alert], now: datetime | None = None,
         send: Callable[[str, Channel, Alert, str, float], None] = deliver) -> Told:
    """Keeps the new ones of these alerts and sends what waits. Returns within about twice `timeout_s`."""
    outbox, told, now = Outbox(lake, workload), Told(), now or datetime.now(UTC)
    with outbox.opened() as mine:
        if not mine:
            return Told(busy=True)
        for alert in alerts:
            if alert.kind in settings.kinds:
                outbox.add(alert, list(settings.channels), now)
        _round(outbox, settings, told, lake, now, send, list(settings.channels))
        for name, trouble in list(outbox.notes.trouble.items()):
            others = [other for other in settings.channels if other != name]
            alert = _undelivered(workload, name, trouble.since, trouble.why)
            if name in settings.channels and others and outbox.add(alert, others, now):
                _round(outbox, settings, told, lake, now, send, others)
        told.waiting = sum(len(outbox.waiting(name, now)) for name in settings.channels)
    return told


def _round(outbox: Outbox, settings: AlertSettings, told: Told, lake: Lake, now: datetime,
           send: Callable[[str, Channel, Alert, str, float], None], names: Sequence[str]) -> None:
    """One look at each of these channels, side by side."""
    due = [name for name in names if (trouble := outbox.notes.trouble.get(name)) is None or trouble.next_try <= now]
    attempts = {name: _Attempt(name, settings.channels[name], outbox.waiting(name, now)[:MOST_AT_ONCE], lake.place,
                               settings.timeout_s, send) for name in due}
    for attempt in attempts.values():
        attempt.start()
    deadline = time.monotonic() + settings.timeout_s + 1
    for name, attempt in attempts.items():
        attempt.join(max(0.0, deadline - time.monotonic()))
        for alert, problem in attempt.results():
            told.sent += outbox.settle(alert, name, problem, settings.tries, now) == "sent"
            if outbox.trouble(name, problem, now):
                told.notes.append(f"{problem}: its alerts wait, and it is tried again" if problem
                                  else f"the channel {name} takes alerts again")


class _Attempt(threading.Thread):
    """Sends a channel's waiting alerts one after the other, until one fails or the time is over."""

    def __init__(self, name: str, channel: Channel, alerts: Sequence[Alert], lake: str, timeout_s: float,
                 send: Callable[[str, Channel, Alert, str, float], None]):
        super().__init__(daemon=True, name=f"alerts to {name}")
        self._name_of_channel, self._channel, self._alerts, self._lake = name, channel, alerts, lake
        self._timeout_s, self._send = timeout_s, send
        self._tried: list[tuple[Alert, str]] = []
        self._over = False
        self._guard = threading.Lock()

    def run(self) -> None:
        ends = time.monotonic() + self._timeout_s
        for alert in self._alerts:
            if self._over or time.monotonic() >= ends:
                return
            problem = ""
            try:
                self._send(self._name_of_channel, self._channel, alert, self._lake, self._timeout_s)
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
        kind="undelivered", workload=workload, cause=f"{channel}/{since.isoformat()}", at=since,
        title=f"{workload}: alerts do not reach the channel {channel}",
        text=f"Since {since:%Y-%m-%d %H:%M} UTC: {why}.",
        todo=f"Check `alerts.{channel}` of the recipe and its environment variables where the Dagster daemon runs. What "
             "waits is sent when the channel takes alerts again.",
        facts={"channel": channel})
