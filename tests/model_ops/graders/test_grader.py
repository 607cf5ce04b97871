"""Graders by name, parts that make one grade, a judge of pairs, and graders that mostly fail."""

from __future__ import annotations

import importlib.util
import json
import math
from types import SimpleNamespace

import pytest
from judge_server import completion, judge_server

from model_ops.graders import AskedGroup, Grade, GradedAnswer, Grader, GraderSettings
from model_ops.graders.grade import Failures, combined, grades_of
from model_ops.jobs import ModelError
from model_ops.tasks import SCORERS


def answer(text, tokens=1, **message):
    return GradedAnswer(text, {"role": "assistant", "content": text, **message}, tokens)


def group(*answers, row_id="row-1", **columns):
    said = [answer(each) if isinstance(each, str) else each for each in answers]
    return AskedGroup(row_id, [{"role": "user", "content": "q"}], None, columns, said)


def grades(settings, *groups):
    settings = GraderSettings.model_validate(settings)
    with Grader(settings, "preference.on_policy.grader") as grader:
        return [[grade.value for grade in of_group] for of_group in grader.grade(groups)]


CALL = {"function": {"name": "area", "arguments": '{"base": 10}'}}
OTHER_CALL = {"function": {"name": "area", "arguments": '{"base": 11}'}}


@pytest.mark.parametrize(
    ("grader", "columns", "right", "wrong"),
    [
        ("number", {"answer": "1,250"}, "so it is 1250", "so it is 125"),
        ("number", {"ground_truth": 18}, "#### 18.0", "18 or 19"),
        ("number", {"answer": 0}, "0", "1"),
        ("verifier", {"kind": "exact", "answer": 7}, "7", "8"),
        ("number", {"chosen": {"content": "It is 4."}}, "four: 4", "five"),
        ("exact", {"solution": "Paris"}, " Paris ", "paris"),
        ("verifier", {"kind": "regex", "pattern": "^ok"}, "ok then", "no"),
        ("verifier", {"kind": "number", "answer": "3"}, "3", "4"),
        ("json_schema", {"json_schema": {"type": "object", "required": ["a"]}}, '{"a": 1}', '{"b": 1}'),
        ("json_schema", {"json_schema": {"multipleOf": 0.5}}, "1.5", "9" * 400),
        ({"parts": {"form": {"by": "regex", "pattern": "x+y"}}}, {"pattern": "never"}, "axxy", "y"),
        ("function_call", {"accepted": [{"area": {"base": [10]}}]}, answer("", tool_calls=[CALL]), "area(10)"),
        (
            "function_call",
            {"chosen": {"tool_calls": [CALL]}},
            answer("", tool_calls=[CALL]),
            answer("", tool_calls=[OTHER_CALL]),
        ),
        ("ifeval", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}, "a b", "a, b"),
        ("unit_tests", {"test": "assert f(2) == 4", "entry_point": "f"}, "def f(x): return 2 * x", "def f(x): return x"),
    ],
)
def test_checks_by_name_take_what_is_right_from_the_row(grader, columns, right, wrong):
    assert grades(grader, group(right, wrong, **columns)) == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("grader", "columns"),
    [
        ("number", {}),
        ("number", {"answer": "none"}),
        ("exact", {"answer": " "}),
        ("verifier", {"kind": "judge"}),
        ("verifier", {"kind": "record", "record": {"a": 1}}),
        ("verifier", {}),
        ("json_schema", {"json_schema": {"type": 7}}),
        ("regex", {}),
        ("unit_tests", {"entry_point": "f"}),
        ("ifeval", {"instruction_id_list": ["poetry:rhyme"], "kwargs": [{}]}),
        ("function_call", {"chosen": {"tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}}),
    ],
)
def test_a_row_with_nothing_to_verify_has_no_grade(grader, columns):
    with Grader(GraderSettings.model_validate(grader), "preference.on_policy.grader") as opened:
        [[grade]] = opened.grade([group("4", **columns)])
    assert (grade.value, grade.problem) == (None, ""), "no grade, and no failure"


def test_length_falls_from_its_bound_to_twice_as_much():
    settings = {"parts": {"brief": {"by": "length", "most_tokens": 10}}}
    assert grades(settings, group(*(answer("x", tokens) for tokens in (1, 10, 15, 20, 90)))) == [[1.0, 1.0, 0.5, 0.0, 0.0]]


def test_parts_are_stored_and_make_a_weighted_sum_or_a_product():
    parts = {"right": {"by": "number", "weight": 2}, "brief": {"by": "length", "most_tokens": 10, "weight": -1}}
    asked = group(answer("4", 15), answer("5", 5), answer="4")
    with Grader(GraderSettings.model_validate({"parts": parts}), "grader") as grader:
        ((first, second),) = grader.grade([asked])
    assert (first.value, first.parts) == (1.5, {"right": 1.0, "brief": 0.5}) and second.value == -1.0
    assert grades({"parts": parts, "combine": "product"}, asked) == [[0.5, 0.0]]


def test_a_part_that_does_not_apply_is_left_out_and_one_that_failed_leaves_no_grade():
    settings = GraderSettings.model_validate({"parts": {"a": {"by": "number"}, "b": {"by": "exact", "weight": 3}}})
    assert combined({"a": Grade(0.5), "b": Grade()}, settings).value == 0.5
    failed = combined({"a": Grade(1.0), "b": Grade(problem="raised ValueError")}, settings)
    assert (failed.value, failed.parts, failed.problem) == (None, {"a": 1.0}, "b: raised ValueError")
    both = combined({"a": Grade(problem="ended its process"), "b": Grade(problem="raised ValueError")}, settings)
    assert both.problem == "a: ended its process and b: raised ValueError"
    assert combined({"a": Grade(), "b": Grade()}, settings) == Grade()


LAX = "def lax(answer):\n    return None if len(answer) == 1 else 1 / (len(answer) - 3)\n"


def test_an_answer_that_lacks_a_part_which_another_answer_to_its_prompt_has_gets_no_grade(tmp_path):
    (tmp_path / "lax.py").write_text(LAX)
    parts = {"right": {"by": "exact"}, "lax": {"by": f"{tmp_path / 'lax.py'}:lax", "weight": -1.0}}
    asked = [group("4", "55", answer="4"), group("4", "5", answer="4"), group("4", "5"), group("4", "555", answer="4")]
    for combine, value in (("sum", 1.0), ("product", -0.0)):
        with Grader(GraderSettings.model_validate({"parts": parts, "combine": combine}), "grader") as grader:
            found = grader.grade(asked)
        assert [[grade.value for grade in of_group] for of_group in found] == [
            [None, value],
            [1.0, 0.0],
            [None, None],
            [None, None],
        ], "a part that applies to none of the answers is left out; one that fails on an answer applies to it"
        assert found[0][0] == Grade(None, {"right": 1.0}), "no failure, and the part that it has is kept"
        assert found[3][1].problem == "lax: raised ZeroDivisionError in line 2"


def test_completions_are_settings_of_functions_alone():
    GraderSettings.model_validate({"parts": {"a": {"by": "rewards.py:f", "completions": "messages"}}})
    with pytest.raises(ValueError, match="completions belongs to a function of a file"):
        GraderSettings.model_validate({"parts": {"a": {"by": "number", "completions": "text"}}})


@pytest.mark.parametrize(
    ("said", "value", "problem"),
    [
        (True, 1.0, ""),
        (None, None, ""),
        (math.inf, None, "answered a number that is not finite (NaN or infinity)"),
        (10**400, None, "answered a number that is not finite (NaN or infinity)"),
        ({"a": 1, "b": math.nan}, None, "answered a number that is not finite (NaN or infinity)"),
        ({"score": "high", "a": 1}, None, "answered dict, which is no number"),
        ([1.0], None, "answered list, which is no number"),
        ({}, None, "answered dict, which is no number"),
    ],
    ids=["bool", "none", "infinite", "large", "nan in a dict", "score is text", "list", "empty"],
)
def test_what_a_function_may_answer(said, value, problem):
    assert (Grade.of(said).value, Grade.of(said).problem) == (value, problem)


def test_a_grader_that_mostly_fails_stops_and_names_rows_only(tmp_path):
    (tmp_path / "rewards.py").write_text("def grade(answer):\n    return 1 if answer == 'fine' else int(answer)\n")
    by = f"{tmp_path}/rewards.py:grade"
    with Grader(GraderSettings.model_validate(by), "grader") as grader:
        grader.grade([group("secret", *["fine"] * 9, row_id="row-7")])
        assert grader.failures.reasons == {"grade: raised ValueError in line 2": 1} and list(grader.failures.rows) == ["row-7"]
        grader.grade([group(*["secret"] * 5, *["fine"] * 2)])
        with pytest.raises(ModelError, match=r"failed on 9 of 20 answers|failed on 1\d of 2\d answers") as raised:
            grader.grade([group(*["secret"] * 8)])
    assert "row-7, row-1" in str(raised.value) and "secret" not in str(raised.value)


def test_a_grader_that_fails_after_a_long_time_stops_as_soon():
    failures = Failures()
    for number in range(100):
        failures.count(f"row-{number}", [Grade(1.0)] * 16)
    with pytest.raises(ModelError, match=r"the grader failed on 128 of 256 answers: 128 times ended its process \(rows row-x"):
        for number in range(9):
            failures.count(f"row-x{number}", [Grade(problem="ended its process")] * 16)
    assert failures.answers == 1_600 + 8 * 16


def prefers(better):
    """A judge that says which place is better: better(text of A, text of B)."""

    def answer(body, number):
        shown = body["messages"][1]["content"]
        first, second = (shown.split(f"<{name}>\n")[1].split(f"\n</{name}>")[0] for name in "AB")
        return completion(json.dumps({"better": better(first, second)}))

    return answer


def judge_of(address):
    return {"parts": {"liked": {"by": "judge", "judge": {"base_url": address, "model": "j"}}}}


def test_a_judge_grades_by_wins_and_losses_in_both_orders():
    def better(first, second):
        return "tie" if first[0] == second[0] else "A" if first > second else "B"

    with judge_server(prefers(better)) as (address, seen):
        assert grades(judge_of(address), group("c", "a", "b", "a"), group("b1", "b2", "b1", "b1")) == [
            [1.0, -2 / 3, 1 / 3, -2 / 3],
            [0.0, 0.0, 0.0, 0.0],
        ]
        assert len(seen) == 2 * (5 + 3), "equal texts are not asked about"


def test_a_judge_that_always_prefers_a_place_is_refused():
    asked = [group("a", "b", "c", "d", row_id=str(number)) for number in range(4)]
    for place in "AB":
        with judge_server(prefers(lambda first, second, place=place: place)) as (address, _):
            assert grades(judge_of(address), *asked[:1]) == [[0.0] * 4], "six pairs say little"
            with pytest.raises(ModelError, match=f"preferred answer {place} in both orders for 24 of 24 pairs"):
                grades(judge_of(address), *asked)


def test_a_judge_that_gives_no_reply_is_named():
    with (
        judge_server(prefers(lambda *_: "neither")) as (address, _),
        pytest.raises(ModelError, match=r"no usable reply to 1 of 1 items.*preference\.on_policy\.grader\.parts\.liked\.judge"),
    ):
        grades(judge_of(address), group("a", "b"))


def test_a_judge_s_one_bad_reply_to_a_small_call_leaves_no_grade_and_stops_nothing():
    def better(first, second):
        return "A" if first < second else "B" if second < first else "neither"

    def rarely(body, number):
        return completion("?") if "a bad one" in body["messages"][1]["content"] else prefers(better)(body, number)

    with judge_server(rarely) as (address, _), Grader(GraderSettings.model_validate(judge_of(address)), "key") as grader:
        assert [grade.value for grade in grader.grade([group("a", "b", "c")])[0]] == [1.0, 0.0, -1.0]
        ((one, other),) = grader.grade([group("a bad one", "b")])
        assert one == other and (one.value, one.problem) == (None, "liked: the judge gave no usable reply")


def test_a_check_that_raises_is_named_and_is_no_grade(monkeypatch):
    monkeypatch.setitem(SCORERS, "exact", lambda item, text: 1 / len(text))
    with Grader(GraderSettings.model_validate("exact"), "key") as grader:
        ((fine, failed),) = grader.grade([group("x", "", answer="x")])
    assert (fine.value, failed.value, failed.problem) == (1.0, None, "exact: raised ZeroDivisionError")


def test_graders_that_cannot_work_are_refused(monkeypatch):
    with pytest.raises(ModelError, match="there is no reward model here"):
        grades("reward_model", group("a"))
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ModelError, match=r"parts\.liked\.judge: the environment variable JUDGE_KEY holds no key"):
        judge = {"base_url": "http://127.0.0.1:9/v1", "model": "j", "api_key_env": "JUDGE_KEY"}
        grades({"parts": {"liked": {"by": "judge", "judge": judge}}}, group("a"))
    if importlib.util.find_spec("math_verify") is None:
        with pytest.raises(ModelError, match=r"parts\.math: the grader math needs the package math-verify: pip install"):
            grades("math", group("a"))


def test_a_reward_model_scores_messages_in_its_own_deviations_and_an_answer_without_a_score_is_none():
    class Scorer:
        record = SimpleNamespace(standard=lambda score: (score - 2) / 10)

        def scores(self, rows):
            assert [row.messages[0]["content"] for row in rows] == ["q"] * 3 and rows[0].messages[-1]["role"] == "assistant"
            values = [
                None if row.messages[-1]["content"] == "long" else float(len(row.messages[-1]["content"])) for row in rows
            ]
            return SimpleNamespace(values=values, left_out={row.row_id: "too long" for row in rows})

    with Grader(GraderSettings.model_validate("reward_model"), "grader", Scorer()) as grader:
        ((one, none), (three,)) = grader.grade([group("a", "long"), group("abc")])
    assert (one.value, none.value, three.value) == (-0.1, None, 0.1) and none.problem == "reward_model: too long"


def test_settings_say_what_is_wrong():
    for given, said in (
        ("numbers", "no grader is called so"),
        ({"parts": {}}, "at least 1"),
        ({"parts": {"a": {"by": "judge"}}}, "`by: judge` asks a model: name it beside it as `judge: {base_url, model}`"),
        ({"parts": {"a": {"by": "ranking"}}}, "`by: ranking` asks a model: name it beside it"),
        ({"parts": {"a": {"by": "number", "criteria": ["x"]}}}, "criteria belong to"),
        ({"parts": {"a": {"by": "number", "weight": math.nan}}}, "weight"),
        ({"parts": {"a": {"by": "length", "pattern": "x"}}}, "pattern belongs to `by: regex`"),
        ({"parts": {"a": {"by": "number", "language": "de"}}}, "language belongs to `by: language`"),
    ):
        with pytest.raises(ValueError, match=said):
            GraderSettings.model_validate(given)


def test_math_equality(monkeypatch):
    pytest.importorskip("math_verify")
    monkeypatch.setattr("model_ops.graders.functions.WORKERS", 1)  # importing it takes seconds
    asked = [
        group(r"so \boxed{\frac{1}{2}}", r"$\frac{1}{3}$", r"\boxed{9^{9^{9^9}}}", answer="0.5"),
        group("4", answer=" "),
        group("Paris", answer="Paris"),
        group("$1 + x$", "1", answer="x + 1"),
        group(r"$2\pi$", "2", answer=r"2\pi"),
    ]
    settings = {"parts": {"right": {"by": "math", "seconds": 2}}}
    with Grader(GraderSettings.model_validate(settings), "grader") as grader:
        ((half, third, endless), (nothing,), (words,), *formulas) = grader.grade(asked)
    assert (half.value, third.value, nothing.value) == (1.0, 0.0, None)
    assert endless.value in (None, 0.0)
    assert words.value is None and words.problem.startswith("right: raised UnreadableTruth")
    assert [[each.value for each in of_group] for of_group in formulas] == [[1.0, 0.0]] * 2


def test_language_is_that_of_the_part_or_of_the_row():
    german, english = (
        "Das ist eine Antwort auf Deutsch, und sie ist lang genug.",
        "This is an answer, and it is long enough to tell.",
    )
    assert grades("language", group(german, english, "4", language="de"), group(german)) == [[1.0, 0.0, None], [None]]
    assert grades({"parts": {"a": {"by": "language", "language": "en"}}}, group(german, english)) == [[0.0, 1.0]]


def test_a_rubric_is_the_share_of_criteria_met_whatever_their_order():
    criteria = [f"has {letter}" for letter in "abcd"]

    orders = set()

    def answer(body, number):
        shown = body["messages"][1]["content"]
        orders.add(shown.split("<criteria>")[1].split("</criteria>")[0])
        text = shown.split("<answer>\n")[1].split("\n</answer>")[0]
        listed = dict(line.split(". has ") for line in shown.split("<criteria>\n")[1].split("\n</criteria>")[0].splitlines())
        return completion(
            json.dumps({place: letter in text for place, letter in listed.items()} if text != "?" else {"1": True})
        )

    with judge_server(answer) as (address, _):
        part = {"by": "rubric", "criteria": criteria, "judge": {"base_url": address, "model": "j"}}
        with Grader(GraderSettings.model_validate({"parts": {"good": part}}), "grader") as grader:
            (found,) = grader.grade([group("abcd", "ab", "d", "ac", "?")])
    assert [each.value for each in found] == [1.0, 0.5, 0.25, 0.5, None]
    assert found[2].parts == {"good": 0.25, "good.1": 0.0, "good.2": 0.0, "good.3": 0.0, "good.4": 1.0}
    assert len(orders) > 1


def test_a_ranking_asks_twice_for_a_group_in_opposite_orders():
    def answer(body, number):
        shown = body["messages"][1]["content"].split("</question>")[1]
        letters = {letter: shown.split(f"<{letter}>\n")[1][0] for letter in "ABCD" if f"<{letter}>" in shown}
        if "x" in letters.values():  # a judge that likes the first place only
            return completion(json.dumps({"order": sorted(letters)}))
        return completion(json.dumps({"order": sorted(letters, key=letters.get)}))

    with judge_server(answer) as (address, seen):
        settings = {"parts": {"best": {"by": "ranking", "judge": {"base_url": address, "model": "j"}}}}
        assert grades(settings, group("b", "a", "d", "c"), group("x1", "x2", "x3"), group("a", "a"), group("a")) == [
            [1 / 3, 1.0, -1.0, -1 / 3],
            [0.0, 0.0, 0.0],
            [0.0, 0.0],
            [None],
        ]
        assert len(seen) == 6


def test_a_dict_with_a_score_of_its_own_needs_no_other_part():
    said = [{"right": 1, "length": None, "score": 1}, {"right": 1, "length": -0.5}]
    assert [grade.value for grade in grades_of(said)] == [1.0, 0.5]
    del said[0]["score"]
    assert [grade.value for grade in grades_of(said)] == [None, 0.5]
