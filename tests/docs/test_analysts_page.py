"""docs/analysts.md: every question is asked of a finished lake, and answers with the columns that the page shows."""

import re

import pytest

import millrace
from tests.conftest import PROJECT

PAGE = PROJECT / "docs" / "analysts.md"
MAY_BE_EMPTY = {"Which answers are repeated most?", "Which evaluation items leak into the traffic?"}
"""Questions about what a small traffic may not have."""


def questions() -> dict[str, tuple[str, list[str]]]:
    """Question -> its SQL, and the columns of the answer on the page."""
    found = re.findall(
        r"^### \d+\. (.+?)\n.*?```sql\n(.*?)```\s+```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return {
        question: (sql, [name.strip() for name in shown.splitlines()[1].strip("┃").split("┃")])
        for question, sql, shown in found
    }


@pytest.mark.parametrize("question", questions())
def test_a_question_is_answered_as_the_page_shows(toy, question):
    sql, columns = questions()[question]
    name = toy.workload
    answer = millrace.open(toy.lake).sql(
        sql.replace("code-assistant", name).replace("code_assistant", name.replace("-", "_")), arrow=True
    )
    assert answer.column_names == columns
    assert answer.num_rows > 0 or question in MAY_BE_EMPTY


def test_there_are_thirty_questions_and_none_is_left_out():
    text = PAGE.read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^### (\d+)\.", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(questions()) == len(numbers) >= 30


def test_the_relations_that_the_page_names_are_there(toy):
    relations = set(millrace.open(toy.lake).sql("select split_part(relation, '(', 1) as name from relations")["name"])
    start = PAGE.read_text(encoding="utf-8").split("**What things are called.**")[1].split("A view's name")[0]
    named = set(re.findall(r"`([a-z_]+)(?:\('[A-Za-z ]+'\))?`", start)) - {
        "split",
        "version",
        "relation",
        "versions_relation",
        "math_tutor_sft_dataset",
    }
    assert {"interactions", "metrics", "log_lines_in", "why"} <= named <= relations
