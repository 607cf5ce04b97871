"""Values that right answers and answers of models come to, in the spellings that people and models use."""

import json
import time
from fractions import Fraction

import pytest

from model_ops.tasks import NumberItem, final_number, logged_number
from model_ops.tasks.number_value import MOST_CHARACTERS, said_number
from model_ops.tasks.text_match import score_number
from tests.model_ops.number_rows import NO_VALUES, ROWS


@pytest.mark.parametrize(("right", "answer", "equal"), ROWS)
def test_an_answer_is_compared_with_what_is_right(right, answer, equal):
    assert final_number(right) is not None
    assert score_number(NumberItem(suite="s", item_id="1", messages=[], answer=right), answer) == equal


@pytest.mark.parametrize("text", NO_VALUES)
def test_a_right_answer_that_is_not_one_value_is_none(text):
    assert final_number(text) is None
    assert score_number(NumberItem(suite="s", item_id="1", messages=[], answer=text), text) == 0


@pytest.mark.parametrize("text", ["18", "-0.125", "1/3", "50%", "(3, 4)", "5 or -5", "1000000", "0"])
def test_a_value_is_written_as_it_is_read(text):
    assert str(final_number(text)) == text and str(final_number(str(final_number(text)))) == text


def test_the_public_solutions_keep_their_numbers(shared):
    lines = (shared / "data/gsm8k_test.jsonl").read_text().split("\n")
    answers = [json.loads(line)["answer"] for line in lines if line]
    wanted = [Fraction(each.rpartition("####")[2].strip().replace(",", "")) for each in answers]
    assert [final_number(each).parts for each in answers] == [(each,) for each in wanted]
    ended = [said_number(each.partition("####")[0], final_number(each)) for each in answers]
    assert sum(each is not None and each.parts == (number,) for each, number in zip(ended, wanted, strict=True)) > 1_150


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Tom has 3 and buys 4. So he has 7 apples.", "7"),
        ("It is 4/7.", "4/7"),
        ("We add 10 and 10 and get 20. See example 7.", "None"),
        (r"3 + 4 = \boxed{7}, as in 2", "7"),
        ("between 3 and 5, or so: 3 to 5", "None"),
        ("no figure", "None"),
    ],
)
def test_a_logged_answer_is_read_at_its_mark_or_in_its_last_sentence(text, value):
    assert str(logged_number(text)) == value


@pytest.mark.parametrize(
    "part",
    ["1", "1 ", "1,", "- ", "-1", "(1", "½", "1/2", "1^", "one and ", "1 and ", "1 000 ", r"\boxed{", r"\frac{", "answer is ", "####", "{", "<<", "*1", "x=1 or ", "1,-", "1/2,", "-1,", "#### 2 m\n", "[1] ", "1≈", "1=", "\n[1] ", r"\boxed{a + "],
)  # fmt: skip
def test_a_long_text_takes_little_time(part):
    text, wanted = part * (100_000 // len(part)), final_number("18")
    began_s = time.process_time()
    said_number(text, wanted)
    final_number(text)
    assert time.process_time() - began_s < 1


def test_the_end_of_a_long_text_is_read():
    text = "2 and 2 are 4. " * MOST_CHARACTERS + "So it is 18."
    assert str(said_number(text, final_number("18"))) == "18" and final_number(text) is None
