"""Sentences of the catalog's relations and columns, shown by `from relations` and `from relation_columns`, and by Dagster.

    comment_on("sft_dataset", "weight")     # "rows in the split for each row that there was: ..."
    add_comments(connection, {"math_tutor_sft_dataset": "sft_dataset"})     # view of a dataset -> what it is a view of

A column of a table or of a dataset's file is described in its Arrow schema (resources/lake/schemas.py, SFT_ROWS, ...). What a
view or a dataset passes on has the sentence of the column that it comes from, by column_lineage.py or by READS. A sentence
stands here only for what SQL makes anew. tests/resources/catalog/test_comments.py names a column without one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import duckdb
import pyarrow as pa

from model_ops.answers import RESCORED_ROWS, ROLLOUT_ROWS, SAMPLED_ANSWER_ROWS
from model_ops.evaluation import row_tables
from model_ops.files import sentence
from model_ops.operations import ANSWER_ROWS, LIMIT_ROWS
from resources.catalog.column_lineage import columns_of
from resources.composing import DATASET_SCHEMAS
from resources.lake import SCHEMAS, rows, sql_literal, sql_text

RELATIONS = {
    "objects": "Log objects (files) found, and whether each was read: one row per object and workload",
    "interactions": "Logged requests with their answer, as logged: one row per request and choice",
    "feedback": "Feedback from people and programs on answers: thumbs, scores, labels; with the user of the answer",
    "feedback_records": "Feedback as the table has it, without the user",
    "quarantine": "Log lines that could not be read, with their place and the reason",
    "cleaned_interactions": "Interactions with personal data replaced, and the measures of the rules on single rows",
    "decisions": "Decisions in force: why each record was kept or dropped; of curation and sampling, the current version",
    "decisions_history": "Decisions of all versions of curation and sampling, current or not",
    "judgements": "Scores that a judge model gave to cleaned rows",
    "contamination": "Evaluation items found in the traffic, by day; a row without interaction_id says "
    "that its day was searched",
    "retired": "Ids of interactions whose rows retention removed: an erasure finds rows of datasets by them",
    "serving_metrics": "Metrics that endpoints reported while serving, by time window",
    "acceptance_by_shape": "Served acceptance by day, release and prompt shape, of captured requests whose server reports it",
    "drift": "Traffic compared with the reference window of a release: one row per window, test and release",
    "retraining_decisions": "What was decided about retraining, and what came of it: one row per decision",
    "erasures": "Hashes of erased data: a record that matches is dropped whenever it is read",
    "artefacts": "Every finished version of every dataset, model and release, from its manifest",
    "datasets": "Every version of every dataset, and the name of its view: one row per version and kind of file",
    "models": "Every version of every model and drafter",
    "metrics": "Numbers of every artefact: of its manifest, and of each logged step of its training",
    "sampled_answers": "Answers that models gave while they were trained on preferences, and their grades",
    "rollouts": "Attempts at prompts that models made in reinforcement fine-tuning, and their grades",
    "metrics_lines": "Lines of every version's metrics.jsonl, as JSON",
    "nodes": "Everything in the lineage: versions of datasets, models and releases, table slices, external files",
    "edges": "What was made from what: child was made from parent",
    "ancestors": "Everything that an artefact was made from: from ancestors('workload/name')",
    "descendants": "Everything that was made from an artefact, a table or a file: from descendants('workload/name')",
    "named_nodes": "Nodes that a name means: from named_nodes('workload/name') or ('workload/name@version')",
    "users_in": "Hashed users whose log lines an artefact was trained on: from users_in('workload/name')",
    "weight_lineage": "Ancestors whose content may be in an artefact; of a release, those of its models",
    "lineage": "All ancestors of each artefact; depth 1 is a direct parent",
    "lineage_edges": "Edges of the lineage: an artefact and what it was made from (an artefact, a table slice, external files)",
    "lineage_nodes": "Nodes of the lineage: artefacts, table slices and external files",
    "dataset_rows": "Rows of every version of every conversation dataset: one row per interaction in them",
    "view_files": "Parquet files that the catalog's views read",
    "relations": "Tables, views and macros of the catalog",
    "relation_columns": "Columns of the catalog's tables and views",
    "log_lines_in": "Log lines an artefact was trained on: from log_lines_in('workload/name') or ('workload/name@version')",
    "weights_holding": "Models and releases trained on a user's or an interaction's text: from "
    "weights_holding('<user hash or interaction id>')",
    "why": "Every step of an interaction, request, trace or session through the pipeline: from why('<id>')",
    "steps_of": "Every step of a list of interactions through the pipeline: from steps_of(['<interaction id>', ...])",
    "approvals": "Log of every endpoint, one row per entry: approvals, withdrawals, promotions, rollbacks, nominations, named "
    "aliases. Entries are never changed",
    "champions": "Which release was champion when: one row per period",
    "releases": "Every finished release: what it serves, how it was decided, which aliases point to it",
    "tainted": "Models and releases whose weights learnt rows that were erased since, by the dataset that lost them",
    "gates": "The gates of every release, as measured when it was made",
}
"""Tables, views and macros, by name."""

DATASETS = {
    "curated_interactions": "Interactions that curation kept",
    "sft_dataset": "Conversations to train on, split by user",
    "preference_dataset": "Pairs of a chosen and a rejected answer to one prompt",
    "preference_dataset_unpaired": "Answers with a verdict of their own: a thumb, how the session ended, a reaction",
    "rl_prompts": "Prompts with data to verify an answer",
    "calibration_dataset": "Training rows that quantization is calibrated with",
    "teacher_answers": "Conversations whose last answer a teacher gave",
    "teacher_answers_requests": "Requests to the teacher, one for each answer: text, score, tokens, cost, and why it is "
    "not used",
    "teacher_answers_logprobs": "Log-probabilities that the teacher's endpoint gave with the learnt answers",
    "teacher_answers_preferences": "Pairs of a kept and a rejected answer of a teacher: rows for preference training",
    "rescored_answers": "Answers of reinforcement fine-tuning, graded again by a changed grader",
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

READS = {
    "feedback": ("interactions",),
    "feedback_records": ("feedback",),
    "decisions_history": ("decisions",),
    "acceptance_by_shape": ("serving_metrics", "cleaned_interactions"),
    "artefacts": ("interactions",),
    "datasets": ("artefacts",),
    "models": ("artefacts",),
    "metrics": ("artefacts",),
    "metrics_lines": ("artefacts",),
    "sampled_answers": ("sft_dataset", "artefacts"),
    "rollouts": ("sft_dataset", "artefacts"),
    "rescored_answers": ("rollouts",),
    "nodes": ("lineage_nodes",),
    "edges": ("lineage_edges",),
    "weight_lineage": ("lineage",),
    "lineage_nodes": ("artefacts",),
    "dataset_rows": ("sft_dataset", "artefacts"),
    "view_files": ("artefacts",),
    "relation_columns": ("relations",),
    "champions": ("approvals",),
    "releases": ("artefacts",),
    "tainted": ("lineage", "artefacts"),
    "gates": ("champions",),
    "curated_interactions": ("cleaned_interactions",),
    "sft_dataset": ("curated_interactions",),
    "preference_dataset": ("sft_dataset",),
    "preference_dataset_unpaired": ("preference_dataset",),
    "rl_prompts": ("sft_dataset",),
    "teacher_answers_preferences": ("preference_dataset",),
    "eval_suite": ("contamination",),
    "seed_examples_bad_lines": ("quarantine",),
    "seed_examples_contaminated_seeds": ("contamination", "seed_examples"),
    "evaluation_report_task_scores": ("contamination",),
}
"""Relations or datasets whose columns one passes on; of two with the same column the first one's sentence holds."""

MADE = {
    "acceptance_by_shape": {
        "tau": "acceptance length: 1 + accepted tokens / drafts",
        "requests": "requests whose server reported their drafts",
    },
    "artefacts": {
        "bytes": "size in bytes",
        "code_dirty": "whether the code had uncommitted changes",
        "code_revision": "git revision of the code that made it",
        "config": "the settings it was made with",
        "created_at": "time when it was finished",
        "digest": "digest of its content",
        "environment": "package versions and device it was made with",
        "is_current": "whether it is the current version: the one that the last run made or confirmed",
        "kind": "dataset, model or release",
        "metrics": "metrics of the run that made it",
        "name": "workload/name",
        "node": "name in the lineage: kind:workload/name@version",
        "op": "operation that made it",
        "path": "path inside the lake",
        "recipe_digest": "digest of the recipe",
        "version": "first 12 hex digits of a digest over operation, code, settings and inputs",
    },
    "datasets": {
        "relation": "name of the view of the current version; null: no version is current, or a file cannot be read",
        "versions_relation": "name of the view of all its versions",
        "row_count": "number of rows",
    },
    "metrics": {
        "metric": "name of the number; nested names are joined by slashes",
        "step": "training step; null: of the artefact as a whole",
        "value": "the number; true is 1, false is 0",
    },
    "metrics_lines": {"line": "the line, as JSON"},
    "nodes": {
        "path": "its directory in the lake; null for tables and external files",
        "is_current": "whether it is the current version; null for tables and external files",
    },
    "edges": {
        "parent_kind": "dataset, model, release, table or external",
        "parent_name": "the parent's name",
        "parent_version": "the parent's version; of tables and files, the first digits of their digest",
    },
    "lineage": {
        "artefact": "node of the artefact: kind:workload/name@version",
        "ancestor": "lineage node of the ancestor",
        "depth": "number of steps between them, from 1",
    },
    "lineage_edges": {
        "child": "lineage node of the artefact that was made",
        "parent": "lineage node of the parent",
        "kind": "kind of the parent: dataset, model, release, table or external",
        "name": "the parent's name",
        "version": "the parent's version; of tables and files, the first digits of their digest",
        "digest": "digest of the parent's content",
    },
    "lineage_nodes": {"kind": "dataset, model, release, table or external", "name": "name"},
    "view_files": {"relation": "name of the view"},
    "relations": {"relation": "its name; of a macro with parameters", "kind": "table, view or macro", "comment": "description"},
    "relation_columns": {
        "relation": "name of the table or view",
        "column_name": "name of the column",
        "data_type": "type of the column",
    },
    "approvals": {
        "workload": "workload of the endpoint",
        "number": "number of the entry in its endpoint's log, from 1",
        "ts": "time of the entry",
        "action": "nominated, approved, promoted, named or unnamed (a further alias), withdrawn, rolled back, or found "
        "(the endpoint's file named a release without an entry)",
        "release": "version of the release; for a rollback, the release that serves again",
        "digest": "digest of the release's files at that time",
        "who": "person or program that did it",
        "identity_from": "source of that name: MILLRACE_USER, git config user.email, system account, USER, "
        "recipe, pipeline, the endpoint's file",
        "reason": "text of --reason; null without one",
        "gates": "the release's gates at that time",
        "replaces": "the champion that a promotion or rollback replaced",
        "generation": "number of the endpoint's changes, including this one",
        "candidate": "the endpoint's candidate after the entry",
        "champion": "the endpoint's champion after the entry",
        "previous": "the endpoint's previous champion after the entry",
        "alias": "the further alias that the entry moved, such as canary; null for other entries",
        "key": "id of the key that signed the entry; null where none did",
        "sha256": "digest of the entry; the next entry includes it",
        "intact": "whether the entry is unchanged and follows the entry before it",
    },
    "champions": {
        "release": "version of the release",
        "digest": "digest of its files when it became champion",
        "served_from": "when it became champion",
        "served_until": "when another release replaced it; null for the present champion",
        "began_by": "promoted, rolled back (it served again), or found (the log began later)",
        "ended_by": "promoted (a newer release replaced it) or rolled back; null for the present champion",
        "promoted_by": "who made it champion",
        "reason": "why, where a reason was given",
        "replaced_by": "who ended it",
        "replaced_because": "why, where a reason was given",
        "entry": "number of the entry in approvals that began it",
    },
    "releases": {
        "passed": "whether all gates passed when the release was made",
        "is_candidate": "whether it waits for an approval: the endpoint names it, and it missed no gate",
        "is_champion": "whether the endpoint serves it",
        "is_previous": "whether it was the champion before the present one",
        "aliases": "further aliases that name it, such as canary",
        "standing": "last decision: approved or withdrawn (a rollback withdraws the release it replaces); null: none yet",
        "decided_by": "person or program that decided",
        "approvals": "number of approvals it ever had",
        "target": "name of the model that is served",
        "target_version": "its version",
        "target_digest": "digest of its files",
        "drafter": "name of the draft model; null where there is none",
        "drafter_version": "its version",
        "drafter_digest": "digest of its files",
        "architecture": "kind of the drafter",
        "num_speculative_tokens": "tokens that the drafter proposes at a time",
        "erased_rows": "rows that its weights learnt and that millrace forget erased since; 0: not tainted",
    },
    "tainted": {
        "kind": "model or release",
        "dataset": "node of the dataset that lost the rows",
        "erased_rows": "rows of its training split that were erased",
        "last_erased": "time of the last erasure",
    },
    "gates": {
        "name": "the gate: a key of release.gates; for suites, with the suite after a slash",
        "wanted": "the bound; see the column bound",
        "measured": "measured value; null if it was not measured",
        "low": "lower end of the 95 % interval; null where none was measured",
        "high": "upper end of the 95 % interval",
        "passed": "whether the measured value passed",
        "why": "a sentence with number, interval and bound",
        "bound": "least: the judged number must reach wanted; most: it may not exceed it",
        "judged_by": "the number that must meet the bound: value, or the low or high end of the interval",
        "of_model": "the model in question, by its role in the evaluation, or the drafter",
        "against": "what it was compared with",
        "measured_on": "held-out sessions, or the name of an evaluation suite",
        "sampling": "how answers were sampled; null for likelihoods",
        "unit": "unit of the measured value",
        "counted": "what n counts: rows, prompts or items",
        "n": "number of rows, prompts or items measured",
        "reason": "why it was not measured, or why there is nothing to compare",
    },
    "curated_interactions": {
        "text": "the text of a plain-text row",
        "token_ids": "token ids of a pre-tokenized row",
        "labels": "token ids to learn; -100 is ignored by the loss",
        "was_cut": "whether the answer ended at the token limit",
        "quality": "the judge's score of quality, 1 to 10; null if not judged",
        "difficulty": "the judge's score of difficulty, 1 to 10; null if not judged",
    },
    "preference_dataset": {
        "origin": "origin of the row: interaction or teacher",
        "prompt": "the messages before the answers: JSON text in the OpenAI shape",
        "chosen": "the better answer as JSON, a list of one message",
        "rejected": "the worse answer as JSON, a list of one message",
        "chosen_feedback": "feedback on the better answer; of a teacher, its score",
        "rejected_feedback": "feedback on the worse answer; of a teacher, its score",
        "chosen_id": "interaction of the better answer; null if it was edited or is a teacher's",
        "rejected_id": "interaction of the worse answer; null if it is a teacher's",
        "reason": "source of the preference: edited, regenerated, rated, outcome, ranked, graded, teacher, strong",
        "confidence": "how sure the source of the preference is, above 0 and at most 1",
        "margin": "difference of the grades of both answers, scaled to 0 to 1; null without grades",
        "interaction_ids": "interactions behind the pair; of a held-out pair none that may be trained on",
        "weight": "votes for the pair, each by its propensity; 1 on average in training",
    },
    "preference_dataset_unpaired": {
        "prompt": "the messages before the answer: JSON text in the OpenAI shape",
        "answer": "the answer as JSON, a list of one message",
        "desirable": "whether the answer was wanted",
        "reason": "where the verdict is from: thumb, outcome (of the session), dissatisfied (the reaction)",
        "interaction_ids": "interactions behind the row; of a held-out row none that may be trained on",
        "value": "the mean verdict: above 0 is good; of a reaction from -1 to 1",
        "weight": "votes, each by its propensity, an outcome shared by its answers; 1 on average in training",
    },
    "eval_suite": {"prompt": "the item's question", "answer": "the expected answer"},
    "rl_prompts": {"verifier": "what verifies an answer to the prompt: JSON text"},
}
"""Sentences of columns that SQL makes anew, by relation or dataset."""

_ANY_DATASET = ("sft_dataset", "preference_dataset", "rl_prompts", "interactions")
"""What any other dataset has rows of."""
_OF_VIEWS = {"split": "train, validation or test; else the name of the row's file", "version": MADE["artefacts"]["version"]}
"""Columns that the views of datasets add to the files' own."""


DESCRIBED: dict[str, pa.Schema] = {
    **SCHEMAS,
    **DATASET_SCHEMAS,
    "length_report": LIMIT_ROWS,
    "speculator_dataset": ANSWER_ROWS,
    "evaluation_report_likelihood": row_tables.LIKELIHOOD_ROWS,
    "evaluation_report_task_scores": row_tables.TASK_ROWS,
    "evaluation_report_acceptance": row_tables.ACCEPTANCE_ROWS,
    "sampled_answers": SAMPLED_ANSWER_ROWS,
    "rollouts": ROLLOUT_ROWS,
    "rescored_answers": RESCORED_ROWS,
}
"""Tables, and files of datasets, whose columns have sentences in their schema."""


def sentences_digest() -> str:
    """sha256 over the sentences of schemas, which count for no code (resources/digests/python.py)."""
    told = [(name, field.name, sentence(schema, field.name)) for name, schema in DESCRIBED.items() for field in schema]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def comment_on(name: str, column: str) -> str | None:
    """What a column holds, of a table, a view or a dataset; None for a column that is not described."""
    if column in MADE.get(name, ()):
        return MADE[name][column]
    if name in DESCRIBED and (text := sentence(DESCRIBED[name], column)):
        return text
    if name not in RELATIONS and column in _OF_VIEWS:
        return _OF_VIEWS[column]
    reads = READS.get(name, () if name in RELATIONS else _ANY_DATASET)
    sources = [source for source, field in columns_of(name).get(column, ()) if field == column]
    return next(filter(None, (comment_on(source, column) for source in (*sources, *reads))), None)


def add_comments(connection: duckdb.DuckDBPyConnection, datasets: Mapping[str, str]) -> None:
    """Sets the comment of every relation and column that has none yet and is described here."""
    connection.execute("begin")
    for item in rows(connection, "catalog/artefacts/without_comment").to_pylist():
        relation, column = item["relation"], item["column_name"]
        if column is not None:
            text = comment_on(datasets.get(relation, relation), column)
        elif relation in datasets:
            text = f"{text_of(datasets[relation])}: the current version"
        else:
            text = RELATIONS.get(relation)
        if text:
            name = relation if column is None else f'{relation}."{column}"'
            connection.execute(
                sql_text("catalog/artefacts/comment").format(kind=item["kind"], name=name, text=sql_literal(text))
            )
    connection.execute("commit")


def text_of(dataset: str) -> str:
    """What a dataset, or one kind of its files, holds."""
    return DATASETS.get(dataset, f"The dataset {dataset}")
