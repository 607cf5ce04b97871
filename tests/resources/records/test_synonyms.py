"""Columns under the names that gateways and products log, and what only looks like one."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from resources.records.extraction import Extraction
from resources.records.field_mapping import FieldMapping
from resources.records.polarity import good_end, is_known, label_of, thumb_of
from resources.records.synonyms import COLUMNS, Reader, markdown

READER = Reader(frozenset({"request", "response"}))
PAGE = Path(__file__).parents[3] / "docs" / "data.md"


def found(record):
    return {name: value for name, value in READER.of(record)["found"].items() if name not in ("feedback_name", "foreign_cost")}


@pytest.mark.parametrize(("record", "columns"), [
    # OpenRouter, GET /api/v1/generation
    (
        {"data": {"id": "gen-3bhGkxlo4XFr", "total_cost": 0.0015, "created_at": "2024-07-15T23:33:19.433273+00:00", "latency": 1250, "model": "sao10k/l3-stheno-8b", "provider_name": "Infermatic", "tokens_prompt": 10, "tokens_completion": 25, "native_tokens_reasoning": 5, "external_user": "user-123", "session_id": "s-1"}},
        {"id": "gen-3bhGkxlo4XFr", "cost": 0.0015, "time": "2024-07-15T23:33:19.433273+00:00", "latency": 1250.0, "model": "sao10k/l3-stheno-8b", "provider": "Infermatic", "prompt_tokens": 10, "completion_tokens": 25, "reasoning_tokens": 5, "user": "user-123", "session": "s-1"},
    ),
    # Helicone: its export, and its headers
    (
        {"request_id": "r-17", "request_created_at": "2026-06-01T10:00:00Z", "request_user_id": "u1", "delay_ms": 812, "time_to_first_token": 120, "response_status": 200, "provider": "OPENAI", "feedback_rating": True, "request_properties": {"Session": "s1"}},
        {"id": "r-17", "time": "2026-06-01T10:00:00Z", "user": "u1", "latency": 812.0, "ttft": 120.0, "status": "success", "provider": "OPENAI", "feedback": "true", "session": "s1"},
    ),
    ({"headers": {"Helicone-User-Id": "u1", "Helicone-Session-Id": "s1", "Helicone-Request-Id": "r1"}}, {"user": "u1", "session": "s1", "id": "r1"}),
    # Portkey, log export
    (
        {"id": "l1", "trace_id": "t1", "created_at": "2026-06-01T10:00:00Z", "is_success": False, "ai_org": "openai", "ai_model": "gpt-4o", "req_units": 9, "res_units": 4, "cost": 0.2, "response_time": 812, "metadata": {"_user": "user-123"}},
        {"id": "l1", "trace": "t1", "time": "2026-06-01T10:00:00Z", "status": "failure", "provider": "openai", "model": "gpt-4o", "prompt_tokens": 9, "completion_tokens": 4, "cost": 0.2, "latency": 812.0, "user": "user-123"},
    ),
    # Cloudflare AI Gateway, its API and Logpush
    (
        {"cached": False, "cost": 0.004, "created_at": "2026-06-01T10:00:00Z", "duration": 1234, "model": "m", "provider": "openai", "status_code": 500, "tokens_in": 5, "tokens_out": 6, "metadata": '{"team": "AI", "user": 12345}'},
        {"cache_hit": False, "cost": 0.004, "time": "2026-06-01T10:00:00Z", "latency": 1234.0, "model": "m", "provider": "openai", "status": "failure", "prompt_tokens": 5, "completion_tokens": 6, "user": "12345"},
    ),
    (
        {"Cached": True, "Metrics": {"cost": 0.0042, "durationMs": 1234}, "StatusCode": 200, "Timestamp": 1780300000},
        {"cache_hit": True, "cost": 0.0042, "latency": 1234.0, "status": "success", "time": "1780300000"},
    ),
    # Kong AI Gateway, audit log
    (
        {"ai": {"proxy": {"usage": {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.004}, "meta": {"llm_latency": 812, "provider_name": "openai", "response_model": "gpt-4o-2024-08-06", "request_model": "gpt-4o"}}}, "started_at": 1780300000000},
        {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.004, "latency": 812.0, "provider": "openai", "model": "gpt-4o-2024-08-06", "time": "1780300000000"},
    ),
    # Vercel AI SDK, span attributes
    (
        {"ai.usage.promptTokens": 9, "ai.usage.completionTokens": 4, "ai.response.msToFinish": 812.5, "ai.response.msToFirstChunk": 90, "ai.model.provider": "openai.chat", "ai.telemetry.metadata.userId": "u1", "ai.telemetry.metadata.sessionId": "s1"},
        {"prompt_tokens": 9, "completion_tokens": 4, "latency": 812.5, "ttft": 90.0, "provider": "openai.chat", "user": "u1", "session": "s1"},
    ),
    # OpenTelemetry GenAI, old and new, and Langfuse's and Traceloop's attributes
    (
        {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 4, "gen_ai.provider.name": "openai", "enduser.id": "u1", "gen_ai.response.model": "gpt-4o", "gen_ai.conversation.id": "c1"},
        {"prompt_tokens": 9, "completion_tokens": 4, "provider": "openai", "user": "u1", "model": "gpt-4o", "session": "c1"},
    ),
    ({"langfuse.user.id": "u1", "langfuse.session.id": "s1", "gen_ai.system": "openai"}, {"user": "u1", "session": "s1", "provider": "openai"}),
    ({"traceloop.association.properties.user_id": "u1"}, {"user": "u1"}),
    # LiteLLM, beside what its own format reads
    (
        {"response_cost": 0.01, "custom_llm_provider": "openai", "cache_hit": True, "end_user": "u1", "startTime": 1780300000.5},
        {"cost": 0.01, "provider": "openai", "cache_hit": True, "user": "u1", "time": "1780300000.5"},
    ),
    # Langfuse, observations
    (
        {"userId": "u1", "sessionId": "s1", "startTime": "2026-06-01T10:00:00Z", "totalCost": 0.01, "traceId": "t1"},
        {"user": "u1", "session": "s1", "time": "2026-06-01T10:00:00Z", "cost": 0.01, "trace": "t1"},
    ),
])  # fmt: skip
def test_names_that_gateways_document(record, columns):
    assert found(record) == columns


OWN = {"user": "u1", "session": "s1", "latency": 812.0, "cost": 0.01, "feedback": "up", "prompt_tokens": 9}


@pytest.mark.parametrize(
    "record",
    [
        {"user_id": "u1", "session_id": "s1", "duration_ms": 812, "cost_usd": 0.01, "thumb": "up", "input_tokens": 9},
        {"userId": "u1", "sessionId": "s1", "durationMs": 812, "costUsd": 0.01, "userFeedback": "up", "inputTokens": 9},
        {"user-id": "u1", "session-id": "s1", "duration-ms": 812, "cost-usd": 0.01, "user-feedback": "up", "input-tokens": 9},
        {
            "metadata": {"user": {"id": "u1", "plan": "pro"}, "session": "s1"}, "elapsed_s": 0.812, "cost": "$0.01",
            "meta": {"feedback": {"value": "up"}}, "usage": {"prompt_tokens": 9},
        },
        {
            "headers": {
                "X-User-Id": ["u1"], "X-Session-Id": "s1", "X-Response-Time-Ms": "812", "X-Cost-USD": "0.01", "X-Rating": "up",
                "X-Prompt-Tokens": "9",
            }
        },
        {
            "attributes": [
                {"key": "user.id", "value": {"stringValue": "u1"}},
                {"key": "session.id", "value": {"stringValue": "s1"}},
                {"key": "llm.latency_ms", "value": {"intValue": "812"}},
                {"key": "gen_ai.usage.cost", "value": {"doubleValue": 0.01}},
                {"key": "user.feedback", "value": {"stringValue": "up"}},
                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}},
            ]
        },
    ],
    ids=["snake", "camel", "kebab", "nested", "headers", "attributes"],
)  # fmt: skip
def test_the_styles_of_a_product_s_own_logger(record):
    assert found(record) == OWN


@pytest.mark.parametrize(
    ("record", "columns", "unread"),
    [
        ({"user": "Can you help me?", "user_agent": "curl"}, {}, {"user", "user_agent"}),  # what was said, a program
        ({"user": {"plan": "pro", "tier": 2}}, {}, {"user.plan", "user.tier"}),
        ({"time": 0.81, "timestamp": "soon"}, {}, {"time", "timestamp"}),  # a duration
        ({"thumb": "https://cdn.example.org/t.png", "rating": "The tone was off"}, {}, {"thumb", "rating"}),
        ({"latency": 1.2}, {}, {"latency"}),  # seconds, or a fast millisecond
        ({"latency": "1.2s"}, {"latency": 1200.0}, set()),
        ({"time_ms": 1780300000000}, {}, {"time_ms"}),
        ({"cost": 0.2, "cost_currency": "EUR"}, {}, {"cost_currency"}),
        ({"cost_eur": 0.2}, {}, {"cost_eur"}),
        ({"status": "streaming", "tokens_in": 1.5}, {}, {"status", "tokens_in"}),
        ({"thumbs_up": False, "thumbs_down": True}, {"feedback": "down"}, set()),
        ({"thumbs_up": False}, {}, set()),
        ({"user": "anonymous", "session": None, "model": ""}, {}, {"user"}),
        ({"product": {"id": "p1"}, "date_of_birth": "2001-01-01"}, {}, {"product.id", "date_of_birth"}),
        (
            {"messages": [{"user": "u"}], "prompt": {"user": "u"}, "request": {"store": True, "metadata": {"squad": "x"}}},
            {},
            {"request.metadata.squad"},
        ),
    ],
)
def test_what_only_looks_like_a_column_is_not_read_and_listed(record, columns, unread):
    assert found(record) == columns and {each.split("\t")[0] for each in READER.of(record)["unread"]} == unread


def test_of_two_names_the_more_specific_is_read_and_it_is_said():
    told = READER.of({"user": "U2", "user_id": "U9", "metadata": {"cost": 1.0}, "cost": 2.0, "total_cost": 2.0})
    assert (told["found"]["user"], told["found"]["cost"]) == ("U9", 2.0)
    assert sorted(told["clashes"]) == ["cost\ttotal_cost\tmetadata.cost", "user\tuser_id\tuser"]
    assert READER.of({"user_id": "U9", "user": "U9", "user_email": "a@b.c"})["clashes"] == []


@pytest.mark.parametrize(("record", "own", "clashes"), [
    ({"user": "U2", "user_id": "U9"}, {"user"}, ["user\tuser\tuser_id"]),
    ({"user": "U2", "user_id": "U9"}, {"user_id"}, ["user\tuser_id\tuser"]),
    ({"user": "U2", "user_id": "U9"}, {"user", "user_id"}, []),  # which of them, the format decides
])  # fmt: skip
def test_what_the_format_reads_itself_comes_first_where_names_contradict(record, own, clashes):
    assert Reader(frozenset(own)).of(record)["clashes"] == clashes


@pytest.mark.parametrize(("record", "is_foreign"), [
    ({"cost": 0.2, "currency": "EUR"}, True), ({"usage": {"cost": 0.2, "currency": "eur"}}, True),
    ({"cost": 1, "currency": "usd"}, False), ({"cost": 0.2, "costCurrency": "EUR"}, True),
    ({"cost": 0.2, "metadata": {"currency": "EUR"}}, False), ({"cost": 0.2, "order": {"currency": "EUR"}}, False),
])  # fmt: skip
def test_a_cost_in_another_currency_is_told(record, is_foreign):
    assert bool(READER.of(record)["found"].get("foreign_cost")) is is_foreign
    assert ("cost" in READER.of(record)["found"]) is not is_foreign


@pytest.mark.parametrize(
    ("record", "unread"),
    [
        ({"votes": {"alice@corp.com": 1, "bob@corp.com": 2}}, ["votes.*\t"]),
        ({"faq": {"How do I cancel, Bob?": 0.9}}, ["faq.*\t"]),
        ({"by": {"3f2504e0-4f89-11d3-9a0c-0305e82c3301": {"email": "x"}}}, ["by.*.email\t"]),
        ({"4915112345678": "x"}, ["*\t"]),
        ({"x-amzn-RequestId": {"Größe.cm": 1}}, ['x-amzn-RequestId["Größe.cm"]\t']),
        ({"k" * 41: 1}, ["*\t"]),
        ({"tags": [{"key": "actor", "value": "alice"}]}, ["tags.actor\t"]),
        ({"actor": ["alice"]}, ["actor\t"]),  # no path leads there
        ({"ctx": '{"actor": "alice"}'}, ["ctx.actor\tuser"]),
        ({"user_id": "U1", "user_email": "alice@x.com", "user": "U1"}, ["user_email\t"]),
    ],
)
def test_keys_that_a_person_wrote_are_stars_and_each_proposal_leads_somewhere(record, unread):
    assert READER.of(record)["unread"] == unread


def test_fields_come_first_and_unread_keys_name_the_field_that_reads_them():
    record = {"user": "U2", "actor": {"login": "bob"}, "billing": {"amount": 0.2}, "took": {"total": 2}}
    told = Reader(frozenset(), {"user": "actor.login", "latency": "took.total"}).of(record)
    assert told["named"] == {"user": "bob", "latency": 2.0} and told["unread"] == ["billing.amount\tcost", "user\t"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        *(
            (key, value, "down")
            for key in ("thumbs_down", "thumb_down", "disliked", "dislike", "thumbsDown", "thumbsdown")
            for value in (True, 1, 1.0, "1", "true", " Yes")
        ),
        *((key, value, "up") for key in ("thumbs_up", "liked", "like") for value in (True, 1, 1.0, "1", "true", "yes")),
        *(
            (key, value, None)
            for key in ("thumbs_up", "thumbs_down", "liked", "disliked")
            for value in (False, 0, 0.0, "0", "false", "no", 5, "5", "well")
        ),
        ("feedback", False, "false"),
        ("rating", "Not helpful", "not helpful"),
        ("feedback", "0", "0"),
        ("rating", 4, "4"),
        ("thumbs_down", "down", "down"),
    ],
)
def test_a_flag_of_one_side_is_that_side_or_nothing(key, value, said):
    assert found({key: value}).get("feedback") == said
    own = {"metadata": {key: value}}
    named = Reader(frozenset(), {"feedback": f"metadata.{key}"}).of(own)["named"]
    assert named.get("feedback") == said


@pytest.mark.parametrize(("path", "record", "said"), [
    ("review.negative", {"review": {"negative": True}}, "down"), ("is_bad", {"is_bad": "yes"}, "down"),
    ("disliked", {"disliked": False}, None), ("thumbs_down.value", {"thumbs_down": {"value": 1}}, "down"),
    ("follow_up.rating", {"follow_up": {"rating": 4}}, "4"), ("verdict", {"verdict": "great"}, "great"),
])  # fmt: skip
def test_fields_of_feedback_know_its_side(path, record, said):
    assert Reader(frozenset(), {"feedback": path}).of(record)["named"].get("feedback") == said
    alone = FieldMapping(feedback=path, id="id").mapped({"id": "r1", **record})
    assert (alone["value"] if isinstance(alone, dict) else None) == said


@pytest.mark.parametrize(
    "record",
    [
        {"_": 1699999999},
        {"@": "x"},
        {"😀": "x", "metadata": {"-": 1}},
        {"filters": [{"key": {"a": 1}, "value": 2}]},
        {"a": [{"name": ["a"], "value": 1}, {"key": "user_id", "value": "u1"}]},
        {"time": 10**400, "cost": 10**400, "latency": 10**400},
        {"time": float("inf"), "prompt_tokens": float("inf"), "status": float("nan")},
        {"feedback": float("nan"), "user": 10**400},
    ],
)
def test_no_record_is_too_odd(record):
    READER.of(record)


def test_a_record_that_breaks_the_table_does_not_end_the_ingest_of_the_others():
    class Broken:
        def of(self, record):
            raise LookupError(record)

    own = SimpleNamespace(_reader=lambda source, form: Broken())
    assert Extraction._beside_of(own, "{}", "app", "openai_pairs") == "{}"


@pytest.mark.parametrize(("record", "unread"), [
    ({"threadId": 21, "thread": "main"}, {"threadId\t", "thread\t"}), ({"thread_id": 139872345}, {"thread_id\t"}),
    ({"thread": {"id": "139872345"}}, {"thread.id\t"}), ({"requester": {"id": "U1"}}, {"requester.id\tuser"}),
])  # fmt: skip
def test_threads_of_a_program_and_who_asked_are_no_ids(record, unread):
    assert found(record) == {} and set(READER.of(record)["unread"]) == unread
    assert found({"thread_id": "thread-7"}) == {"session": "thread-7"} and found({"session_id": 21}) == {"session": "21"}


@pytest.mark.parametrize("container", ["metadata", "properties", "tags", "labels", "request_properties", "custom"])
def test_what_a_business_says_of_itself_is_listed_and_not_read(container):
    record = {
        container: {"status": "failed", "success": False, "price": 49.9, "rating": 4, "customer": "ACME", "deployment": "eu-2"}
    }
    assert found(record) == {}
    assert {each.split("\t")[1] for each in READER.of(record)["unread"]} == {"status", "cost", "feedback", "user", "model"}


@pytest.mark.parametrize(("record", "columns", "proposed"), [
    ({"times": 3}, {}, ""), ({"latency": 32.5}, {}, ""), ({"latency": 1812.5}, {"latency": 1812.5}, None),
    ({"msToFinish": 812.5}, {"latency": 812.5}, None), ({"time_s": 3}, {"latency": 3000.0}, None),
    ({"costCents": 3}, {"cost": 0.03}, None), ({"costCents": {"x": 3}}, {}, ""), ({"thumb": {"x": 1}}, {}, ""),
    ({"convId": "c-1", "tsMillis": 1780315200000}, {"session": "c-1", "time": "1780315200000"}, None),
    ({"cost_eur": 0.2}, {}, ""), ({"billing": {"microsUsd": 3}}, {}, ""), ({"billing": {"amount": 0.2}}, {}, "cost"),
    ({"list_price": 0.2}, {}, "cost"),
])  # fmt: skip
def test_a_value_of_another_unit_is_neither_read_nor_proposed(record, columns, proposed):
    assert found(record) == columns
    assert [each.split("\t")[1] for each in READER.of(record)["unread"]] == ([] if proposed is None else [proposed])


def test_names_are_of_one_column_and_the_page_lists_them():
    names = [name.replace("_", "") for column in COLUMNS.values() for name in column.names]
    assert len(names) == len(set(names))
    assert markdown() in PAGE.read_text(encoding="utf-8")


LESS_IS_BETTER = """
negative_user_feedback negativeFeedback thumbs_down disliked disliked_flag is_bad is_wrong incorrect hallucination
Hallucination hallucinated hallucination_score toxicity severe_toxicity harmfulness bias error error_rate errorRate
refusal failed complaint user-flagged reported escalated offensive unsafe spam frustration edit_distance perplexity
jailbreak pii_leak off_topic offTopic irrelevance unhelpful dissatisfaction toxicity_detected not_helpful has_error
latency_lower_is_better false_positive misleading too_long nonsense
factual_errors needs_review low_quality low_relevance low_confidence safety_violation safety_flag safety_issue quality_issue
relevance_issue accuracy_error correctness_error grounding_failure unsuccessful attack_success prompt_injection_success offtopic
needs_human cancelled protected_material empty_answer lacks_citations blocked content_filtered gave_up ticket_reopened refund
jailbroken poor_quality issue_not_resolved jailbreak_not_blocked safety_blocked lack_of_accuracy user_not_satisfied less_helpful
human_needed did_not_answer quality_issue_count toxicity_check_failed criminality insensitivity free_text_toxicity zero_shot_errors
"""
MORE_IS_BETTER = """
no_hallucination non_toxic nontoxic error_free not_wrong hallucination_free safety faithfulness toxicity_passed
harmlessness thumbs_up thumbs_up_down user_score csat rating liked helpfulness answer_correct user_feedback quality
reward feedback error_handling bug_fix_quality unbiased groundedness vote conciseness stars no_errors unit_test_pass
understanding zero_shot_accuracy free_text_quality pii_removed jailbreak_resistance fault_tolerance injection_blocked
jailbreak_defended free_of_errors zero_errors without_errors zero_factual_errors no_safety_issue no_factual_errors low_risk
low_toxicity resolved_without_escalation resolved_without_help resolved_no_escalation issue_resolved harm_reduction error_recovery
refusal_accuracy correct_refusal jailbreak_refused toxicity_check_passed needs_met first_time_resolution real_time_accuracy
helpful_count task_success
"""
NOBODY_KNOWS = [
    "toxicity_check", "hallucination_guard", "latency", "cost", "total_tokens", "hallucination_quality", "no_answer",
    "word_count", "time_to_first_token", "resolution_time", "user_effort", "answer_length",
]  # fmt: skip


@pytest.mark.parametrize(("end", "names"), [(-1, LESS_IS_BETTER.split()), (1, MORE_IS_BETTER.split()), (0, NOBODY_KNOWS)])
def test_a_name_says_which_end_is_good_in_any_spelling(end, names):
    assert {name: good_end(name) for name in names} == dict.fromkeys(names, end)
    assert {good_end(name.replace("_", " ")) for name in names} == {end}


def test_a_name_without_a_word_that_tells_is_unknown_and_taken_as_praise():
    assert {good_end(name) for name in ("politeness", "verdict", "user_score")} == {1}
    assert [
        name for name in ("politeness", "verdict", "user_score", "csat", "helpfulness", "latency") if not is_known(name)
    ] == ["politeness", "verdict"]


def test_words_are_thumbs_and_labels_are_true_or_false_or_a_number():
    assert [thumb_of(word) for word in ("Thumbs Up", "thumbs-down", "FALSE", "not helpful", "removed", "sports", None)] == [
        1,
        -1,
        -1,
        -1,
        None,
        None,
        None,
    ]
    labels = {
        "true": ("True", "true", "yes", "y", "T", "desirable", "good", "chosen", "not wrong"),
        "false": ("False", "undesirable", "undesired", "not desirable", "non-desirable", "n", "f", "bad", "Rejected"),
        "0": ("0", "0.0"),
        "1": ("1", "1.0"),
        "3": ("3",),
        None: ("maybe", "sports", "positive", "excellent", "", "nan", "0.3", None),
    }
    for label, spellings in labels.items():
        assert {label_of(each) for each in spellings} == {label}
