"""The columns of the lake's Delta tables, each with a sentence that says what it holds, and how tables are partitioned."""

import pyarrow as pa

from model_ops.files import column

_TEXT = pa.string()
_TIME = pa.timestamp("us", tz="UTC")
_DAY = pa.date32()
_IDS = pa.list_(pa.int32())
_TRUTH = pa.bool_()
_COUNT = pa.int64()
_NUMBER = pa.float64()


INTERACTIONS = pa.schema(
    [
        column("workload", _TEXT, description="the workload"),
        column("dt", _DAY, description="day of the request, in UTC"),
        column(
            "interaction_id", _TEXT, description="id of the interaction: sha256 of source, request id or content, and choice"
        ),
        column("request_id", _TEXT, description="the request's own id in the log"),
        column("alias_id", _TEXT, description="a second id of the request that feedback may name: the gateway's or the span's"),
        column("trace_id", _TEXT, description="id of the request's trace"),
        column("choice_index", pa.int32(), description="which of the request's choices this is, from 0"),
        column("ts", _TIME, description="time, in UTC"),
        column(
            "source",
            _TEXT,
            description="the source's name in the recipe; millrace_chat: rated answers of `millrace chat`, no traffic",
        ),
        column("source_format", _TEXT, description="log format that read it"),
        column("source_uri", _TEXT, description="log object it was read from"),
        column("source_row", _COUNT, description="line in the object, from 1; 0 is the object as a whole"),
        column("client", _TEXT, description="the client program or API key, as logged"),
        column("session_id", _TEXT, description="the conversation that the request belongs to"),
        column("user_hash", _TEXT, description="hash of the user's id"),
        column("model", _TEXT, description="the model's name where it was served"),
        column("provider", _TEXT, description="provider that served the model, as logged"),
        column("served_model_digest", _TEXT, description="digest of the weights that served it, as logged"),
        column("messages", _TEXT, description="the prompt or conversation: JSON text in the OpenAI shape"),
        column("tools", _TEXT, description="the tools that the request offers: JSON text in the OpenAI shape"),
        column("params", _TEXT, description="sampling parameters of the request, as JSON text; no names, no secrets"),
        column("completion", _TEXT, description="the answer: a message as JSON text in the OpenAI shape"),
        column("reasoning", _TEXT, description="the model's reasoning before the answer"),
        column("prompt_token_ids", _IDS, description="token ids of the prompt"),
        column("completion_token_ids", _IDS, description="token ids of the answer, as the server logged them"),
        column("finish_reason", _TEXT, description="why the answer ended: stop, length, tool_calls, ..."),
        column("error", _TEXT, description="the request's error, as logged"),
        column("cache_hit", _TRUTH, description="whether the answer came from a cache"),
        column("prompt_tokens", _COUNT, description="length of the prompt in tokens"),
        column("completion_tokens", _COUNT, description="length of the answer in tokens, as logged"),
        column("cached_tokens", _COUNT, description="prompt tokens served from the prefix cache"),
        column("reasoning_tokens", _COUNT, description="tokens of the reasoning, as logged"),
        column("latency_ms", _NUMBER, description="time from request to complete answer, in milliseconds"),
        column("ttft_ms", _NUMBER, description="time to the first token, in milliseconds"),
        column("cost", _NUMBER, description="cost of the request, as logged"),
        column("status", _TEXT, description="success, error, or what kind of record it is: prompt, text, tokens"),
        column("content_sha256", _TEXT, description="sha256 of the content"),
        column("workload_name", _TEXT, description="workload named in the record itself"),
        column("emptied", _TEXT, description="null; once retention removed what the row said, a hash of how it was served"),
        column("release", _TEXT, description="release of millrace that gave the answer, as logged or by its fingerprint"),
        column("queue_ms", _NUMBER, description="wait in the server's queue, in milliseconds, where the server reports it"),
        column("drafts", _COUNT, description="number of drafts of this request's answer, where its server reports them"),
        column("draft_tokens", _COUNT, description="drafted tokens"),
        column("accepted_tokens", _COUNT, description="drafted tokens that were accepted"),
    ]
)
"""One request with one choice. Other tables name a column of it where theirs holds the same."""


def _columns(*fields: pa.Field | str) -> pa.Schema:
    return pa.schema([INTERACTIONS.field(field) if isinstance(field, str) else field for field in fields])


SCHEMAS: dict[str, pa.Schema] = {
    "objects": _columns(
        "workload",
        "source",
        column("uri", _TEXT, description="uri of the object"),
        column("etag", _TEXT, description="the storage's etag of the object"),
        column("bytes", _COUNT, description="size in bytes"),
        column("modified", _TIME, description="time of the object's last change"),
        column("rows", _COUNT, description="records that were read"),
        column("days", pa.list_(_DAY), description="UTC days of the object's rows"),
        column("state", _TEXT, description="found, read or failed"),
        column("format", _TEXT, description="format of the log"),
        column("problem", _TEXT, description="why the object could not be read"),
        column("read_as", _TEXT, description="settings of the source (format, workloads) that the object was read with"),
        column("partners", pa.list_(_TEXT), description="objects with the other side of its request-response pairs"),
        column("content_sha256", _TEXT, description="sha256 of the object's bytes as read; identifies a moved object"),
        column(
            "unread_keys",
            _TEXT,
            description="keys of its records that nothing reads, as JSON: [path, field that would read it, records]",
        ),
    ),
    "interactions": INTERACTIONS,
    "feedback": _columns(
        "workload",
        "dt",
        column(
            "interaction_id",
            _TEXT,
            description="the interaction that it is about; the record's own one while tie is null: it was not tied yet",
        ),
        "request_id",
        "trace_id",
        "session_id",
        column("voter_hash", _TEXT, description="hash of the id of the user who gave it, as user_hash"),
        column("name", _TEXT, description="what was rated: thumbs, or a score's name; correction: an edit"),
        column("value", _NUMBER, description="the feedback as a number; thumbs are 1 and -1"),
        column("label", _TEXT, description="the feedback as a word"),
        column("source", _TEXT, description="who gave the feedback: a person, a program, a benchmark, as logged"),
        column("comment", _TEXT, description="the comment text; of a correction, the corrected answer"),
        column("answer_id", _TEXT, description="of a correction, the id of what the model said, beside its own id"),
        "ts",
        "source_uri",
        "source_row",
        column("given_id", _TEXT, description="the interaction id in the feedback record itself, if it has one"),
        column(
            "tie",
            _TEXT,
            description="id by which it is tied to its interaction: interaction, request, gateway, answer (an edit, by "
            "what the model said), trace or session; else why not: several, unknown, elsewhere (in another "
            "workload)",
        ),
    ),
    "quarantine": _columns(
        "workload",
        "source",
        "source_uri",
        "source_row",
        column("error_code", _TEXT, description="kind of error"),
        column("message", _TEXT, description="the error in one sentence"),
        column("raw", pa.binary(), description="the line's first bytes"),
    ),
    "cleaned_interactions": _columns(
        "workload",
        "dt",
        "interaction_id",
        "content_sha256",
        "session_id",
        "ts",
        "source",
        "messages",
        "tools",
        "completion",
        column("replaced", _TEXT, description="the answer as logged, where a correction stands in its place; else null"),
        column("status", _TEXT, description="the rule that drops the row, or ok"),
        column("feedback", _NUMBER, description="people's feedback on the answer as one number; below 0 is bad"),
        column("prompt_characters", _COUNT, description="length of the prompt, in characters"),
        column("completion_characters", _COUNT, description="length of the answer, in characters"),
        column("pii", pa.map_(_TEXT, pa.int32()), description="number of replaced personal data by kind"),
        column("language", _TEXT, description="ISO 639 code of the answer's language"),
        column(
            "quality",
            pa.map_(_TEXT, _NUMBER),
            description="measures of the rules on single rows: lengths, shares of repeated text, ...",
        ),
        column(
            "prompt_shape",
            _TEXT,
            description="kind of request: what the session asks for or a tool, and a hash of instructions and tools",
        ),
        column(
            "normalised_sha256",
            _TEXT,
            description="sha256 of the content without case and repeated spaces: equal for exact duplicates",
        ),
        column("signature", _IDS, description="MinHash signature: a stamp of its settings, then one hash per band"),
        column("cleaned_with", _TEXT, description="digest of the settings and code that made the row"),
        "reasoning",
        column(
            "request",
            _TEXT,
            description="what the request gave the chat template besides messages and tools: JSON text with "
            "chat_template_kwargs, documents, reasoning_effort, response_format",
        ),
    ),
    "decisions": _columns(
        "workload",
        column("stage", _TEXT, description="ingest and clean (by day); curate and dataset (one pass for each version)"),
        column("version", _TEXT, description="version of curated_interactions or sft_dataset that decided; else null"),
        "dt",
        "interaction_id",
        column("rule", _TEXT, description="the rule that decided"),
        column("kept", _TRUTH, description="whether the stage kept the record"),
        column("detail", _TEXT, description="values behind the decision; JSON text in stage ingest"),
        column("kept_id", _TEXT, description="the interaction that was kept instead of this one"),
    ),
    # A row is judged once for each model and prompt.
    "judgements": _columns(
        "workload",
        "dt",
        "interaction_id",
        "content_sha256",
        column("name", _TEXT, description="what was scored: quality or difficulty"),
        column("score", _NUMBER, description="the judge's score, 1 to 10; null if it gave none"),
        column("model", _TEXT, description="the judge model"),
        column("prompt_sha256", _TEXT, description="sha256 of the prompt"),
        column("prompt", _TEXT, description="the judge's prompt"),
        column("answer", _TEXT, description="the judge's reply; without a score, the reason"),
        "ts",
    ),
    # A cache: what it lacks is searched again.
    "contamination": _columns(
        "workload",
        "dt",
        column("searched", _TEXT, description="digest of what was searched for"),
        column("content", _TEXT, description="digest of the day's texts"),
        "interaction_id",
        column("suite", _TEXT, description="evaluation suite"),
        column("item_id", _TEXT, description="id of the evaluation item in its suite"),
        column("part", _TEXT, description="part of the item that was found: prompt or answer"),
        column(
            "share",
            _NUMBER,
            description="share of the item's own words (those that no other item of the suite has) that were found, 0 to 1",
        ),
        column("own", _COUNT, description="number of the item's own words"),
        column(
            "words",
            pa.list_(_COUNT),
            description="numbers of the own words found, where a stretch is missing: the row is dropped unless other "
            "messages of any day have the same part; null elsewhere",
        ),
        column("message", _TEXT, description="digest of the words of a message that has them"),
    ),
    "retired": _columns(
        "workload",
        "dt",
        "interaction_id",
        "request_id",
        "alias_id",
        "trace_id",
        "session_id",
        "user_hash",
        "source",
        "source_uri",
        "source_row",
        "ts",
        "content_sha256",
        column("removed_at", _TIME, description="time when retention removed the row"),
    ),
    # What a server counted (resources/monitoring/metrics/); a column is null where it does not report it.
    "serving_metrics": _columns(
        "workload",
        column("endpoint", _TEXT, description="address of the server, or of the front of millrace serve before it"),
        column("release", _TEXT, description="version of the release"),
        column("window_start", _TIME, description="start of the time window"),
        column("window_end", _TIME, description="end of the time window"),
        column("drafts", _COUNT, description="number of drafts"),
        "draft_tokens",
        "accepted_tokens",
        column("accepted_per_position", pa.list_(_COUNT), description="accepted drafted tokens by their position in the draft"),
        column("tokens_per_second", _NUMBER, description="tokens served per second"),
        column(
            "latency_ms",
            pa.map_(_TEXT, _NUMBER),
            description="mean and quantiles of latencies in milliseconds: ttft_p50, inter_token_p99, e2e_mean, "
            "queue_p90, ...; beyond the histogram's last bound, that bound",
        ),
        column("server", _TEXT, description="vllm or sglang"),
        column("seconds", _NUMBER, description="time between the readings at its ends, by a clock that is never set"),
        column(
            "restarts",
            pa.int32(),
            description="how often the server was started again within the window: what it had counted since the last "
            "reading is lost",
        ),
        column("prompt_tokens", _COUNT, description="tokens of prompts that were computed"),
        column("generation_tokens", _COUNT, description="tokens that were generated"),
        column("requests", _COUNT, description="requests that ended"),
        column(
            "finished",
            pa.map_(_TEXT, _COUNT),
            description="requests by the reason for which they ended: stop, length, abort, error, ...",
        ),
        column("errors", _COUNT, description="requests without an answer by a fault of the server"),
        column("refused", _COUNT, description="requests that the server refused with HTTP 4xx"),
        column("preemptions", _COUNT, description="times that a running request was set back for want of memory"),
        column("requests_running", _NUMBER, description="requests that ran at the window's end"),
        column("requests_waiting", _NUMBER, description="requests that waited at the window's end"),
    ),
    "drift": _columns(
        "workload",
        column("release", _TEXT, description="release whose reference window is compared with; empty before there was one"),
        column("dt", _DAY, description="last day of the window that was compared, in UTC"),
        column("window_days", pa.int32(), description="length of the window in days"),
        column("test", _TEXT, description="what was compared: prompt_shapes, novelty, acceptance, ..."),
        column(
            "value",
            _NUMBER,
            description="PSI of shares, or the rise or fall of a share, as means over sessions; of acceptance the chart's sum",
        ),
        column(
            "bound",
            _NUMBER,
            description="the value from which on the test alarms; where there is a p-value about, since p decides",
        ),
        column(
            "p",
            _NUMBER,
            description="p-value: the larger one over sessions and over days; null for acceptance, whose chart has a bound",
        ),
        column("level", _NUMBER, description="the largest p-value that alarms, given the other tests of the day"),
        column("alarm", _TRUTH, description="whether the test alarms"),
        column("dispersion", _NUMBER, description="how much more days of the reference differ than their sessions explain"),
        column("sessions", _COUNT, description="sessions of the window; 0 for acceptance, which servers count"),
        column("reference_sessions", _COUNT, description="sessions of the reference that the window was compared with"),
        column("reference_start", _DAY, description="first day of the reference window"),
        column("reference_end", _DAY, description="last day of the reference window"),
        column("rows", _COUNT, description="cleaned and judged rows of the window when it was compared"),
        column("problem", _TEXT, description="why the window was not compared; null if it was"),
        column("settings", _TEXT, description="digest of the settings and code that compared it"),
        column("ts", _TIME, description="when it was compared"),
        column(
            "files",
            _TEXT,
            description="digest of the files of the window's rows, feedback and judgements; another one compares it again",
        ),
    ),
    "retraining_decisions": _columns(
        "workload",
        column("decision_id", _TEXT, description="the same for the same cause; tag millrace/decision of its Dagster run"),
        column("ts", _TIME, description="when it was decided"),
        column("cause", _TEXT, description="new_logs, drift, acceptance, feedback, schedule or request"),
        column("cause_text", _TEXT, description="the cause in one sentence"),
        column("evidence", _TEXT, description="what it was decided from, as JSON"),
        column("options", _TEXT, description="what could be done, with predicted cost and gain, as JSON"),
        column("action", _TEXT, description="nothing, drafter_continued, drafter_new, sft_continued, preference or full"),
        column("why", _TEXT, description="why this and nothing else, in one sentence"),
        column("dry_run", _TRUTH, description="whether it was only written"),
        column("run_id", _TEXT, description="the Dagster run that it started; null before it began"),
        column(
            "outcome",
            _TEXT,
            description="waiting (with run_id: for an approval), running, released, no_better, refused_by_gates, failed, "
            "cancelled or not_run",
        ),
        column("cost_s", _NUMBER, description="seconds that the run took"),
        column("money", _NUMBER, description="cost at automation.decide.price_per_device_hour; null without a price"),
        column(
            "gain",
            _NUMBER,
            description="measured: of drafters the relative rise of the acceptance length, else the fall of the "
            "held-out loss in nats per token",
        ),
        column("settled_ts", _TIME, description="when the outcome was final; null while it is not"),
    ),
    "erasures": _columns(
        "workload",
        column(
            "kind",
            _TEXT,
            description="what was hashed: user, session, interaction, about (an id that feedback may name) or content",
        ),
        column("sha256", _TEXT, description="the keyed hash"),
        "ts",
        column("erasure", _TEXT, description="the run of millrace forget that wrote it"),
        column("key_check", _TEXT, description="equal where the same MILLRACE_USER_HASH_KEY was used"),
        column("reason", _TEXT, description="text of --reason"),
        column("who", _TEXT, description="who ran it"),
    ),
}

PARTITIONS: dict[str, list[str]] = {"objects": ["workload"], "interactions": ["workload", "dt"], "feedback": ["workload", "dt"],
    "quarantine": ["workload"], "cleaned_interactions": ["workload", "dt"], "decisions": ["workload", "stage"],
    "judgements": ["workload", "dt"], "contamination": ["workload", "dt"], "retired": ["workload", "dt"],
    "serving_metrics": ["workload"], "drift": ["workload"], "retraining_decisions": ["workload"],
    "erasures": ["workload"]}  # fmt: skip
