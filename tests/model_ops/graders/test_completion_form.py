"""Which form of completions a reward function's source reads."""

import pytest

from model_ops.graders.functions import completion_form

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
