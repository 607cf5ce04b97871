"""A reward model in a real server: vLLM loads it as a pooling model, and its scores are those that were measured."""

import numpy as np
import pytest
import torch
import urllib3

from benchmarks.vllm_server import vllm_server
from model_ops.models.model_directory import load_model, load_tokenizer, save_model
from model_ops.rendering.row import Row
from model_ops.rewards.reward_model import RewardModel, scorers_tokenizer, with_score_head

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.xdist_group("vllm")]

ANSWERS = ["It is 4.", "Four, I think, but I am not sure. " * 6, "\u00c9l dice: cuatro.", "```python\nprint(2 + 2)\n```"]


@pytest.fixture(scope="module")
def rows():
    question = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 2 + 2?"}]
    return [Row(f"r{i}", [*question, {"role": "assistant", "content": answer}]) for i, answer in enumerate(ANSWERS)]


@pytest.fixture(scope="module")
def reward(shared, tmp_path_factory):
    """The house model under a head of random weights, which tells answers apart as well as a trained one."""
    folder = tmp_path_factory.mktemp("served") / "reward"
    base = shared / "models/house"
    tokenizer, model = load_tokenizer(base), load_model(base, dtype=torch.float32)
    vocab_size = model.config.vocab_size
    save_model(with_score_head(model, tokenizer, seed=1), scorers_tokenizer(tokenizer, vocab_size), folder)
    return folder


def test_its_scores_are_those_of_the_server(python, reward, rows):
    # float32 as in the server: by itself a processor with units for bfloat16 (AMX) multiplies in it, 0.01 away
    model = load_model(reward, dtype=torch.float32, classifier=True)
    grader = RewardModel(model, load_tokenizer(reward), None, "float32")
    wanted = np.array(grader.scores(rows).values)
    assert np.ptp(wanted) > 0.1
    texts = [grader.tokenizer.apply_chat_template(row.messages, tokenize=False) for row in rows]
    ids = [grader.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    words = ("--runner", "pooling", "--dtype", "float32", "--max-model-len", "1024")
    with vllm_server(python, reward.name, *words, folder=reward.parent, threads=1) as server:

        def asked(path, body):
            reply = urllib3.request("POST", f"{server.url}{path}", json={"model": reward.name, **body}, timeout=120)
            assert reply.status == 200, reply.data.decode()[:500]
            return reply.json()["data"]

        by_ids = [asked("/classify", {"input": each})[0]["probs"][0] for each in ids]
        by_messages = [
            asked("/classify", {"messages": row.messages, "add_generation_prompt": False})[0]["probs"][0] for row in rows
        ]
        pooled = [asked("/pooling", {"input": each, "task": "classify"})[0]["data"] for each in ids]
    np.testing.assert_allclose(by_ids, wanted, atol=1e-3)
    np.testing.assert_allclose(by_messages, wanted, atol=1e-3)
    np.testing.assert_allclose(np.ravel(pooled), wanted, atol=1e-3)
