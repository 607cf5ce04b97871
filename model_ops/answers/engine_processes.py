"""Engines in processes of their own, which sample while the model is in training. Together they are one Engine.

One that ends is started again and asked for what it has not given; MOST_ENDS times in a row without an answer stop the
training. After each exchange of weights the engine reads a probe; where both sides compute in float32 on a CPU, a difference to
the trainer above `most_gap` is an error, and no answer since then is returned."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from model_ops.answers.in_process import InProcessEngine
from model_ops.answers.rollout import Sampled, SamplingSettings, Tokens
from model_ops.decoding import Completion
from model_ops.documents import Document, to_batches
from model_ops.files import renamed_when_complete
from model_ops.jobs import ModelError, Stopped
from model_ops.losses import token_nll
from model_ops.machine import Precision, products_in
from model_ops.training import TuningSettings, load_to_tune

PROBE = "probe."


@dataclass(frozen=True)
class PolicyProbe:
    """A text and what the model in training says of it, so that an engine can check the weights that it took."""

    ids: Int[Tensor, " tokens"]
    log_probs: Float[Tensor, " tokens-1"]
    """Of each token but the first one."""


class PolicyFile:
    """One file, written by one process and read by others."""

    def __init__(self, path: Path):
        self.path = path
        self._seen: tuple[int, int] | None = None

    def write(self, model: nn.Module, version: int, probe: PolicyProbe) -> None:
        """version: optimizer steps. Raises ModelError where the disk takes no more."""
        tensors = {name: each.detach().cpu().contiguous() for name, each in model.named_parameters() if each.requires_grad}
        tensors |= {f"{PROBE}{name}": each.cpu().contiguous() for name, each in vars(probe).items()}
        try:
            with renamed_when_complete(self.path) as temporary:
                save_file(tensors, temporary, metadata={"version": str(version)})
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{self.path}: the weights of step {version} cannot be written for the engines ({error}): free disk space, and "
                "the same command continues"
            ) from error

    @torch.no_grad()
    def read_into(self, model: nn.Module) -> tuple[int, PolicyProbe] | None:
        """Takes the file's weights into the model. Raises ModelError for weights that the model does not have."""
        state = self.path.stat()
        if (seen := (state.st_ino, state.st_mtime_ns)) == self._seen:
            return None
        with safe_open(self.path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            version = int(file.metadata()["version"])
        probe = PolicyProbe(**{name: tensors.pop(f"{PROBE}{name}") for name in ("ids", "log_probs")})
        own = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if own.keys() != tensors.keys():
            raise ModelError(f"{self.path} has other weights than the model that an engine loaded. This is a bug: report it")
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
        self._seen = seen
        return version, probe


@dataclass(frozen=True)
class EngineStart:
    """What an engine's process needs. Also the SamplingSettings of the engine."""

    base: str
    """Directory of the model that the training began with."""
    tuning: dict[str, Any]
    """TuningSettings, as JSON."""
    policy: str
    """The PolicyFile."""
    eos_ids: list[int]
    temperature: float
    max_new_tokens: int
    batch_size: int
    threads: int
    device: str


class InFlightEngine(InProcessEngine):
    """model: the one that the training began with; it takes the weights of the file. As runner of `decode` it looks for new
    weights before each forward. on_exchange: told of each exchange: version, gap (largest difference of log-probability to the
    trainer over the probe), exact (Engine.exact)."""

    def __init__(
        self,
        model: nn.Module,
        eos_ids: Collection[int],
        settings: SamplingSettings,
        policy: PolicyFile,
        on_exchange: Callable[..., None],
    ):
        super().__init__(model, eos_ids, settings)
        self._policy, self._on_exchange = policy, on_exchange

    def __getattr__(self, name: str) -> Any:
        """What else a runner has."""
        return getattr(self.runner, name)

    def forward(self, ids: Tensor, cache: Any, capture: Sequence[int] = ()) -> tuple[Tensor, Tensor | None]:
        """As Runner.forward, with the newest weights."""
        if self._exchange() and hasattr(cache, "graphs"):
            cache.graphs.clear()  # they compute with the weights before
        return self.runner.forward(ids, cache, capture)

    def answer(
        self, prompts: Sequence[Sequence[int]], names: Sequence[str], seed: int, on_answer: Callable[[int, Sampled], None]
    ) -> None:
        """Answers each prompt; on_answer hears of each answer with its prompt's place. Raises ModelError as `decode` does."""
        self._exchange()
        versions: list[list[int]] = [[] for _ in prompts]

        def note_versions(place: int, tokens: list[int], accepted: int) -> None:
            versions[place] += [self._version] * len(tokens)

        def pass_on(place: int, answer: Completion) -> None:
            each = np.array(versions[place], np.int64)
            tokens, log_probs = np.array(answer.tokens, np.int32), np.array(answer.log_probs, np.float32)
            on_answer(place, Sampled(tokens, log_probs, int(each[0]), answer.finish_reason == "stop", each))

        self._decoded(prompts, names, seed, runner=self, on_tokens=note_versions, on_answer=pass_on)

    def _exchange(self) -> bool:
        """Whether there were new weights, which are taken."""
        read = self._policy.read_into(self.model)
        if read is None:
            return False
        version, probe = read
        self.sync(version)
        self._on_exchange(version=version, gap=self._gap(probe), exact=self.exact)
        return True

    @torch.no_grad()
    def _gap(self, probe: PolicyProbe) -> float:
        """Largest difference of the engine's log-probabilities of the probe's tokens to the trainer's."""
        ids = probe.ids.to(self.runner.device)
        hidden, _ = self.runner.forward(ids[None], self.runner.new_cache(1))
        logs = (self.runner.logits(hidden[0, :-1]) / self.settings.temperature).log_softmax(dim=-1)
        return float((logs.gather(1, ids[1:, None]).squeeze(1).cpu() - probe.log_probs).abs().max())


def main() -> None:
    """Answers requests until there are no more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no reply
    start = EngineStart(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(start.threads)

    def tell(**reply: Any) -> None:
        said.write(json.dumps(reply) + "\n")

    def on_answer(place: int, answer: Sampled) -> None:
        arrays = {"tokens": answer.tokens, "log_probs": answer.log_probs, "versions": answer.token_versions}
        tell(place=place, ended=answer.ended, **{name: each.tolist() for name, each in arrays.items()})

    try:
        model, _ = load_to_tune(Path(start.base), TuningSettings(**start.tuning), torch.device(start.device))
        policy = PolicyFile(Path(start.policy))
        engine = InFlightEngine(model.eval(), start.eos_ids, start, policy, tell)
        for line in sys.stdin:
            engine.answer(**json.loads(line), on_answer=on_answer)
            tell(done=True)
    except ModelError as error:
        tell(refused=str(error))


if __name__ == "__main__":
    main()


MOST_ENDS = 3
PROBE_TOKENS = 64


class EngineProcess:
    """One engine. Its requests come from one thread, whose end ends its process."""

    COMMAND = (sys.executable, "-m", "model_ops.answers.engine_processes")

    def __init__(self, start: EngineStart, log: Path, most_gap: float):
        self._first_line, self._log, self._most_gap = json.dumps(asdict(start)) + "\n", log, most_gap
        self._process: subprocess.Popen[str] | None = None
        self.closed = False
        self.gap, self.exact = 0.0, False
        """At the last exchange of weights."""

    def begin(self) -> subprocess.Popen[str]:
        """Starts the process, if it does not run."""
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self.COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
                )
            self._send(self._first_line)
        return self._process

    def _send(self, line: str) -> None:
        stdin = None if self._process is None else self._process.stdin
        if stdin is not None:
            with suppress(BrokenPipeError):  # its output says that it has ended
                stdin.write(line)
                stdin.flush()

    def sample(self, prompts: Sequence[Tokens], names: Sequence[str], seed: int) -> list[Sampled]:
        """Answers in the order of the prompts. Raises ModelError where the engine cannot work."""
        answers: dict[int, Sampled] = {}
        ends = 0
        while len(answers) < len(prompts):
            left, before = [place for place in range(len(prompts)) if place not in answers], len(answers)
            request = {
                "prompts": [prompts[place].tolist() for place in left],
                "names": [names[place] for place in left],
                "seed": seed,
            }
            for reply in self._replies(request):
                if "gap" in reply:
                    self._check(reply)
                else:
                    place = left[reply.pop("place")]
                    answers[place] = _sampled(**reply)
            if len(answers) < len(prompts):
                self.end()
                ends = ends + 1 if len(answers) == before else 0
            if ends == MOST_ENDS:
                raise ModelError(
                    f"the engine's process ended {MOST_ENDS} times in a row without an answer: {self._log} has what it wrote; "
                    "where memory is short, lower batch_size or set max_staleness to 0"
                )
        return [answers[place] for place in range(len(prompts))]

    def _replies(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What it says up to the end of the request, or up to its own end. Raises Stopped once it is closed."""
        if self.closed:
            raise Stopped
        process = self.begin()
        self._send(json.dumps(request) + "\n")
        for line in process.stdout or ():
            reply = (
                json.loads(line) if line.endswith("\n") else {"done": True}
            )  # the process was killed in the middle of a line
            if "refused" in reply:
                raise ModelError(reply["refused"])
            if "done" in reply:
                break
            yield reply
        if self.closed:
            raise Stopped

    def _check(self, exchange: dict[str, Any]) -> None:
        self.gap, self.exact = exchange["gap"], exchange["exact"]
        if self.exact and not self.gap <= self._most_gap:
            raise ModelError(
                f"an engine that took the weights of step {exchange['version']} gives tokens log-probabilities that differ "
                f"from the model's own by up to {self.gap:.2g} (most: {self._most_gap:g}); nothing that it sampled with them "
                "was learnt. This is a bug: report it"
            )

    def end(self) -> None:
        """Ends the process, from the thread of its requests."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()

    def close(self) -> None:
        """Kills the process, from any thread; a request that waits for it raises Stopped."""
        self.closed = True
        if (process := self._process) is not None:
            process.kill()


class EngineProcesses:
    """As Engine. model: in training. precision: of its products."""

    def __init__(
        self,
        model: nn.Module,
        start: EngineStart,
        count: int,
        probe: Tokens,
        precision: Precision,
        most_gap: float,
        folder: Path,
    ):
        self._model, self._start, self._probe, self._precision = model, start, probe[:PROBE_TOKENS], precision
        self._policy, self._turn = PolicyFile(Path(start.policy)), threading.Lock()
        self.settings: SamplingSettings = start
        folder.mkdir(parents=True, exist_ok=True)
        self._engines = [EngineProcess(start, folder / f"engine-{number}.log", most_gap) for number in range(count)]
        self._threads = [ThreadPoolExecutor(1) for _ in self._engines]
        for engine, thread in zip(self._engines, self._threads, strict=True):
            thread.submit(engine.begin)

    @property
    def exact(self) -> bool:
        return all(engine.exact for engine in self._engines)

    @property
    def gap(self) -> float:
        """Largest difference of the probe at the last exchange of weights of each engine."""
        return max(engine.gap for engine in self._engines)

    def sync(self, version: int) -> None:
        """As Engine.sync: engines take the weights before their next token. Raises ModelError if the disk is full."""
        device, precision = next(self._model.parameters()).device, self._precision
        targets = np.arange(len(self._probe)) > 0
        [batch] = to_batches([Document("probe", self._probe, targets)], len(self._probe))
        self._model.eval()
        with products_in(precision, device):
            nll, _ = token_nll(self._model, batch.to(device), self._start.temperature)
        self._model.train()
        ids = torch.from_numpy(np.asarray(self._probe, np.int64))
        self._policy.write(self._model, version, PolicyProbe(ids, -nll.float()))

    def sample(self, prompts: Sequence[Tokens], names: Sequence[str], seed: int) -> list[Sampled]:
        """As Engine.sample. Raises Stopped once the engines are closed."""
        bounds = [len(prompts) * number // len(self._engines) for number in range(len(self._engines) + 1)]
        with self._turn:
            asked = [
                thread.submit(engine.sample, prompts[begin:end], names[begin:end], seed)
                for engine, thread, begin, end in zip(self._engines, self._threads, bounds, bounds[1:], strict=False)
            ]
            return [answer for each in asked for answer in each.result()]

    def close(self) -> None:
        """Ends all engines. A call that waits for them raises Stopped."""
        for engine, thread in zip(self._engines, self._threads, strict=True):
            if not engine.closed:
                engine.close()
                thread.submit(engine.end)
                thread.shutdown()


def _sampled(tokens: list[int], log_probs: list[float], versions: list[int], ended: bool) -> Sampled:
    each = np.array(versions, np.int64)
    return Sampled(np.array(tokens, np.int32), np.array(log_probs, np.float32), int(each[0]), ended, each)
