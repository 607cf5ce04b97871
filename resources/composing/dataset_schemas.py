"""The columns of the datasets that are made here, with their sentences, by the name that the catalog gives each kind of files.
A column without a sentence comes as it is from rows that were there before."""

import pyarrow as pa

from model_ops.files import column
from resources.lake import SCHEMAS

SFT_ROWS = pa.schema(
    [
        column("row_id", pa.string(), description="id of the dataset's row; of an interaction, its interaction_id"),
        column("origin", pa.string(), description="origin of the row: interaction or seed"),
        ("source", pa.string()),
        ("session_id", pa.string()),
        ("workload", pa.string()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("messages", pa.string()),
        ("tools", pa.string()),
        ("request", pa.string()),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("prompt_shape", pa.string()),
        ("content_sha256", pa.string()),
        column("interaction_ids", pa.list_(pa.string()), description="the interactions whose answers the row trains on"),
        ("quality", pa.float64()),
        ("difficulty", pa.float64()),
        column("split", pa.string(), description="train, validation or test"),
        column(
            "weight",
            pa.float64(),
            description="rows in the split for each row that there was: below 1 where sampled, above 1 where repeated",
        ),
        column(
            "reason",
            pa.string(),
            description="why the row is there: all (each of source and shape), sampled, repeated (a further copy), held_out",
        ),
        column(
            "synthetic",
            pa.bool_(),
            description="whether a model wrote the row: a seed with synthetic: true, or a teacher's answer",
        ),
        ("language", pa.string()),
    ]
)
SEEDS = pa.schema(
    [
        ("row_id", pa.string()),
        ("source", pa.string()),
        ("source_uri", pa.string()),
        ("source_row", pa.int64()),
        ("messages", pa.string()),
        ("tools", pa.string()),
        ("request", pa.string()),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("content_sha256", pa.string()),
        ("synthetic", pa.bool_()),
        ("session_id", pa.string()),
        ("interaction_ids", pa.list_(pa.string())),
    ]
)
BAD_LINES = pa.schema(
    [("source", pa.string()), ("source_uri", pa.string()), ("source_row", pa.int64()), ("message", pa.string())]
)
_SERVED = (
    "interaction_id", "model", "served_model_digest", "params", "finish_reason", "prompt_token_ids", "completion_token_ids",
)  # fmt: skip
SERVED = pa.schema([SCHEMAS["interactions"].field(name) for name in _SERVED])
REQUESTS = pa.schema(
    [
        ("row_id", pa.string()),
        ("interaction_ids", pa.list_(pa.string())),
        ("source", pa.string()),
        column("model", pa.string(), description="the teacher: its name at the endpoint, or its directory's"),
        column(
            "request_sha256",
            pa.string(),
            description="digest of model, messages, tools and sampling; equal ones are asked once",
        ),
        column("sample", pa.int32(), description="number of the answer to its row's prompt, from 0"),
        column(
            "score", pa.float64(), description="the verifier's score, 0 to 1, of a judge 1 to 10; null if it was not verified"
        ),
        column("kept", pa.bool_(), description="whether the row is learnt with this answer"),
        column("failure", pa.string(), description="why the answer cannot be used or was rejected; null otherwise"),
        column("finish_reason", pa.string(), description="why the answer ended, as the endpoint says"),
        column("prompt_tokens", pa.int64(), description="tokens of the prompt, as the endpoint counts"),
        column("answer_tokens", pa.int64(), description="tokens of the answer, as the endpoint counts"),
        column("cost", pa.float64(), description="cost of the answer at the recipe's prices"),
        column("answer", pa.string(), description="the teacher's message as JSON"),
    ]
)
PREFERENCES = pa.schema(
    [
        ("row_id", pa.string()),
        ("interaction_ids", pa.list_(pa.string())),
        ("source", pa.string()),
        ("session_id", pa.string()),
        column("prompt", pa.string(), description="the messages before the answer as JSON"),
        ("tools", pa.string()),
        ("request", pa.string()),
        ("chosen", pa.string()),
        ("rejected", pa.string()),
        column("chosen_score", pa.float64(), description="the verifier's score of the kept answer"),
        column("rejected_score", pa.float64(), description="the verifier's score of the rejected answer"),
    ]
)
"""Pairs of answers, as {prompt, chosen, rejected} of preference training: lists of OpenAI messages as JSON."""
LOGPROBS = pa.schema(
    [
        ("row_id", pa.string()),
        column("prompt_tokens", pa.int64(), description="tokens of the prompt, as the endpoint counts"),
        column("tokens", pa.list_(pa.binary()), description="the answer's different tokens as bytes"),
        column("said", pa.list_(pa.int32()), description="places in tokens of what the answer consists of"),
        column("counts", pa.list_(pa.int16()), description="number of alternatives at each token of the answer"),
        column(
            "likely",
            pa.list_(pa.int32()),
            description="places in tokens of the alternatives, one token of the answer after another",
        ),
        column("logs", pa.list_(pa.float16()), description="log-probabilities of the alternatives in nats"),
    ]
)

DATASET_SCHEMAS: dict[str, pa.Schema] = {"sft_dataset": SFT_ROWS, "served_answers": SERVED, "seed_examples_seeds": SEEDS,
    "seed_examples_bad_lines": BAD_LINES, "teacher_answers_requests": REQUESTS, "teacher_answers_preferences": PREFERENCES,
    "teacher_answers_logprobs": LOGPROBS}  # fmt: skip
