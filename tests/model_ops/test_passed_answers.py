"""Which passed answers say least about their prompt, by a tiny model's likelihoods."""

import pytest
import torch
from tiny_models import write_target
from transformers import AutoModelForCausalLM

from model_ops.evaluation.reward_change import about_prompts
from model_ops.jobs.job import Progress
from model_ops.models import load_tokenizer


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    home = tmp_path_factory.mktemp("base") / "model"
    write_target(home, layers=2, seed=3, max_position_embeddings=512)
    return home


def log_p(base, answer, prompt):
    """Of the prompt's tokens after the answer, the mean."""
    tokenizer, model = load_tokenizer(base), AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before, asked = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (answer, prompt))
    before += tokenizer("\n\n", add_special_tokens=False)["input_ids"]
    logits = model(torch.tensor([before + asked])).logits[0].log_softmax(-1)
    return sum(logits[len(before) + at - 1, token].item() for at, token in enumerate(asked)) / len(asked)


def test_an_answer_is_compared_with_those_to_other_prompts(base):
    passed = {"a": ("two and two", "it is four"), "b": ("say hello", "hello"), "c": ("name a city", "Paris")}
    found = {each.row_id: each for each in about_prompts(base, passed, Progress())}
    answers = ["it is four", "hello", "Paris"]
    for place, (name, (prompt, _)) in enumerate(passed.items()):
        own, *others = (log_p(base, answers[(place + other) % 3], prompt) for other in range(3))
        assert found[name].given == pytest.approx(own, abs=1e-4)
        assert found[name].gain == pytest.approx(own - sum(others) / 2, abs=1e-4)
    assert [each.gain for each in about_prompts(base, passed, Progress())] == sorted(each.gain for each in found.values())


def test_the_same_answer_to_every_prompt_says_nothing(base):
    passed = {name: (prompt, "Hope this helps.") for name, prompt in (("a", "two and two"), ("b", "say hello"))}
    assert [each.gain for each in about_prompts(base, passed, Progress())] == pytest.approx([0.0, 0.0], abs=1e-5)
    assert about_prompts(base, {"a": ("two and two", "four")}, Progress()) == [] and about_prompts(base, {}, Progress()) == []
