"""`millrace why` on a finished lake: a row in training, held out, dropped, and in quarantine."""

import json

import pytest


def asked(cli, toy, statement):
    return json.loads(cli("sql", statement, "--lake", toy.lake, "--format", "json").stdout)[0]


def test_a_row_in_training_is_followed_into_weights_release_and_endpoint(toy, cli):
    row = asked(
        cli,
        toy,
        "select interaction_id id, source_uri uri, source_row line from log_lines_in("
        "'toy-assistant/sft_model') where interaction_id is not null order by id limit 1",
    )
    said = cli("why", row["id"][:12], "--lake", toy.lake).stdout
    for name in ("sft_model", "student_model", "quantized_model", "speculator", "in training", "candidate"):
        assert name in said, name
    by_line = cli("why", f"{row['uri']}:{row['line']}", "--lake", toy.lake, "--format", "json")
    stages = [step["stage"] for step in json.loads(by_line.stdout)]
    assert stages == sorted(
        stages,
        key=[
            "ingest",
            "interactions",
            "clean",
            "curate",
            "dataset",
            "dataset row",
            "context",
            "model",
            "release",
            "endpoint",
        ].index,
    )
    assert {"model", "release", "endpoint"} <= set(stages)


def test_a_held_out_row_is_in_no_weights(toy, cli):
    row = asked(cli, toy, "select unnest(interaction_ids) id from toy_assistant_sft_dataset where split = 'test' limit 1")
    done = cli("why", row["id"], "--lake", toy.lake)
    assert "held out (test): no weights hold it" in done.stdout
    assert "holds it" not in done.stdout


@pytest.mark.parametrize("rule", ["near_duplicate", "exact_duplicate", "contaminated", "truncated", "error"])
def test_a_dropped_row_says_by_which_rule(toy, cli, rule):
    row = asked(cli, toy, f"select interaction_id id, kept_id from decisions where rule = '{rule}' and not kept limit 1")
    said = cli("why", row["id"], "--lake", toy.lake).stdout
    assert f"by the rule {rule}" in said
    assert "weights of" not in said
    if row["kept_id"]:
        assert row["kept_id"][:16] in said


def test_a_line_in_quarantine_and_one_that_never_was(toy, cli):
    statement = "select source_uri uri, source_row line, error_code code from quarantine where source_row > 0 limit 1"
    row = asked(cli, toy, statement)
    assert row["code"] in cli("why", f"{row['uri']}:{row['line']}", "--lake", toy.lake).stdout
    said = cli("why", f"{row['uri']}:987654", "--lake", toy.lake, check=1).stderr
    assert "no record at line 987654" in said and "Traceback" not in said
    assert "has the id nothing-like-it" in cli("why", "nothing-like-it", "--lake", toy.lake, check=1).stderr
