"""What releases of form adapter must have in common to be served by one server, and the words that start it.

vLLM 0.32 has one base, one tokenizer with its chat template, one generation_config.json, one set of flags and one fingerprint
for all adapters of a server.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_ops.drafting import Drafting
from model_ops.files import template_files
from model_ops.serving import PREFIX, Service, lora_flags, service_environment, tool_words, words_of
from resources.lake import LakeLayout
from resources.releases import Release
from resources.serving.programs import ServeError

BASE_NAME = "millrace-base"
"""The server's name of the base model, which no client is offered."""


@dataclass(frozen=True)
class SharedBase:
    """base, tokenizer, generation: digests. place: the base model in the lake; directory, adapter: of the release that these
    are read from, whose tokenizer, generation_config.json and logging the server uses."""

    base: str
    tokenizer: str
    generation: str
    zero_retention: bool
    place: str = field(compare=False)
    directory: Path = field(compare=False)
    adapter: str = field(compare=False)
    drain_s: int = field(compare=False)

    @classmethod
    def of(cls, directory: Path, release: Release) -> SharedBase:
        """Raises ServeError for a release of another form."""
        if release.base is None or release.adapter is None:
            raise ServeError(
                f"release {directory.name} of {release.workload} is a whole model, not an adapter, so no server "
                f"is shared with it: serve it alone (millrace serve {release.workload}), or make it with "
                "release.form: adapter"
            )
        config = directory / "generation_config.json"
        return cls(
            release.base.digest,
            release.adapter.tokenizer,
            _digest_of(_read(config)),
            release.service.zero_retention,
            release.base.path,
            directory,
            release.adapter.path,
            release.service.drain_s,
        )

    def differences(self, other: SharedBase) -> list[str]:
        """What another release has otherwise, in words."""
        return [
            what
            for what, same in (
                (f"its base model is {other.base[:12]} and not {self.base[:12]}", self.base == other.base),
                ("its tokenizer or chat template is another one", self.tokenizer == other.tokenizer),
                ("its generation_config.json is another one", self.generation == other.generation),
                ("only one of them retains nothing (release.zero_retention)", self.zero_retention == other.zero_retention),
            )
            if not same
        ]

    @property
    def fingerprint(self) -> str:
        """What the server writes into every answer; the front writes the release's in its place."""
        return f"{PREFIX}-base-{self.base}"

    def words(self, lake: LakeLayout, rank: int, adapters: int, drafting: Drafting) -> list[str]:
        """What follows `vllm serve`. rank: of the largest adapter. adapters: how many may be loaded. Raises ValueError for a
        rank that vLLM does not serve."""
        service = Service(self.fingerprint, self.zero_retention, self.drain_s)
        place = lake.root / self.adapter
        words = words_of(
            "vllm",
            str(lake.root / self.place),
            BASE_NAME,
            None,
            None,
            drafting.num_speculative_tokens,
            drafting,
            service=service,
        )
        words += ["--tokenizer", str(place), "--generation-config", str(self.directory), *lora_flags.lora_words(rank, adapters)]
        return words + tool_words(template_files.template_text(place))

    @property
    def shell(self) -> list[str]:
        """Words before the program: a core dump would hold prompts."""
        return ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh"] if self.zero_retention else []

    def environment(self) -> dict[str, str]:
        service = Service(self.fingerprint, self.zero_retention, self.drain_s)
        return service_environment("vllm", service, str(self.directory)) | lora_flags.LOADS_AT_RUNTIME


def _digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
