"""The engine of rollouts in a real vLLM on the CPU: log-probabilities of its float32 are the model's own, and each sync brings
the model's present weights, whole or as an adapter, to prompts that the server has cached."""

from contextlib import ExitStack

import pytest
import torch

from model_ops.jobs import Progress
from model_ops.models.model_directory import end_of_text_ids, load_tokenizer
from model_ops.operations.rollout_engine import open_engine
from model_ops.parallel import World
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.training.tuning import load_to_tune
from tests.model_ops.tiny_models import write_target

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]

EXACT, STALE = 1e-4, 1e-2
PROMPTS = 4


def largest_gap(model, prompts, said, temperature):
    """Largest difference of a token's log-probability by the engine and by the model."""
    found = 0.0
    for prompt, answer in zip(prompts, said, strict=True):
        ids = torch.tensor([[*prompt.tolist(), *answer.tokens.tolist()]])
        with torch.no_grad():
            logs = (model(ids[:, :-1]).logits[0, len(prompt) - 1 :].float() / temperature).log_softmax(-1)
        own = logs.gather(1, ids[0, len(prompt) :, None])[:, 0]
        found = max(found, float((own - torch.tensor(answer.log_probs)).abs().max()))
    return found


@pytest.mark.parametrize("method", ["lora", pytest.param("full", marks=pytest.mark.thorough)])
def test_each_sync_brings_the_present_weights(python, tmp_path, monkeypatch, method):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_target(tmp_path / "model", layers=2, vocab_size=300, head_dim=32, tied=method == "lora")
    settings = RftSettings.model_validate(
        {
            "grader": "verifier",
            "engine": "vllm",
            "server": {"python": str(python), "arguments": ["--enforce-eager"]},
            "max_length": 128,
            "max_new_tokens": 12,
            "precision": "float32",
            "temperature": 0.7,
            "method": method,
        }
    ).resolved()
    model, _ = load_to_tune(tmp_path / "model", settings, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    # longer than the blocks of the server's cache, which it would read again
    prompts = [torch.randint(3, 290, (100,), generator=generator).numpy().astype("int32") for _ in range(PROMPTS)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ends, names = end_of_text_ids(tmp_path / "model"), list("abcd")
    with ExitStack() as opened:
        tokenizer = load_tokenizer(tmp_path / "model")
        given = settings, model.eval(), tokenizer, tmp_path / "model", ends, tmp_path / "work"
        engine = open_engine(*given, opened, Progress(), World.alone(torch.device("cpu")))
        assert engine.exact
        for version in range(4):
            engine.sync(version)
            said = engine.sample(prompts, names, seed=0)
            after = largest_gap(model, prompts, said, 0.7)
            assert after < EXACT, f"version {version}"
            assert {each.version for each in said} == {version}
            assert all(each.ended == (each.tokens[-1] in ends) for each in said)
            with torch.no_grad():
                for parameter in trained:
                    parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
            before = largest_gap(model, prompts, engine.sample(prompts, names, seed=0), 0.7)
            print(f"{method}, version {version}: {after:.1e} with the weights of this version, {before:.1e} with the next ones")
            assert before > STALE
        assert len(list((tmp_path / "work/policy").iterdir())) == 2
