"""`millrace inspect` as a person would use it: a page of text, a page of HTML, one sentence for what is wrong."""

import pytest

from pipelines.demo.traffic import write_traffic


@pytest.mark.slow
def test_a_page_of_text_and_a_page_of_html(cli, tmp_path):
    write_traffic(tmp_path / "traffic", interactions=150, days=2)
    said = cli(
        "inspect", tmp_path / "traffic" / "gateway", tmp_path / "traffic" / "feedback", "--html", tmp_path / "look.html"
    ).stdout
    for words in (
        "Is it worth a drafter?",
        "Is it worth a student?",
        "openai_pairs",
        "An n-gram drafter",
        "If it were curated",
    ):
        assert words in said, words
    assert (tmp_path / "look.html").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "lake").exists()


def test_wrong_input_is_one_sentence(cli, tmp_path):
    (tmp_path / "text.jsonl").write_text("not a log\n")
    for words in (
        ["inspect", tmp_path / "nowhere"],
        ["inspect", tmp_path],
        ["inspect", tmp_path, "--format", "nonsense"],
        ["inspect", "nosuch://bucket/logs"],
    ):
        done = cli(*words, check=2)
        assert done.stderr.strip().startswith("millrace: ") and "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_report_that_cannot_be_written_is_said(cli, tmp_path):
    (tmp_path / "file").write_text("")
    done = cli("inspect", tmp_path, "--html", tmp_path / "file" / "x.html", check=1)
    assert "Traceback" not in done.stderr and "file" in done.stderr
