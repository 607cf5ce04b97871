"""A question in SQL about an asset, to copy from its page in the UI.

    as_metadata(about_table("interactions", "math-tutor"))      # a block of code with its command

Each is answered by `millrace sql`; tests ask them of a real lake."""

import dagster as dg

from resources.lake import sql_literal
from resources.manifests import Manifest

_OF_TABLES = {
    "interactions": "select dt, count(*) as requests, count(*) filter (where status <> 'success') as failed,\n"
    "    sum(completion_tokens) as answer_tokens, median(latency_ms) as latency_ms\n"
    "from interactions\nwhere workload = {workload}\ngroup by dt\norder by dt desc",
    "feedback": "select dt, name, count(*) as given, avg(value) as mean\n"
    "from feedback\nwhere workload = {workload}\ngroup by dt, name\norder by dt desc, given desc",
    "cleaned_interactions": "select status, count(*) as rows, count(distinct session_id) as sessions\n"
    "from cleaned_interactions\nwhere workload = {workload}\ngroup by status\norder by rows desc",
    "judgements": "select dt, name, avg(score) as mean, count(score) as judged\n"
    "from judgements\nwhere workload = {workload}\ngroup by dt, name\norder by dt desc",
    "drift": "select dt, window_days, test, value, bound, p, sessions\n"
    "from drift\nwhere workload = {workload} and alarm\norder by dt desc",
}
_OF_KINDS = {
    "dataset": "select version, relation, row_count, created_at\nfrom datasets\nwhere name = {name}\norder by created_at desc",
    "trained": "select step, metric, value\nfrom metrics\nwhere name = {name} and version = {version} and metric = 'loss'\n"
    "order by step",
    "model": "select metric, value\nfrom metrics\nwhere name = {name} and version = {version} and step is null\n"
    "order by metric",
    "release": "select name, wanted, measured, low, high, passed, why\nfrom gates\nwhere release = {version}\norder by name",
}
_OF_ENDPOINT = (
    "select served_from, served_until, release, began_by, promoted_by, reason\nfrom champions\n"
    "where workload = {workload}\norder by served_from desc"
)


def about_table(name: str, workload: str) -> str:
    """About a table's rows by day or rule. Raises KeyError for a table without a question."""
    return _OF_TABLES[name].format(workload=sql_literal(workload))


def about_artefact(manifest: Manifest) -> str:
    """About a dataset's versions, the loss of a trained model, the numbers of another one, or a release's gates."""
    is_trained = manifest.kind == "model" and any(file.path == "metrics.jsonl" for file in manifest.files)
    question = _OF_KINDS["trained" if is_trained else manifest.kind]
    return question.format(name=sql_literal(manifest.name), version=sql_literal(manifest.version))


def about_endpoint(workload: str) -> str:
    """About what served when."""
    return _OF_ENDPOINT.format(workload=sql_literal(workload))


def as_metadata(sql: str) -> dg.MetadataValue:
    """A block of code that the UI shows with a button to copy it."""
    return dg.MetadataValue.md(f"```sql\n{sql}\n```\n\nAsk it with `millrace sql`, or open `catalog.duckdb` read-only.")
