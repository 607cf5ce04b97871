"""Comments of the catalog's relations and columns, shown by `from relations` and `from relation_columns`.

    add_comments(connection, {"math_tutor_sft_dataset": "sft_dataset"})     # view of a dataset -> what it is a view of

A relation with comments of its own keeps them. A new relation or column needs a line here, or a comment in its SQL;
tests/resources/catalog/test_catalog.py lists the missing ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from resources.sql_files import rows, sql_text
from resources.tables import sql_literal

RELATIONS = {
    "objects": "Log objects (files) found, and whether each was read: one row per object and workload",
    "interactions": "Logged requests with their answer, as logged: one row per request and choice",
    "feedback": "Feedback from people and programs on answers: thumbs, scores, labels",
    "quarantine": "Log lines that could not be read, with their place and the reason",
    "cleaned_interactions": "Interactions with personal data replaced, and the measures of the rules on single rows",
    "decisions": "Decisions in force: why each record was kept or dropped; of curation and sampling, the current version",
    "decisions_history": "Decisions of all versions of curation and sampling, current or not",
    "judgements": "Scores that a judge model gave to cleaned rows",
    "contamination": "Evaluation items found in the traffic, by day; a row without interaction_id says "
                     "that its day was searched",
    "serving_metrics": "Metrics that endpoints reported while serving, by time window",
    "erasures": "Hashes of erased data: a record that matches is dropped whenever it is read",
    "artefacts": "Every finished version of every dataset, model and release, from its manifest",
    "lineage": "All ancestors of each artefact; depth 1 is a direct parent",
    "lineage_edges": "Edges of the lineage: an artefact and what it was made from (an artefact, a table slice, external files)",
    "lineage_nodes": "Nodes of the lineage: artefacts, table slices and external files",
    "dataset_rows": "Rows of every version of every conversation dataset: one row per interaction in them",
    "view_files": "Parquet files that the catalog's views read",
    "relations": "Tables, views and macros of the catalog",
    "relation_columns": "Columns of the catalog's tables and views",
    "log_lines_in": "Log lines behind an artefact: from log_lines_in('workload/name') or ('workload/name@version')",
    "weights_holding": "Models and releases trained on a user's or an interaction's text: from "
                       "weights_holding('<user hash or interaction id>')",
    "why": "Every step of an interaction, request, trace or session through the pipeline: from why('<id>')",
    "steps_of": "Every step of a list of interactions through the pipeline: from steps_of(['<interaction id>', ...])",
}
"""Tables, views and macros, by name."""

DATASETS = {
    "curated_interactions": "Interactions that curation kept",
    "sft_dataset": "Conversations to train on, split by session",
    "teacher_answers": "Conversations whose last answer a teacher at an endpoint gave",
    "teacher_answers_requests": "Requests to the teacher, one for each training row: answer, tokens, cost, and why an "
                                "answer is not used",
    "eval_suite": "Items of the evaluation suites, which no training row may contain",
    "seed_examples": "Training examples from files instead of logs",
    "seed_examples_seeds": "Training examples from files instead of logs",
    "seed_examples_bad_lines": "Lines of seed files that could not be used",
    "seed_examples_contaminated_seeds": "Seed examples dropped because they contain an evaluation item",
    "length_report": "Rows that each limit on length costs each stage, in the base model's tokens",
    "served_answers": "How the dataset's answers were served, with token ids where the log has exact ones",
    "speculator_dataset": "Prompts and the target's answers that a drafter learns from, as token ids",
    "evaluation_report_likelihood": "Held-out loss of every model on every test row",
    "evaluation_report_task_scores": "Score of each model's answers to each evaluation item",
    "evaluation_report_acceptance": "Drafted and accepted tokens of each drafter on every test prompt",
}
"""Views of a dataset's current version, by dataset (and by file, where it has several kinds)."""

COLUMNS = {
    "accepted": "drafted tokens that the target accepted",
    "accepted_at": "number of drafts whose token at each position was accepted",
    "accepted_per_position": "drafted tokens that were accepted, by their position in the draft",
    "accepted_tokens": "drafted tokens that were accepted",
    "alias_id": "a second id of the request that feedback may name: the gateway's or the span's",
    "ancestor": "lineage node of the ancestor",
    "answer": "the expected answer",
    "answer_token_ids": "token ids of the answer",
    "artefact": "node of the artefact: kind:workload/name@version",
    "bytes": "size in bytes",
    "cache_hit": "whether the answer came from a cache",
    "cached_tokens": "prompt tokens served from the prefix cache",
    "child": "lineage node of the artefact that was made",
    "choice_index": "which of the request's choices this is, from 0",
    "cleaned_with": "digest of the settings and code that made the row",
    "client": "the client program or API key, as logged",
    "code_dirty": "whether the code had uncommitted changes",
    "code_revision": "git revision of the code that made it",
    "column_name": "name of the column",
    "comment": "description",
    "completion": "the answer: a message as JSON text in the OpenAI shape",
    "completion_characters": "length of the answer, in characters",
    "completion_token_ids": "token ids of the answer, as the server logged them",
    "completion_tokens": "length of the answer in tokens, as logged",
    "config": "the settings it was made with",
    "content": "digest of the day's texts",
    "content_sha256": "sha256 of the content",
    "cost": "cost of the request, as logged",
    "created_at": "time when it was finished",
    "data_type": "type of the column",
    "days": "UTC days of the object's rows",
    "depth": "number of steps between them, from 1",
    "detail": "values behind the decision; JSON text in stage ingest",
    "difficulty": "the judge's score of difficulty, 1 to 10; null if not judged",
    "digest": "digest of its content",
    "draft_tokens": "drafted tokens",
    "drafted": "drafted tokens",
    "drafter": "name of the drafter",
    "drafts": "number of drafts",
    "dt": "day of the request, in UTC",
    "endpoint": "name of the endpoint",
    "environment": "package versions and device it was made with",
    "error": "the request's error, as logged",
    "error_code": "kind of error",
    "etag": "the storage's etag of the object",
    "feedback": "people's feedback on the answer as one number; below 0 is bad",
    "finish_reason": "why the answer ended: stop, length, tool_calls, ...",
    "format": "format of the log",
    "forwards": "forward passes of the target",
    "given_id": "the interaction id in the feedback record itself, if it has one",
    "has_system": "whether the prompt has system instructions",
    "has_tools": "whether the prompt offers tools",
    "interaction_id": "id of the interaction: sha256 of source, request id or content, and choice",
    "interaction_ids": "the interactions whose answers the row trains on",
    "is_current": "whether it is the current version: the one that the last run made or confirmed",
    "item_id": "id of the evaluation item in its suite",
    "kept": "whether the stage kept the record",
    "kept_id": "the interaction that was kept instead of this one",
    "kind": "kind",
    "label": "the feedback as a word",
    "labels": "token ids to learn; -100 is ignored by the loss",
    "language": "ISO 639 code of the answer's language",
    "latency_ms": "time from request to complete answer, in milliseconds",
    "looping": "whether the answer loops",
    "messages": "the prompt or conversation: JSON text in the OpenAI shape",
    "metrics": "metrics of the run that made it",
    "model": "the model's name where it was served",
    "modified": "time of the object's last change",
    "message": "the error in one sentence",
    "name": "name",
    "nll_sum": "sum of the negative log-likelihood of the answer's tokens, in nats",
    "node": "name in the lineage: kind:workload/name@version",
    "normalised_sha256": "sha256 of the content without case and repeated spaces: equal for exact duplicates",
    "num_speculative_tokens": "tokens drafted at a time (K)",
    "op": "operation that made it",
    "origin": "origin of the row: interaction or seed; of an answer: served or generated",
    "params": "sampling parameters of the request, as JSON text; no names, no secrets",
    "parent": "lineage node of the parent",
    "part": "part of the item that was found: prompt or answer",
    "partners": "objects with the other side of its request-response pairs",
    "path": "path inside the lake",
    "pii": "number of replaced personal data by kind",
    "problem": "why the object could not be read",
    "prompt": "the prompt",
    "prompt_characters": "length of the prompt, in characters",
    "prompt_sha256": "sha256 of the prompt",
    "prompt_shape": "kind of request: first word or tool, and a hash of instructions and tools",
    "prompt_token_ids": "token ids of the prompt",
    "prompt_tokens": "length of the prompt in tokens",
    "provider": "provider that served the model, as logged",
    "quality": "the judge's score of quality, 1 to 10; null if not judged",
    "raw": "the line's first bytes",
    "read_as": "settings of the source (format, workloads) that the object was read with",
    "reasoning": "the model's reasoning before the answer",
    "reasoning_tokens": "tokens of the reasoning, as logged",
    "recipe_digest": "digest of the recipe",
    "relation": "table, view or macro",
    "release": "version of the release",
    "request": "what the request gave the chat template besides messages and tools: JSON text with chat_template_kwargs, "
               "documents, reasoning_effort, response_format",
    "request_id": "the request's own id in the log",
    "row_id": "id of the dataset's row; of an interaction, its interaction_id",
    "rows": "records that were read",
    "rule": "the rule that decided",
    "sampling": "sampling parameters of the answer, as JSON text",
    "score": "the judge's score, 1 to 10; null if it gave none",
    "searched": "digest of what was searched for",
    "served_model_digest": "digest of the weights that served it, as logged",
    "session_id": "the conversation that the request belongs to",
    "sha256": "sha256",
    "share": "share of the item's words that were found, 0 to 1",
    "signature": "MinHash signature: a stamp of its settings, then one hash per band",
    "source": "the source's name in the recipe",
    "source_format": "log format that read it",
    "source_row": "line in the object, from 1; 0 is the object as a whole",
    "source_uri": "log object it was read from",
    "split": "train, validation or test; else the name of the row's file",
    "split_group": "oldest session that shares texts with the row's session; a split group is in one split",
    "stage": "ingest, clean, curate or dataset",
    "state": "found, read or failed",
    "status": "success, error, or what kind of record it is: prompt, text, tokens",
    "suite": "evaluation suite",
    "temperature": "sampling temperature",
    "text": "the text of a plain-text row",
    "tie": "id by which feedback is tied to its interaction: interaction, request, gateway, trace or session; else why not: "
           "several, unknown, elsewhere",
    "token_ids": "token ids of a pre-tokenized row",
    "tokens": "tokens of the answer",
    "tokens_per_second": "tokens served per second",
    "tools": "the tools that the request offers: JSON text in the OpenAI shape",
    "trace_id": "id of the request's trace",
    "ts": "time, in UTC",
    "ttft_ms": "time to the first token, in milliseconds",
    "turn": "number of the answer in the conversation, from 0",
    "turns": "number of user messages in the prompt",
    "uri": "uri of the object",
    "user_hash": "hash of the user's id",
    "value": "the feedback as a number; thumbs are 1 and -1",
    "version": "first 12 hex digits of a digest over operation, code, settings and inputs",
    "was_cut": "whether the answer ended at the token limit",
    "window_end": "end of the time window",
    "window_start": "start of the time window",
    "workload": "the workload",
    "workload_name": "workload named in the record itself",
}
"""Columns with one meaning in every relation, by name."""

OWN_COLUMNS = {
    ("objects", "content_sha256"): "sha256 of the object's bytes as read; identifies a moved object",
    ("cleaned_interactions", "quality"): "measures of the rules on single rows: lengths, shares of repeated text, ...",
    ("feedback", "source"): "who gave the feedback: a person, a program, a benchmark, as logged",
    ("feedback", "comment"): "the comment text",
    ("feedback", "name"): "what was rated: thumbs, or a score's name",
    ("decisions", "version"): "version of curated_interactions or sft_dataset that decided; null in other stages",
    ("decisions_history", "version"): "version of curated_interactions or sft_dataset that decided; null in other stages",
    ("judgements", "name"): "what was scored: quality or difficulty",
    ("judgements", "model"): "the judge model",
    ("judgements", "prompt"): "the judge's prompt",
    ("judgements", "answer"): "the judge's reply; without a score, the reason",
    ("erasures", "kind"): "what was hashed: interaction, content, user or session",
    ("serving_metrics", "latency_ms"): "latency in milliseconds, by percentile",
    ("artefacts", "kind"): "dataset, model or release",
    ("artefacts", "name"): "workload/name",
    ("lineage_edges", "kind"): "kind of the parent: dataset, model, release, table or external",
    ("lineage_edges", "name"): "the parent's name",
    ("lineage_edges", "version"): "the parent's version; of tables and files, the first digits of their digest",
    ("lineage_edges", "digest"): "digest of the parent's content",
    ("lineage_nodes", "kind"): "dataset, model, release, table or external",
    ("relations", "kind"): "table, view or macro",
    ("length_report", "stage"): "the recipe's section: sft, student, speculator or evaluation",
    ("length_report", "dataset_split"): "the split of sft_dataset: train, validation or test",
    ("length_report", "limit"): "the limit: a recipe key, or the model's positions",
    ("length_report", "tokens"): "the limit's value in tokens",
    ("length_report", "rows"): "rows or prompts that were compared with the limit",
    ("length_report", "cut"): "rows of which a part is lost",
    ("length_report", "lost"): "rows that the stage cannot use at all",
    ("teacher_answers_requests", "model"): "name of the teacher at its endpoint",
    ("teacher_answers_requests", "request_sha256"): "digest of model, messages, tools and sampling; equal ones are asked once",
    ("teacher_answers_requests", "kept"): "whether the row is learnt with this answer",
    ("teacher_answers_requests", "failure"): "why there is no usable answer; null if there is one",
    ("teacher_answers_requests", "finish_reason"): "why the answer ended, as the endpoint says",
    ("teacher_answers_requests", "prompt_tokens"): "tokens of the prompt, as the endpoint counts",
    ("teacher_answers_requests", "answer_tokens"): "tokens of the answer, as the endpoint counts",
    ("teacher_answers_requests", "cost"): "cost of the answer at the recipe's prices",
    ("teacher_answers_requests", "answer"): "the teacher's message as JSON",
    ("served_answers", "model"): "name of the model that served it, as logged",
    ("evaluation_report_likelihood", "model"): "the compared model: base, sft, student, quantized, target, reference, champion",
    ("evaluation_report_task_scores", "model"): "the model that answered: target, base, champion",
    ("evaluation_report_task_scores", "against"): "the model that a judge compared with; empty for other scores",
    ("evaluation_report_task_scores", "sampling"): "greedy, or sampled: the mean over the samples",
    ("evaluation_report_task_scores", "score"): "from 0 to 1; of a judge 1 for a win, -1 for a loss",
    ("evaluation_report_acceptance", "sampling"): "how answers were sampled: greedy, temperature 1, as logged",
    ("eval_suite", "prompt"): "the item's question",
}
"""Columns whose meaning depends on the relation, by relation (or dataset) and name."""


def add_comments(connection: duckdb.DuckDBPyConnection, datasets: Mapping[str, str]) -> None:
    """Sets the comment of every relation and column that has none yet and is described here."""
    connection.execute("begin")
    for item in rows(connection, "catalog/without_comment").to_pylist():
        relation, column = item["relation"], item["column_name"]
        known = datasets.get(relation, relation)
        if column is not None:
            text = OWN_COLUMNS.get((known, column)) or COLUMNS.get(column)
        elif relation in datasets:
            text = DATASETS.get(known, f"The dataset {known}") + ": the current version"
        else:
            text = RELATIONS.get(relation)
        if text:
            name = relation if column is None else f'{relation}."{column}"'
            connection.execute(
                sql_text("catalog/comment").format(kind=item["kind"], name=name, text=sql_literal(text))
            )
    connection.execute("commit")
