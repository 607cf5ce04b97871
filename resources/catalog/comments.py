"""What the catalog's relations and columns are: comments that `from relations` and `from relation_columns` show.

    add_comments(connection, {"math_tutor_sft_dataset": "sft_dataset"})     # view of a dataset -> what it is a view of

A relation that has comments of its own already keeps them. A new relation or column needs a line here, or its own comment
beside its SQL: tests/resources/catalog/test_catalog.py names what has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from resources.sql_files import rows, sql_text
from resources.tables import sql_literal

RELATIONS = {
    "objects": "The log objects (files) that were found, and which of them were read: one row an object and workload",
    "interactions": "The requests that were read from the logs, each with one of its choices, as they were logged",
    "feedback": "What people and programs said of answers: thumbs, scores, labels",
    "quarantine": "Log lines that could not become a row, each with its place and the reason",
    "cleaned_interactions": "The interactions with personal data replaced, and what the rules on single rows measured of them",
    "decisions": "Why each record left or stayed, by stage, as it stands now: of curation and sampling, the current version",
    "decisions_history": "The decisions of all versions of curation and sampling, also of those that no longer hold",
    "judgements": "What a judge model said of cleaned rows",
    "contamination": "Evaluation items that were found in the traffic, remembered by day; a row without interaction_id "
                     "says that its day was searched",
    "serving_metrics": "What endpoints reported while they served, by time window",
    "erasures": "Hashes of what must never come back: a record that has one of them is dropped whenever it is read",
    "artefacts": "Every finished version of every dataset, model and release, from its manifest",
    "lineage": "Everything that each artefact was made from, directly (depth 1) or not",
    "lineage_edges": "Which artefact was made from which other, from which slice of a table, or from what outside",
    "lineage_nodes": "All that takes part in the making of an artefact",
    "dataset_rows": "The rows of every version of every dataset of conversations, one line an interaction in them",
    "view_files": "The Parquet files that the views of the catalog read",
    "relations": "What can be asked: tables, views and macros of the catalog",
    "relation_columns": "The columns of the catalog's tables and views",
    "log_lines_in": "The log lines in an artefact: from log_lines_in('workload/name') or ('workload/name@version')",
    "weights_holding": "The models and releases trained on the words of a user or of one interaction: from "
                       "weights_holding('<user hash or interaction id>')",
    "why": "What became of an interaction, request, trace or session, step by step: from why('<id>')",
    "steps_of": "The same for a list of interactions: from steps_of(['<interaction id>', ...])",
}
"""Tables, views and macros, by name."""

DATASETS = {
    "curated_interactions": "The interactions that curation kept",
    "sft_dataset": "Conversations to train on, in splits by session",
    "eval_suite": "The items of the evaluation suites, which no training row may hold",
    "seed_examples": "Training examples from files instead of logs",
    "seed_examples_seeds": "Training examples from files instead of logs",
    "seed_examples_bad_lines": "Lines of seed files that could not be used",
    "seed_examples_contaminated_seeds": "Seed examples left out because they hold an evaluation item",
    "served_answers": "How the answers of the dataset were served, with their token ids where the log has exact ones",
    "speculator_dataset": "Prompts and answers of the target that a drafter learns from, as token ids",
    "evaluation_report_likelihood": "Held-out loss of every model on every test row",
    "evaluation_report_acceptance": "What each drafter's drafts came to on every test prompt",
}
"""Views of a dataset's current version, by the dataset (and the file, where it has several kinds of them)."""

COLUMNS = {
    "accepted": "drafted tokens that the target accepted",
    "accepted_at": "drafts of which the token at each position was accepted",
    "accepted_per_position": "drafted tokens that were accepted, by their position in the draft",
    "accepted_tokens": "drafted tokens that were accepted",
    "alias_id": "a second id of the request that feedback may name: a gateway's own, a span's",
    "ancestor": "node of what the artefact was made from",
    "answer": "the answer that is expected",
    "answer_token_ids": "token ids of the answer",
    "artefact": "node of the artefact: kind:workload/name@version",
    "bytes": "size in bytes",
    "cache_hit": "whether the answer came from a cache",
    "cached_tokens": "prompt tokens that the server had in its cache",
    "child": "node of what was made",
    "choice_index": "which of the request's choices this is, from 0",
    "cleaned_with": "digest of the settings and code that made the row",
    "client": "the program or key that asked, as the log names it",
    "code_dirty": "whether the code had uncommitted changes",
    "code_revision": "the revision of the code that made it",
    "column_name": "name of the column",
    "comment": "what it is",
    "completion": "the answer: a message as JSON text in the OpenAI shape",
    "completion_characters": "length of the answer, in characters",
    "completion_token_ids": "token ids of the answer, as the server logged them",
    "completion_tokens": "length of the answer in tokens, as logged",
    "config": "the settings that it was made with",
    "content": "digest of the day's texts",
    "content_sha256": "sha256 of the content",
    "cost": "cost of the request, as logged",
    "created_at": "when it was finished",
    "data_type": "type of the column",
    "days": "days that the object's rows fall on",
    "depth": "steps of making in between, from 1",
    "detail": "figures and names behind the decision; JSON text for the stage ingest",
    "difficulty": "the judge's difficulty, 1 to 10; null where it was not judged",
    "digest": "digest of its content",
    "draft_tokens": "tokens that were drafted",
    "drafted": "tokens that were drafted",
    "drafter": "which drafter",
    "drafts": "how many drafts there were",
    "dt": "day of the request, in UTC",
    "endpoint": "which endpoint",
    "environment": "versions of the packages and the device that it was made with",
    "error": "the error that the log has for the request",
    "error_code": "what kind of fault it is",
    "etag": "the storage's mark of the object's content",
    "feedback": "what people said of the answer, in one number; below 0 is bad",
    "finish_reason": "why the answer ended: stop, length, tool_calls, ...",
    "format": "format of the log",
    "forwards": "forward passes of the target",
    "given_id": "the interaction's id, where the record of feedback itself names one",
    "has_system": "whether the prompt has system instructions",
    "has_tools": "whether the prompt offers tools",
    "interaction_id": "id of the interaction: sha256 of its source, its request's id or content, and the choice",
    "interaction_ids": "the interactions whose answers the row trains on",
    "is_current": "whether it is the version that the last run made or confirmed",
    "item_id": "id of the evaluation item in its suite",
    "kept": "whether the record went on to the next stage",
    "kept_id": "the interaction that stayed in place of this one",
    "kind": "what kind of thing it is",
    "label": "the feedback's word",
    "labels": "token ids to learn, -100 where nothing is learnt",
    "language": "language of the text, and how sure that is",
    "latency_ms": "time from request to whole answer, in milliseconds",
    "looping": "whether the answer repeats itself without end",
    "messages": "the prompt or conversation: JSON text in the OpenAI shape",
    "metrics": "what was measured while it was made",
    "model": "the model, as it is named where it served",
    "modified": "when the object was last changed",
    "message": "what is wrong, in a sentence",
    "name": "its name",
    "nll_sum": "sum of the negative log-likelihood of the answer's tokens, in nats",
    "node": "its name in the lineage: kind:workload/name@version",
    "normalised_sha256": "sha256 of the content in one case and with single blanks: equal for exact duplicates",
    "num_speculative_tokens": "tokens that are drafted at a time",
    "op": "the operation that made it",
    "origin": "where the row comes from: interaction or seed; of answers: served or generated",
    "params": "sampling parameters of the request, as JSON text; no names, no secrets",
    "parent": "node of what it was made from",
    "part": "which side holds the item: prompt or answer",
    "partners": "objects that hold the other halves of the object's records",
    "path": "place inside the lake",
    "pii": "personal data that was replaced: how many of each kind",
    "problem": "why the object could not be read",
    "prompt": "the prompt",
    "prompt_characters": "length of the prompt, in characters",
    "prompt_sha256": "sha256 of the prompt",
    "prompt_shape": "what kind of request it is: first word or tool, and a hash of instructions and tools",
    "prompt_token_ids": "token ids of the prompt",
    "prompt_tokens": "length of the prompt in tokens",
    "provider": "who served the model, as logged",
    "quality": "the judge's quality, 1 to 10; null where it was not judged",
    "raw": "the line's first bytes",
    "read_as": "settings of the source (format, workloads) that the object was read with",
    "reasoning": "what the model thought before it answered, where the log has it apart",
    "reasoning_tokens": "tokens of the reasoning, as logged",
    "recipe_digest": "digest of the recipe",
    "relation": "table, view or macro",
    "release": "version of the release",
    "request_id": "the request's own id in the log",
    "row_id": "id of the dataset's row; of an interaction, its interaction_id",
    "rows": "records that were read",
    "rule": "the rule that decided",
    "sampling": "sampling parameters of the answer, as JSON text",
    "score": "the judge's score, 1 to 10; null where it gave none",
    "searched": "digest of what was searched for",
    "served_model_digest": "digest of the weights that answered, as logged",
    "session_id": "the conversation that the request belongs to",
    "sha256": "the hash",
    "share": "share of the item's words that was found, 0 to 1",
    "signature": "MinHash signature: a stamp of its settings, then one hash a band",
    "source": "the recipe's name for where it was read",
    "source_format": "format of the log that it was read from",
    "source_row": "line in the object, from 1; 0 is the object as a whole",
    "source_uri": "the log object that it was read from",
    "split": "train, validation, test, or the name of the file that the row stands in",
    "split_group": "the oldest session that shares texts with the row's session: both fall into one split",
    "stage": "ingest, clean, curate or dataset",
    "state": "found, read or failed",
    "status": "success, error, or what kind of record it is: prompt, text, tokens",
    "suite": "which evaluation suite",
    "temperature": "sampling temperature",
    "text": "the text, of rows that are no conversation",
    "tie": "by which id feedback found its interaction: interaction, request, gateway, trace or session; or why not: several, "
           "unknown, elsewhere",
    "token_ids": "the tokens, of rows that are given as such",
    "tokens": "tokens of the answer",
    "tokens_per_second": "tokens that were served a second",
    "tools": "the tools that the request offers: JSON text in the OpenAI shape",
    "trace_id": "id of the trace that the request is part of",
    "ts": "when it happened, in UTC",
    "ttft_ms": "time to the first token, in milliseconds",
    "turn": "which answer of the conversation, from 0",
    "turns": "messages of the user in the prompt",
    "uri": "where the object lies",
    "user_hash": "hash of the user's id",
    "value": "the feedback as a number; thumbs are 1 and -1",
    "version": "first 12 hex digits of the digest of what it was made from, how and with what",
    "window_end": "end of the time that is reported",
    "window_start": "start of the time that is reported",
    "workload": "the workload",
    "workload_name": "what the record itself calls its workload",
}
"""Columns that mean the same wherever they stand, by name."""

OWN_COLUMNS = {
    ("objects", "content_sha256"): "sha256 of the object's bytes as they were read, by which a moved object is known again",
    ("cleaned_interactions", "quality"): "what the rules on single rows measured: lengths, shares of repeated text, ...",
    ("feedback", "source"): "who said it: a person, a program, a benchmark, as logged",
    ("feedback", "comment"): "what was said in words",
    ("feedback", "name"): "what was asked for: thumbs, a score's name",
    ("decisions", "version"): "the version of curated_interactions or sft_dataset that decided; none for other stages",
    ("decisions_history", "version"): "the version of curated_interactions or sft_dataset that decided; none for other stages",
    ("judgements", "name"): "what was judged: quality or difficulty",
    ("judgements", "model"): "the judge",
    ("judgements", "prompt"): "what the judge was asked",
    ("judgements", "answer"): "what the judge said; why there is no score, where there is none",
    ("erasures", "kind"): "what the hash is of: interaction, content, user or session",
    ("serving_metrics", "latency_ms"): "latency in milliseconds, by percentile",
    ("artefacts", "kind"): "dataset, model or release",
    ("artefacts", "name"): "workload/name",
    ("lineage_edges", "kind"): "what the parent is: dataset, model, release, table or external",
    ("lineage_edges", "name"): "the parent's name",
    ("lineage_edges", "version"): "the parent's version; of tables and files the first digits of their digest",
    ("lineage_edges", "digest"): "digest of the parent's content",
    ("lineage_nodes", "kind"): "dataset, model, release, table or external",
    ("relations", "kind"): "table, view or macro",
    ("served_answers", "model"): "the model that answered, as the log names it",
    ("evaluation_report_likelihood", "model"): "which of the compared models: base, sft, student, quantized, target, reference",
    ("eval_suite", "prompt"): "what the item asks",
}
"""Columns that mean something of their own, by relation (or dataset) and name."""


def add_comments(connection: duckdb.DuckDBPyConnection, datasets: Mapping[str, str]) -> None:
    """Comments every relation and column that has no comment yet and is described here."""
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
