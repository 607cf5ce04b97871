"""A speaker's process, and its answers as they grow.

This process never loads a model. What is said goes through pipes, and into no file and no log."""

import json
import queue
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from model_ops.drafting import LOOKUPS, NO_DRAFTING, Drafting
from model_ops.jobs import CheckFailed, Misuse
from model_ops.machine import pipe_of
from resources.artefacts import behind
from resources.catalog import CatalogError, find_artefact
from resources.endpoints import Endpoint, workloads_with_endpoints
from resources.lake import LakeLayout
from resources.launching import child_environment, python_module
from resources.manifests import ManifestError, read_manifest
from resources.releases import ReleaseError, UnknownReleaseError, find_release, read_release

ROWS_READ = 2_000


class ChatError(Misuse):
    """Nothing can be talked to under a name; the message says what there is."""


@dataclass(frozen=True)
class Speaker:
    """Who answers."""

    name: str
    """Name for people."""
    model: Path
    drafting: Drafting = NO_DRAFTING
    drafter: Path | None = None
    workload: str = ""
    release: str = ""
    digest: str = ""
    """`release`, `digest`: as logs name them."""
    system: str = ""
    """The prompt that most of its training rows begin with."""
    share: float = 0.0
    """Share of the training rows that begin with it."""

    @property
    def words(self) -> list[str]:
        """Of the process that answers (model_ops/serving/talk.py)."""
        drafter = [str(self.drafter)] if self.drafter is not None else []
        return [str(self.model), self.drafting.method, str(self.drafting.num_speculative_tokens), *drafter]


def find_speaker(lake: LakeLayout | None, text: str) -> Speaker:
    """Raises ChatError for a name that nothing has."""
    directory = Path(text).expanduser()
    if (directory / "config.json").is_file():
        return _of_model(lake, directory.resolve(), text)
    if lake is not None and (speaker := _in_lake(lake, text)) is not None:
        return speaker
    if (cached := _cached(text)) is not None:
        return Speaker(text, cached)
    there = (
        f"alias ({', '.join('/'.join(each) for each in _aliases(lake)) or 'none yet'}), release or model of {lake.place}"
        if lake
        else "directory of a model (for what a lake has, name it with --lake)"
    )
    raise ChatError(f"{text!r} is no {there}, and no Hugging Face id in the cache")


def _in_lake(lake: LakeLayout, text: str) -> Speaker | None:
    aliases = _aliases(lake)
    meant = [(text, alias) for alias in ("champion", "candidate") if (text, alias) in aliases][:1] or [
        each for each in aliases if text in (each[1], "/".join(each))
    ]
    if len(meant) > 1:
        raise ChatError(f"{text!r} is an alias of several workloads: name one of {', '.join('/'.join(each) for each in meant)}")
    for workload, alias in meant:
        return _of_release(lake, lake.artefacts("release") / workload / aliases[workload, alias], f"{alias} ")
    with suppress(UnknownReleaseError):
        return _of_release(lake, find_release(lake, text).directory)
    with suppress(CatalogError):
        directory = lake.root / find_artefact(lake, text)
        if lake.artefacts("model") not in directory.parents:
            raise ChatError(f"{text!r} is no model: name a model or a release")
        return _of_model(lake, directory, text)
    return None


def _aliases(lake: LakeLayout) -> dict[tuple[str, str], str]:
    """The version of each workload's aliases."""
    return {
        (workload, alias): version
        for workload in workloads_with_endpoints(lake)
        for alias, version in Endpoint(lake, workload).read().all().items()
    }


def _of_release(lake: LakeLayout, directory: Path, alias: str = "") -> Speaker:
    try:
        release = read_release(directory)
    except ReleaseError as error:
        raise ChatError(str(error)) from error
    drafting, drafter = release.served_drafting, None
    if drafting.method == "drafter" and release.speculator is not None:
        drafter = lake.root / release.speculator.path
    elif drafting.method not in LOOKUPS:
        drafting = NO_DRAFTING
    places = [lake.root / release.target.path, *([drafter] if drafter else [])]
    for place in places:
        lake.mirror.fetch(place)
    system, share = _system_prompt(lake, places[0])
    name, known = f"{alias}{directory.name} of {release.workload}", (release.workload, directory.name, release.target.digest)
    return Speaker(name, places[0], drafting, drafter, *known, system, share)


def _of_model(lake: LakeLayout | None, directory: Path, text: str) -> Speaker:
    if lake is None or lake.artefacts("model") not in directory.parents:
        return Speaker(text, directory)
    lake.mirror.fetch(directory)
    try:
        manifest = read_manifest(directory)
    except ManifestError as error:
        raise ChatError(str(error)) from error
    system, share = _system_prompt(lake, directory)
    name, workload = f"{manifest.name}@{manifest.version}", manifest.name.partition("/")[0]
    return Speaker(name, directory, workload=workload, digest=manifest.digest, system=system, share=share)


def _system_prompt(lake: LakeLayout, model: Path) -> tuple[str, float]:
    """The system message that most rows begin with, of those that the model learnt, and their share; "" for none."""
    try:
        learnt = next((item for item, _ in behind(lake, [read_manifest(model)]) if item.name.endswith("/sft_dataset")), None)
    except ManifestError:
        return "", 0.0
    home = lake.artefacts("dataset") / learnt.name / str(learnt.version) if learnt else None
    if home is None or not (path := home / "train.parquet").exists():
        return "", 0.0
    with pq.ParquetFile(path) as file:
        batch = next(file.iter_batches(ROWS_READ, columns=["messages"]), None)
    said = Counter(_system(json.loads(messages)) for messages in (batch["messages"].to_pylist() if batch else []) if messages)
    system, count = said.most_common(1)[0] if said else ("", 0)
    return (system, count / said.total()) if system else ("", 0.0)


def _system(messages: Sequence[dict]) -> str:
    first = messages[0] if messages else {}
    content = first.get("content") if first.get("role") in ("system", "developer") else ""
    return content if isinstance(content, str) else ""


def _cached(name: str) -> Path | None:
    """The files of a Hugging Face id in the local cache; None without them. Nothing is downloaded."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):
        return None


ENDS_WITHIN_S = 5.0


class TalkError(CheckFailed):
    """A model cannot answer; the message says why."""


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    role: Literal["system", "user", "assistant"]
    content: str


class Question(BaseModel):
    """A conversation that ends with what is asked, and how its answer is sampled."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    messages: list[Message] = Field(min_length=1)
    temperature: float = Field(1.0, ge=0, le=5)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(512, ge=1, le=32_768)
    seed: int = Field(0, ge=0, lt=2**53)
    draft: bool = True
    """Draft with the drafter, if there is one."""


class Talking:
    """positions: most tokens of a conversation. temperature, top_p: what a server samples with where a request says nothing."""

    def __init__(self, speaker: Speaker, process: subprocess.Popen[str]):
        self.speaker, self._process = speaker, process
        self._input, self._output = pipe_of(process.stdin), pipe_of(process.stdout)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """In a thread: Ctrl-C in the middle of a read would lose what was read."""
        with suppress(ValueError):
            for line in self._output:
                self._lines.put(line)
        self._lines.put("")

    def wait(self) -> None:
        """Until the model is loaded. Raises TalkError if it cannot be."""
        said = self.line()
        if "error" in said:
            raise TalkError(f"{self.speaker.name} cannot answer: {said['error']}")
        self.positions, self.temperature, self.top_p = said["positions"], said["temperature"], said["top_p"]

    def ask(self, question: Question) -> None:
        """Begins an answer, whose lines `line` gives. Raises TalkError if the process ended."""
        self._write(question.model_dump())

    def stop(self) -> None:
        """Ends the present answer, after its round; nothing if there is none."""
        with suppress(TalkError):
            self._write({"stop": True})

    def _write(self, said: dict[str, Any]) -> None:
        try:
            self._input.write(json.dumps(said) + "\n")
            self._input.flush()
        except (OSError, ValueError) as error:
            raise TalkError(self._ended()) from error

    def line(self) -> dict[str, Any]:
        """The next line of the process. Raises TalkError if it ended."""
        line = self._lines.get()
        if not line.endswith("\n"):
            self._lines.put("")  # for whoever asks next
            raise TalkError(self._ended())
        return json.loads(line)

    def _ended(self) -> str:
        return (
            f"the process of {self.speaker.name} ended (exit code {self._process.poll()}); if it was killed, this machine "
            "may have too little memory for the model"
        )


@contextmanager
def start_talking(speaker: Speaker) -> Iterator[Talking]:
    """A process that loads the model, for as long as the block runs. It is in a session of its own: Ctrl-C stops an answer, and
    not the model. Its standard error is not read, because a library's message may quote what was said."""
    process = subprocess.Popen(
        python_module("model_ops.serving.talk", *speaker.words),
        env=child_environment(HF_HUB_OFFLINE="1"),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    asked, answered = pipe_of(process.stdin), pipe_of(process.stdout)
    try:
        yield Talking(speaker, process)
    finally:
        with suppress(OSError):
            asked.close()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        answered.close()
