"""The engine that asks vLLM servers: token ids in, token ids out, with the sampler's log-probability of each.

Weights pass by files that the servers read; an adapter is loaded under a name that was never used, because a server goes on
with the weights of a name that it knows. The cache of prompts is salted by the sync, so keys and values of other weights are
never read. Routes are those of vLLM 0.32 (vllm/entrypoints/serve/dev), which ask for no key: servers belong on the loopback."""

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from model_ops.answers.rollout import Sampled, SamplingSettings, Tokens
from model_ops.completions import NEUTRAL, Endpoint, EndpointSettings
from model_ops.jobs import ModelError

CONNECTIONS, TIMEOUT_S, RETRIES = 256, 3_600, 2
HELD = 2
"""Newest versions whose files and adapters are kept: the one that samples, and the one before."""
LOADS_ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
DEVELOPS = "VLLM_SERVER_DEV_MODE=1"


class VllmServer:
    """Client of one server; thread-safe. Raises ModelError for a server that cannot be learnt from. adapters: whether it is to
    take adapters. longest: most tokens of prompt and answer."""

    def __init__(self, url: str, adapters: bool, longest: int):
        self.url = url.removesuffix("/v1")
        served = EndpointSettings(
            base_url=self.url, model="policy", concurrency=CONNECTIONS, timeout_s=TIMEOUT_S, retries=RETRIES
        )
        self._endpoint = Endpoint(served, "rft.engine", through_proxy=False, tail="; finished answers are kept")
        about = self.asked("GET", "/server_info?config_format=json", wants=f"start vLLM 0.32 or newer with {DEVELOPS}")
        try:
            config, environment = about["vllm_config"], about["vllm_env"]
            model = config["model_config"]
            name, mode, self.longest = model["served_model_name"], model["logprobs_mode"], int(model["max_model_len"])
            self.model = name if isinstance(name, str) else name[0]
            self.on_cpu = "cpu" in str(config["device_config"])
            self.exact = self.on_cpu and "float32" in str(model["dtype"])
            has_adapters = config.get("lora_config") is not None
            takes = has_adapters and bool(environment.get(LOADS_ADAPTERS))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ModelError(f"rft.engine: {url} does not describe itself as vLLM 0.32 does: start that version") from error
        if mode != "processed_logprobs":
            raise ModelError(
                f"rft.engine: {url} gives log-probabilities before the temperature ({mode}): start it with "
                "--logprobs-mode processed_logprobs"
            )
        if adapters and not takes:
            raise ModelError(
                f"rft.engine: {url} loads no adapters while it runs, and method lora learns one: start it with "
                f"{LOADS_ADAPTERS}=1, --enable-lora, --max-loras 3 and --max-lora-rank, or train with method full"
            )
        if has_adapters and not adapters:  # vLLM renames the layers under adapters, so whole weights find no place there
            raise ModelError(
                f"rft.engine: {url} has adapters, and gets whole weights here: start it without --enable-lora, or train with "
                "method lora in one process"
            )
        if self.longest < longest:
            raise ModelError(
                f"rft.engine: {url} takes {self.longest} tokens, and rft.max_length is {longest}: start it with "
                f"--max-model-len {longest}, or lower rft.max_length"
            )

    def load(self, directory: Path) -> None:
        """Replaces the server's weights by those of a model directory, which the server must be able to read."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}}
        self.asked("POST", "/collective_rpc", body, f"it must serve a model of the same shape, and see {directory}")

    def load_adapter(self, name: str, directory: Path) -> None:
        body = {"lora_name": name, "lora_path": str(directory)}
        self.asked(
            "POST", "/v1/load_lora_adapter", body, f"it must serve the base model with room for the rank, and see {directory}"
        )

    def unload_adapter(self, name: str) -> None:
        """A server that does not know it any more is left alone."""
        with suppress(ModelError):
            self.asked("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def answer(self, body: dict[str, Any]) -> tuple[list[int], list[float], bool]:
        """(tokens, log-probabilities, whether an end token came) of a completion. Raises ModelError for a reply without them,
        to another prompt, or that something else ended."""
        said = self.asked("POST", "/v1/completions", body)
        try:
            choice = said["choices"][0]
            tokens, reason, seen = choice["token_ids"], choice["finish_reason"], choice["prompt_token_ids"]
            logs = [np.nan if each is None else float(each) for each in choice["logprobs"]["token_logprobs"]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ModelError(
                f"rft.engine: {self.url} gives no token ids with log-probabilities: start vLLM 0.32 or newer"
            ) from error
        ended = bool(tokens) and tokens[-1] in body["stop_token_ids"]
        if seen != body["prompt"] or len(logs) != len(tokens) or not (ended or reason == "length"):
            raise ModelError(
                f"rft.engine: {self.url} did not answer the {len(body['prompt'])} tokens that it was asked (it read "
                f"{len(seen)}, end {reason!r}): switch off whatever changes or stops requests at that server"
            )
        return tokens, logs, ended

    def asked(self, method: str, path: str, body: dict[str, Any] | None = None, wants: str = "") -> Any:
        """The reply's JSON, or its text. wants: what the server must be for this. Raises ModelError if it refuses."""
        content = self._endpoint.content(method, path, body, wants)
        try:
            return json.loads(content)
        except ValueError:
            return content.decode(errors="replace")

    def close(self) -> None:
        self._endpoint.__exit__()


class VllmEngine:
    """An Engine over servers that hold the same model; the answers to one prompt come from one of them. write: writes the
    policy's present weights into a directory: an adapter in PEFT's format with adapters, else a model. folder: for them."""

    def __init__(
        self,
        servers: Sequence[VllmServer],
        write: Callable[[Path], None],
        folder: Path,
        eos_ids: Collection[int],
        settings: SamplingSettings,
        adapters: bool,
    ):
        self.servers, self.eos_ids, self.settings = servers, sorted(eos_ids), settings
        self._write, self._folder, self._adapters = write, folder, adapters
        self._run, self._syncs, self._version = secrets.token_hex(4), 0, 0
        self._held: list[str] = []
        if folder.exists():  # of a run that was killed
            shutil.rmtree(folder)

    @property
    def exact(self) -> bool:
        return all(server.exact for server in self.servers)

    def sync(self, version: int) -> None:
        """As Engine.sync. The directory appears whole under its name. Raises ModelError if a server does not take it."""
        self._syncs, self._version = self._syncs + 1, version
        name = f"policy-{self._run}-{self._syncs}"
        directory, partial = self._folder / name, self._folder / ".writing"
        partial.mkdir(parents=True)
        self._write(partial)
        partial.rename(directory)
        self._held.append(name)
        for server in self.servers:
            if self._adapters:
                server.load_adapter(name, directory.absolute())
            else:
                server.load(directory.absolute())
        while len(self._held) > HELD:
            old = self._held.pop(0)
            for server in self.servers if self._adapters else ():
                server.unload_adapter(old)
            shutil.rmtree(self._folder / old)

    def sample(self, prompts: Sequence[Tokens], names: Sequence[str], seed: int) -> list[Sampled]:
        """As Engine.sample, settings.batch_size requests at a time. Raises ModelError for a server that does not answer."""
        places: dict[bytes, int] = {}
        for prompt in prompts:
            places.setdefault(prompt.tobytes(), len(places))

        def ask(prompt: Tokens, name: str) -> Sampled:
            server = self.servers[places[prompt.tobytes()] % len(self.servers)]
            if len(prompt) >= server.longest:
                raise ModelError(f"a prompt has {len(prompt)} tokens; {server.url} takes 1 to {server.longest - 1}")
            tokens, logs, ended = server.answer(self._request(server, prompt, f"{seed}:{name}"))
            return Sampled(np.array(tokens, np.int32), np.array(logs, np.float32), self._version, ended)

        with ThreadPoolExecutor(min(self.settings.batch_size, CONNECTIONS)) as threads:
            return list(threads.map(ask, prompts, names))

    def _request(self, server: VllmServer, prompt: Tokens, name: str) -> dict[str, Any]:
        """The server's own end tokens and defaults count for nothing. name: decides the random numbers."""
        return {
            **NEUTRAL,
            "model": self._held[-1] if self._adapters else server.model,
            "prompt": prompt.tolist(),
            "max_tokens": min(self.settings.max_new_tokens, server.longest - len(prompt)),
            "temperature": self.settings.temperature,
            "frequency_penalty": 0,
            "presence_penalty": 0,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": self.eos_ids,
            "ignore_eos": True,
            "seed": int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1,
            "cache_salt": f"{self._run}-{self._syncs}",
        }

    def close(self) -> None:
        """Unloads the adapters, and ends the connections."""
        for server in self.servers:
            for name in self._held if self._adapters else ():
                server.unload_adapter(name)
            server.close()
