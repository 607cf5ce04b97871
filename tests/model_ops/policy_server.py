"""A server on the loopback that speaks vLLM's routes for rollouts, with a model of its own that takes weights and adapters.

    with policy_server(tmp_path / "model") as server:
        server.url, server.requests                    # as tests/loopback.py
    with policy_server(model, keeps_weights=True): ... # a fault

It samples by the project's own decoder in float32, so that its log-probabilities are exact.
"""

from __future__ import annotations

import json
import random
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from loopback import loopback
from safetensors.torch import load_file

from model_ops.decoding import decode, new_runner
from model_ops.models import load_model


@dataclass
class PolicyServer:
    base: Path
    longest: int = 64
    dtype: str = "torch.float32"
    mode: str = "processed_logprobs"
    develops: bool = True
    takes_adapters: bool = False
    keeps_weights: bool = False
    """It says that it took new weights, and answers with those that it started with."""
    loads_half: bool = False
    """It takes the new weights of every second tensor."""
    forgets_temperature: bool = False
    noise: tuple[float, ...] = (0.0,)
    """Deviation of its log-probabilities from those of its weights, in nats; of each sync, the last one of all later ones."""
    says: str | None = None
    """The reason of every end."""
    reads: int | None = None
    """It reads a prompt's first tokens only."""
    fails_at: int = 0
    """Number of the sync that it refuses."""
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    known: dict[str, Path] = field(default_factory=dict)
    """Adapters that are loaded."""

    def __post_init__(self):
        self.model, self.lock, self.syncs = load_model(self.base, attention="sdpa"), threading.Lock(), 0

    def look(self, path):
        if not path.startswith("/server_info") or not self.develops:
            return 404, {"detail": "Not Found"}
        about = {"served_model_name": "m", "logprobs_mode": self.mode, "max_model_len": self.longest, "dtype": self.dtype}
        lora = {"max_lora_rank": 16} if self.takes_adapters else None
        config = {"model_config": about, "device_config": {"device": "cpu"}, "lora_config": lora}
        return 200, {"vllm_config": config, "vllm_env": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": self.takes_adapters}}

    def answer(self, body, number):
        with self.lock:
            path = self.requests[number - 1]["path"]
            if path != "/v1/completions" and not path.startswith("/v1/unload"):
                self.syncs += 1
                if self.syncs == self.fails_at:
                    return 500, {"error": {"message": "no"}}
            if path == "/collective_rpc":
                assert body["method"] == "reload_weights"
                self.load(load_model(Path(body["kwargs"]["weights_path"])).state_dict())
                return 200, {"results": [None]}
            if path == "/v1/load_lora_adapter":
                assert body["lora_name"] not in self.known, "vLLM goes on with the old adapter"
                self.known[body["lora_name"]] = Path(body["lora_path"])
                return 200, "loaded"
            if path == "/v1/unload_lora_adapter":
                del self.known[body["lora_name"]]
                return 200, "gone"
            return 200, self.completion(body)

    def load(self, weights):
        if not self.keeps_weights:
            own = self.model.state_dict()
            taken = list(own)[::2] if self.loads_half else own
            self.model.load_state_dict({name: weights[name] if name in taken else own[name] for name in own})

    def completion(self, body):
        if body["model"] != "m":
            self.load(adapted(self.base, self.known[body["model"]]))
        prompt, temperature = body["prompt"][: self.reads], 1.0 if self.forgets_temperature else body["temperature"]
        [said] = decode(
            new_runner(load_copy(self.model)),
            [prompt],
            [str(body["seed"])],
            eos_ids=body["stop_token_ids"],
            temperature=temperature,
            max_new_tokens=body["max_tokens"],
            log_probs=True,
        )
        deviation, drawn = self.noise[min(self.syncs, len(self.noise)) - 1], random.Random(body["seed"])
        return {
            "choices": [
                {
                    "token_ids": said.tokens,
                    "prompt_token_ids": prompt,
                    "finish_reason": self.says or said.finish_reason,
                    "logprobs": {"token_logprobs": [each + drawn.gauss(0, deviation) for each in said.log_probs]},
                }
            ]
        }


def load_copy(model):
    """The runner takes a model over."""
    twin = type(model)(model.config).eval().requires_grad_(False)
    twin.load_state_dict(model.state_dict())
    return twin


def adapted(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    """The base's weights with an adapter in PEFT's format added, by its definition W + alpha / rank B A."""
    weights, config = load_model(base).state_dict(), json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, down in tensors.items():
        if name.endswith("lora_A.weight"):
            up = tensors[name.replace("lora_A", "lora_B")]
            own = name.removeprefix("base_model.model.").replace(".lora_A", "")
            weights[own] = weights[own] + config["lora_alpha"] / config["r"] * up @ down
    return weights


@contextmanager
def policy_server(base, **faults):
    server = PolicyServer(base, **faults)
    with loopback(server.answer, server.look) as (server.url, server.requests):
        yield server
