"""The recipe's `alerts` settings: which alerts are sent, and where to. Secrets come from named environment variables only."""

import hashlib
import re
from datetime import datetime
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, Field, model_validator

from model_ops.jobs import Settings

Kind = Literal["drift", "approval", "failed_run", "gates", "budget", "rollback"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def _name_of_a_variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):  # it may be the secret itself: not shown
        raise ValueError(
            "this is not the name of an environment variable; give a name such as ALERT_WEBHOOK_URL, not the secret itself"
        )
    return value


def _mail_address(value: str) -> str:
    if not re.fullmatch(r"[^@\s<>,]+@[^@\s<>,]+", value) or len(value) > 254:
        raise ValueError("this is not a mail address; give one such as team@example.com")
    return value


def _host(value: str) -> str:
    if not re.fullmatch(r"[\w.:-]{1,253}", value, re.ASCII):
        raise ValueError("this is not the name of a host; give one such as smtp.example.com, without a port")
    return value


Variable = Annotated[str, AfterValidator(_name_of_a_variable)]
Address = Annotated[str, AfterValidator(_mail_address)]


class WebhookSettings(Settings):
    """An address that takes each alert as JSON."""

    url_env: Variable = Field(description="Name of the environment variable that holds the address (http:// or https://)")


class SlackSettings(Settings):
    """An incoming webhook of Slack, or of what understands its form (Mattermost, Rocket.Chat)."""

    url_env: Variable = Field(description="Name of the environment variable that holds the webhook's address")


class EmailSettings(Settings):
    """A mail server (SMTP) that sends alerts."""

    host: Annotated[str, AfterValidator(_host)] = Field(description="Name of the mail server")
    port: int = Field(587, ge=1, le=65_535, description="Port of the mail server")
    security: Literal["starttls", "tls", "none"] = Field(
        "starttls",
        description="starttls: encrypted after the greeting (port 587); tls: from the first byte (port 465); none: "
        "not at all, for a server on this machine",
    )
    sender: Address = Field(description="Address that the mails come from")
    to: list[Address] = Field(min_length=1, max_length=50, description="Addresses that the mails go to")
    user: str | None = Field(None, description="User at the mail server. Left out: no login")
    password_env: Variable | None = Field(None, description="Name of the environment variable that holds the user's password")

    @model_validator(mode="after")
    def _user_and_password(self):
        if (self.user is None) != (self.password_env is None):
            raise ValueError("user and password_env belong together: give both, or neither")
        return self


class AlertSettings(Settings):
    """Alerts that are sent while the Dagster daemon runs, and their channels."""

    webhook: WebhookSettings | None = Field(None, description="Send alerts as JSON. Left out: not sent")
    slack: SlackSettings | None = Field(None, description="Send alerts in Slack's form. Left out: not sent")
    email: EmailSettings | None = Field(None, description="Send alerts by mail. Left out: not sent")
    kinds: list[Kind] = Field(
        default_factory=lambda: list(KINDS),
        min_length=1,
        description="What is told: an alarm of drift, a release that waits "
        "for a person, a failed run, missed gates, a used budget, a rollback by the watch after a promotion",
    )
    timeout_s: float = Field(10, ge=0.1, le=20, description="Seconds in which a channel must have taken an alert")
    tries: int = Field(8, ge=1, le=20, description="How often an alert is tried at a channel, after 1, 2, 4, ... 60 minutes")

    @model_validator(mode="after")
    def _has_a_channel(self):
        if not self.channels:
            raise ValueError("alerts need a channel: give webhook, slack or email, or leave alerts out")
        return self

    @property
    def channels(self) -> dict[str, WebhookSettings | SlackSettings | EmailSettings]:
        """The channels that are given, by name."""
        named = {"webhook": self.webhook, "slack": self.slack, "email": self.email}
        return {name: settings for name, settings in named.items() if settings is not None}

    @property
    def variables(self) -> dict[str, str]:
        """Names of the environment variables that the channels need, by channel."""
        keys = [(name, channel, key) for name, channel in self.channels.items() for key in ("url_env", "password_env")]
        return {name: variable for name, channel, key in keys if (variable := getattr(channel, key, None))}


class Alert(BaseModel):
    kind: str
    """One of settings.KINDS, or `undelivered` for a channel that does not take alerts."""
    workload: str
    cause: str
    """Names what happened; two alerts of one cause are the same."""
    at: datetime
    title: str
    """One line."""
    text: str
    todo: str
    """What the person can do."""
    facts: dict[str, str | int | float] = Field(default_factory=dict)
    """Ids and numbers."""
    same_causes: list[str] = Field(default_factory=list, exclude=True)
    """Other names that this cause may have been told by."""

    @property
    def id(self) -> str:
        """16 hexadecimal digits."""
        return self._id_of(self.cause)

    @property
    def same_ids(self) -> set[str]:
        """Ids of all alerts that are about this cause, its own included."""
        return {self._id_of(cause) for cause in (self.cause, *self.same_causes)}

    def _id_of(self, cause: str) -> str:
        return hashlib.sha256(f"{self.workload}\n{self.kind}\n{cause}".encode()).hexdigest()[:16]
