"""The capture layer as a callback of LiteLLM, for a proxy that runs already.

    # capture_callback.py, beside LiteLLM's config.yaml:   litellm_settings: {callbacks: capture_callback.handler}
    from resources.gateway.litellm_callback import capture_callback
    handler = capture_callback("s3://logs/capture")

LiteLLM is imported by capture_callback() alone. Each call that LiteLLM reports is a record as the pass-through writes it: the
same journal and the same objects. LiteLLM reports a call after its client has the answer, so what LiteLLM has not reported when
it is killed is lost; with the pass-through nothing is. Token ids are kept where LiteLLM passes them on: for `hosted_vllm/`
models whose request has `return_token_ids`, those of prompt and answer, and of a stream those of the answer (LiteLLM 1.110)."""

import atexit
import json
from datetime import datetime
from typing import Any

from resources.gateway.capture import Capture, CaptureSettings
from resources.gateway.journal import CaptureError
from resources.gateway.keys import KeyRule, KeyRules
from resources.gateway.record import envelope

CHATS = ("completion", "acompletion")
"""call_type of what is kept."""
NOT_WRITTEN = ("api_key", "extra_headers", "headers", "api_base", "metadata", "litellm_params", "max_retries", "extra_body")
"""Of optional_params: secrets, what concerns LiteLLM alone, and extra_body, whose keys are the request's own."""


def capture_callback(store: str, **settings: Any) -> Any:
    """A CustomLogger that captures into `store`. settings: fields of CaptureSettings. Raises CaptureError if LiteLLM is not
    installed, and as Capture does."""
    try:
        from litellm.integrations.custom_logger import CustomLogger
    except ImportError as error:
        raise CaptureError("LiteLLM is not installed here: pip install litellm") from error

    class CaptureLogger(LoggedCalls, CustomLogger):
        """Both names of each event: LiteLLM calls the one for synchronous calls, or the one for asynchronous ones."""

    capture = Capture(CaptureSettings(store, **settings))
    capture.__enter__()
    atexit.register(capture.__exit__)
    handler = CaptureLogger()
    handler.capture = capture
    return handler


class LoggedCalls:
    """The events of LiteLLM's CustomLogger that end a call."""

    capture: Capture
    """Where their records go."""

    def log_success_event(self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime) -> None:
        self._keep(kwargs, response_obj, start_time, end_time)

    def log_failure_event(self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime) -> None:
        self._keep(kwargs, response_obj, start_time, end_time)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        self._keep(kwargs, response_obj, start_time, end_time)

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        self._keep(kwargs, response_obj, start_time, end_time)

    def _keep(self, kwargs: dict[str, Any], response: Any, begun: datetime, ended: datetime) -> None:
        recorder = self.capture.recorder
        if kwargs.get("call_type") not in (None, *CHATS) or not isinstance(kwargs.get("messages"), list):
            recorder.left_out["other"] += 1
            return
        rule = rule_of(recorder.rules, kwargs)
        if not rule.keep:
            recorder.left_out["zero_retention"] += 1
            return
        try:
            record = call_record(kwargs, response, begun, ended, rule)
            if rule.sample < 1 and not rule.samples(record.get("session_id")):
                recorder.left_out["not_sampled"] += 1
                return
            written = json.dumps(record, default=str).encode()
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            self.capture.journal.lose("not_understood")
            return
        self.capture.journal.append({"kind": "record", "at": begun.timestamp()}, answer=[written])


def call_record(kwargs: dict[str, Any], response: Any, begun: datetime, ended: datetime, rule: KeyRule) -> dict[str, Any]:
    """The record of a call. kwargs: what LiteLLM hands to a callback; response: its ModelResponse, None after a failure."""
    given = kwargs.get("optional_params") or {}
    metadata = (kwargs.get("litellm_params") or {}).get("metadata") or {}
    asked = metadata.get("requester_metadata") or {}
    request = {
        "model": kwargs.get("model"),
        "messages": kwargs["messages"],
        **{name: value for name, value in given.items() if name not in NOT_WRITTEN},
        **(given.get("extra_body") or {}),
        "user": kwargs.get("user") or given.get("user") or metadata.get("user_api_key_end_user_id"),
        "metadata": {
            **asked,
            "session_id": asked.get("session_id") or kwargs.get("litellm_session_id") or metadata.get("session_id"),
        },
    }
    spoke = kwargs.get("completion_start_time") if kwargs.get("stream") or given.get("stream") else None
    whole = kwargs.get("async_complete_streaming_response") or kwargs.get("complete_streaming_response") or response
    standard = kwargs.get("standard_logging_object") or {}
    failed = kwargs.get("exception")
    meta = {
        "at": begun.timestamp(),
        "latency_ms": _milliseconds(begun, ended),
        "ttft_ms": _milliseconds(begun, spoke) if spoke else None,
        "request_id": kwargs.get("litellm_call_id"),
        "client": rule.client or metadata.get("user_api_key_alias"),
        "workload": rule.workload,
        "cost": kwargs.get("response_cost"),
        "cache_hit": standard.get("cache_hit") if kwargs.get("cache_hit") is None else kwargs["cache_hit"],
        "digest": asked.get("served_model_digest"),
        "kept_share": rule.sample if rule.sample < 1 else None,
    }
    said = _answer(whole) if failed is None else {"error": {"message": f"{type(failed).__name__}: {_words(failed)}"}}
    return envelope({name: value for name, value in request.items() if value is not None}, said, meta)


def rule_of(rules: KeyRules, kwargs: dict[str, Any]) -> KeyRule:
    """The rule of the proxy's key. LiteLLM hands over the key's sha256, which is what the rules name."""
    metadata = (kwargs.get("litellm_params") or {}).get("metadata") or {}
    return rules.of_hash(metadata.get("user_api_key_hash") or metadata.get("user_api_key"))


def _answer(response: Any) -> dict[str, Any]:
    """A ModelResponse as a ChatCompletion. LiteLLM moves fields of a choice that it does not know into
    provider_specific_fields: vLLM's token_ids are there."""
    said = response.model_dump() if hasattr(response, "model_dump") else dict(response or {})
    for choice in said.get("choices") or []:
        further = choice.pop("provider_specific_fields", None) or {}
        if "token_ids" not in choice and further.get("token_ids"):
            choice["token_ids"] = further["token_ids"]
        message = choice.get("message")
        if isinstance(message, dict):
            message.pop("provider_specific_fields", None)
    return {name: value for name, value in said.items() if value is not None}


def _milliseconds(begun: datetime, ended: datetime) -> float:
    return round((ended - begun).total_seconds() * 1_000, 3)


def _words(error: Any) -> str:
    return str(getattr(error, "message", "") or error)[:2_000]
