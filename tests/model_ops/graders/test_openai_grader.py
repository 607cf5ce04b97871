"""Graders in OpenAI's JSON form, and the similarities of texts that they name."""

import json
import math

import pytest
from judge_server import completion, judge_server

from model_ops.graders import AskedGroup, GradedAnswer, Grader, GraderSettings
from model_ops.graders.functions import completion_form
from model_ops.graders.openai_grader import common_subsequence, formula_problem, similarity
from model_ops.jobs import ModelError

EXACT = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{ item.answer }}", "operation": "eq"}


def grades(folder, grader, *texts, judge=None, calls=(), **columns):
    (folder / "grader.json").write_text(json.dumps(grader))
    part = {"by": str(folder / "grader.json"), **({"judge": judge} if judge else {})}
    messages = [{"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})} for text in texts]
    answers = [GradedAnswer(text, message) for text, message in zip(texts, messages, strict=True)]
    with Grader(GraderSettings.model_validate({"parts": {"theirs": part}}), "rft.grader") as made:
        ((*found,),) = made.grade([AskedGroup("row-1", [{"role": "user", "content": "q"}], None, columns, answers)])
    return found


def values(*given, **columns):
    return [each.value for each in grades(*given, **columns)]


def test_a_text_names_a_file_and_a_recipe_part_keeps_it():
    settings = GraderSettings.model_validate("a/grader.json")
    assert settings.files == ["a/grader.json"] and GraderSettings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize(
    ("operation", "found"), [("eq", [1, 0, 0]), ("ne", [0, 1, 1]), ("like", [1, 1, 0]), ("ilike", [1, 1, 1])]
)
def test_checks_of_texts(tmp_path, operation, found):
    assert values(tmp_path, EXACT | {"operation": operation}, "Oslo", "in Oslo", "in oslo", answer="Oslo") == found


def test_templates_reach_into_rows_and_answers(tmp_path):
    call = {"function": {"name": "area", "arguments": "{}"}}
    grader = EXACT | {"input": "{{sample.output_json.list[1].x}} {{ sample.output_tools[0].function.name }} {{item.n}}"}
    assert values(tmp_path, grader, '{"list": [1, {"x": 2.5}]}', calls=[call], answer="2.5 area 3", n=3) == [1.0]
    assert values(tmp_path, grader, "no JSON", calls=[call], answer="2.5 area 3", n=3) == [0.0], (
        "the answer lacks what is asked"
    )
    (lacking,) = grades(tmp_path, EXACT, "Oslo", other=1)
    assert (lacking.value, lacking.problem) == (None, "theirs: names item.answer, which is not there; its item has other")


def test_python_runs_in_the_sandbox_and_a_failure_is_no_grade(tmp_path):
    source = "def grade(sample, item):\n    if item['n'] == 0: 1 / 0\n    return len(sample['output_text']) / item['n']"
    assert values(tmp_path, {"type": "python", "source": source}, "abc", n=6) == [0.5]
    (failed,) = grades(tmp_path, {"type": "python", "source": source}, "abc", n=0)
    assert (failed.value, failed.problem) == (None, "theirs: raised ZeroDivisionError in line 2")
    reads = "def grade(sample, item):\n    return float(open('/etc/passwd').read() != '')"
    (refused,) = grades(tmp_path, {"type": "python", "source": reads}, "abc")
    kinds = ("PermissionError", "FileNotFoundError")  # the second in a root of the sandbox's own
    assert refused.problem in [f"theirs: raised {kind} in line 2" for kind in kinds]


def test_multi_calculates_its_formula_and_stores_its_parts(tmp_path):
    close = EXACT | {"type": "text_similarity", "evaluation_metric": "rouge_1"}
    multi = {"type": "multi", "graders": {"a": EXACT, "b": close}, "calculate_output": "0.25 * a + max(b, 0.1) ** 2 / 2"}
    right, wrong = grades(tmp_path, multi, "the Oslo", "Bergen", answer="the Oslo")
    assert (right.value, right.parts) == (0.75, {"theirs": 0.75, "theirs.a": 1.0, "theirs.b": 1.0})
    assert math.isclose(wrong.value, 0.005)
    (none,) = grades(tmp_path, multi | {"calculate_output": "1 / a"}, "x", answer="y")
    assert (none.value, none.problem) == (None, "theirs: has a formula without a value for these grades")


@pytest.mark.parametrize(
    ("formula", "problem"),
    [
        ("a + 2 * b - min(a, 1)", None),
        ("sqrt(a) / b", None),
        ("__import__('os').system('true')", "Call"),
        ("a.__class__", "Attribute"),
        ("(lambda: 1)()", "Call"),
        ("[a for a in b]", "ListComp"),
        ("c + a", "c"),
        ("a if b else 1", "IfExp"),
        ("'x' * 9", "Constant"),
        ("True", "Constant"),
        ("a +", "can be read"),
        (None, "can be read"),
        ("min(", "can be read"),
        ("(" * 5_000 + "a" + ")" * 5_000, "can be read"),
    ],
)
def test_a_formula_has_numbers_names_and_arithmetic_only(formula, problem):
    found = formula_problem(formula, {"a": 1, "b": 1})
    assert found is None if problem is None else problem in found


@pytest.mark.parametrize(
    ("grader", "said"),
    [
        (EXACT | {"operation": "equals"}, "has an operation that is none of eq, ne, like, ilike"),
        (EXACT | {"type": "text_similarity", "evaluation_metric": "cosine"}, "has the metric cosine, and only fuzzy_match"),
        ({"type": "label_model"}, "has the type label_model, and only string_check"),
        ({"type": "score_model", "input": []}, "asks a model: name its server"),
        ({"type": "python"}, "needs `source`"),
        ({"type": "multi", "graders": {"m": {"type": "multi", "graders": {"a": EXACT}}}}, "none of them a `multi`"),
        ({"type": "multi", "graders": {"a": EXACT}, "calculate_output": "b"}, "has a formula with b"),
        ([1], "has the type None"),
    ],
)
def test_what_cannot_be_had_is_refused_when_the_file_is_read(tmp_path, grader, said):
    with pytest.raises(ModelError, match=f"the grader grader.json.* {said}"):
        grades(tmp_path, grader, "x")


def test_a_score_model_is_asked_at_the_recipes_server(tmp_path):
    grader = {
        "type": "score_model",
        "model": "theirs",
        "range": [0, 10],
        "sampling_params": {"temperature": 0.5},
        "input": [{"role": "user", "content": "Score {{sample.output_text}} for {{item.n}}"}],
    }

    def answer(body, number):
        asked = body["messages"][0]["content"]
        assert (body["model"], body["temperature"]) == ("mine", 0.5) and asked.endswith("for 3")
        return completion(json.dumps({"result": 7 if "good" in asked else 11}))

    with judge_server(answer) as (address, _):
        good, beyond = grades(tmp_path, grader, "good", "bad", judge={"base_url": address, "model": "mine"}, n=3)
    assert (good.value, beyond.value, beyond.problem) == (7.0, None, "theirs: the judge gave no score in its range")


def test_a_judge_that_takes_no_such_request_ends_the_step_with_its_status(tmp_path):
    grader = {"type": "score_model", "model": "any", "input": [{"role": "user", "content": "{{sample.output_text}}"}]}
    said = r"^the judge at .* refuses mine \(HTTP 400\): check .* of rft\.grader\.parts\.theirs\.judge"
    with judge_server(lambda *_: (400, "user text")) as (address, _), pytest.raises(ModelError, match=said) as refusal:
        grades(tmp_path, grader, "good", judge={"base_url": address, "model": "mine"})
    assert "user text" not in str(refusal.value)


def test_similarities_are_those_of_their_definitions():
    def table(one, two):
        row = [0] * (len(two) + 1)
        for each in one:
            before = row[:]
            for place, other in enumerate(two, start=1):
                row[place] = before[place - 1] + 1 if each == other else max(row[place - 1], before[place])
        return row[-1]

    for one, two in (("kitten", "sitting"), ("", "a"), ("abcabba" * 20, "cbabac" * 30), ("aaa", "aaa")):
        assert common_subsequence(one, two) == table(one, two)
    text, reference = "the cat sat on the mat", "the cat is on the mat"
    expected = {"rouge_1": 5 / 6, "rouge_2": 3 / 5, "rouge_l": 5 / 6, "gleu": 9 / 18, "fuzzy_match": 2 * 20 / 43}
    expected["bleu"] = (5 / 6 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25
    assert {each: round(similarity(each, text, reference), 9) for each in expected} == {
        each: round(value, 9) for each, value in expected.items()
    }
    assert similarity("bleu", "the cat", "the cat sat") == pytest.approx(math.exp(1 - 3 / 2)), "too short"
    for metric in (*expected, "rouge_3"):
        assert similarity(metric, "a b c d e", "a b c d e") == pytest.approx(1) and similarity(metric, "xyz", "pqrs") == 0


BESIDE = """
def text_of(c): return c[-1].get("content")
class Base:
    def __call__(self, completions, **kw): return [self.one(c) for c in completions]
"""
MESSAGES = {
    "a key": "def f(completions, **k): return [len(c[0]['content']) for c in completions]",
    "after assignments": "def f(completions, **k):\n    r = []\n    for i, (c, a) in enumerate(zip(completions, k['answer'])):\n"
    "        m = c[-1]\n        r.append(float(m['content'] == a))\n    return r",
    "prompts": "def f(prompts, completions, **k):\n    q = prompts[0][-1]['content']\n    return [1.0] * len(completions)",
    "get": "def f(completions, **k): return [len(m.get('content')) for c in completions for m in c]",
    "a pattern": "def f(completions, **k):\n    for c in completions:\n        match c[0]:\n            case {'content': t}: pass",
    "a name of a key": "KEY = 'content'\ndef f(completions, **k): return [len(c[0][KEY]) for c in completions]",
    "keyword arguments": "def f(**k): return [len(c[0]['content']) for c in k['completions']]",
    "popped": "def f(**k):\n    cs = k.pop('completions')\n    return [len(c[0]['content']) for c in cs]",
    "a file beside": "from beside import text_of as t\ndef f(completions, **k): return [len(x) for x in map(t, completions)]",
    "a module beside": "import beside\ndef f(completions, **k): return [len(beside.text_of(c)) for c in completions]",
    "a base class": "from beside import Base\nclass R(Base):\n    def one(self, c): return len(c[0]['content'])\nf = R()",
    "a method": "class R:\n    def __init__(self, n): self.n = n\n    def __call__(self, completions, **k):\n"
    "        return [self.one(c) for c in completions]\n    def one(self, c): return float(len(c[0]['content']))\nf = R(3)",
    "async": "import asyncio\nasync def f(completions, **k):\n    async def one(c): return len(c[-1]['content'])\n"
    "    return await asyncio.gather(*[one(c) for c in completions])",
    "a lambda": "f = lambda completions, **k: [len(c[0]['content']) for c in completions]",
    "a key function": "def f(completions, **k):\n    best = max(completions, key=lambda c: len(c[0]['content']))\n    return best",
    "partial": "from functools import partial\ndef g(completions, n): return [len(c[0]['content']) for c in completions]\n"
    "f = partial(g, n=3)",
    "a factory": "def make(n):\n    def g(completions, **k): return [len(c[0]['content']) > n for c in completions]\n"
    "    return g\nf = make(3)",
    "a pool": "from concurrent.futures import ThreadPoolExecutor\ndef s(c, a): return c[0]['content'] == a\n"
    "def f(completions, answer, **k):\n    with ThreadPoolExecutor() as e: return list(e.map(s, completions, answer))",
    "either": "def f(completions, **k): return [c if isinstance(c, str) else c[0]['content'] for c in completions]",
    "an annotation": "def f(completions: list[list[dict[str, str]]], **k): return [unknown(c) for c in completions]",
    "TRL's own": "from trl.rewards import think_format_reward as f",
    "TRL's module": "import trl.rewards\ndef f(completions, **k): return trl.rewards.accuracy_reward(completions)",
    "calls TRL's own": "from trl.rewards import accuracy_reward\ndef f(completions, **k): return accuracy_reward(completions)",
}
TEXTS = {
    "lengths": "def f(completions, **k): return [-abs(20 - len(c)) for c in completions]",
    "another function of the file": f"{MESSAGES['a lambda'].replace('f =', 'g =')}\n"
    "def f(completions, **k): return [len(c.split()) for c in completions]",
    "JSON in the text": "import json\ndef f(completions, **k): return ['x' in json.loads(c)['content'] for c in completions]",
    "a judge's request": "import requests\ndef f(prompts, completions, **k):\n    r = []\n    for p, c in zip(prompts, completions):\n"
    "        said = requests.post('u', json={'messages': [{'role': 'user', 'content': p + c}]}).json()\n"
    "        r.append(float(said['choices'][0]['message']['content']))\n    return r",
    "a column of messages": "def f(completions, chat, **k): return [c == m[0]['content'] for c, m in zip(completions, chat)]",
    "a letter": "def f(completions, **k): return [c[0] == 'A' for c in completions]",
    "not parsed": "def f(completions:",
}


@pytest.mark.parametrize(
    ("form", "source"),
    [*(("messages", each) for each in MESSAGES.values()), *(("text", each) for each in TEXTS.values())],
    ids=[*MESSAGES, *TEXTS],
)
def test_the_form_is_what_the_source_reads(tmp_path, form, source):
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "rewards.py").write_text(source)
    assert completion_form(tmp_path / "rewards.py", "f") == form
