"""What is captured of whose requests: a rule for each API key, found by the key's sha256.

    rules = read_rules(Path("keys.yaml"))
    rules.of("Bearer sk-...").keep          # False: nothing of these requests is written anywhere

keys.yaml:

    default: {sample: 1.0}
    keys:
      <sha256 of a key>: {keep: false}                                  # zero retention
      <sha256 of another>: {sample: 0.1, client: team-a, workload: shop-help}

`printf %s "$KEY" | sha256sum` prints the hash. Keys themselves are never written, and neither are their hashes."""

import difflib
import hashlib
import json
import random
from collections.abc import Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from resources.gateway.journal import CaptureError
from resources.gateway.routes import place_of

MOST_CACHED = 4_096
SALT = "sampled "
"""Salt: canary routing hashes the same session id, so unsalted sampling would pick one release."""
Sha256 = Annotated[
    str,
    BeforeValidator(lambda name: name.lower() if isinstance(name, str) else name),
    StringConstraints(pattern="^[0-9a-f]{64}$"),
]


class KeyRule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keep: bool = True
    """Whether anything is kept."""
    sample: float = Field(1.0, ge=0, le=1)
    """Share of the sessions that is kept (of the requests, where they name no session)."""
    client: str | None = None
    workload: str | None = None
    """`client`, `workload`: written as client_id and workload_id."""

    def samples(self, session: str | None) -> bool:
        """Whether a request is in the sample. A session is in it with all its requests, or with none."""
        return self.sample >= 1 or (random.random() if session is None else place_of(SALT + session)) < self.sample


class KeyRules(BaseModel):
    """A key that is not named gets `default`, and so does a request without one."""

    model_config = ConfigDict(extra="forbid")

    default: KeyRule = KeyRule()
    keys: dict[Sha256, KeyRule] = {}

    def of(self, *credentials: str | None) -> KeyRule:
        """The rule of a request. credentials: values of the headers that may carry its key, `Bearer ` included."""
        if self.keys:
            for credential in credentials:
                if credential and (rule := self.keys.get(_sha256(credential))) is not None:
                    return rule
        return self.default

    def of_hash(self, sha256: str | None) -> KeyRule:
        """The rule of a key by its sha256."""
        return self.keys.get(sha256 or "", self.default)


def read_rules(path: Path | None) -> KeyRules:
    """Raises CaptureError where the file cannot be read as rules, also where a name is given twice: of two rules for a key,
    none must win by its place."""
    if path is None:
        return KeyRules()
    try:
        return KeyRules.model_validate(yaml.load(path.read_text(encoding="utf-8"), _NamesOnce) or {})
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no UTF-8'}") from error
    except yaml.YAMLError as error:
        what = "" if isinstance(error, yaml.constructor.ConstructorError) else "is no YAML: "
        raise CaptureError(f"{path} {what}{getattr(error, 'problem', None) or 'it cannot be parsed'}") from error
    except ValidationError as error:
        raise CaptureError(f"{path}: {_first_problem(error)}") from error


def _first_problem(error: ValidationError) -> str:
    """Without the value: somebody may have written a key instead of its hash."""
    problem = error.errors()[0]
    place = [str(part) for part in problem["loc"] if part != "[key]"]
    if problem["type"] == "string_pattern_mismatch":
        return 'a name under `keys` is no sha256 of a key: 64 hex digits, as `printf %s "$KEY" | sha256sum` prints them'
    where = ".".join(part if len(part) < 64 else part[:8] + "..." for part in place) or "the file"
    if problem["type"] == "extra_forbidden":
        known = [*KeyRules.model_fields] if len(place) < 2 else [*KeyRule.model_fields]
        near = difflib.get_close_matches(place[-1], known, n=1)
        return f"{where} does not exist; " + (f"did you mean {near[0]}?" if near else f"it is one of {', '.join(known)}")
    return f"{where}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"


class _NamesOnce(yaml.SafeLoader):
    """Refuses a name that a mapping has twice, in letters of any size, without saying it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value).lower()
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"line {key.start_mark.line + 1} gives a name for the second time; keep one of them"
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


@lru_cache(MOST_CACHED)
def _sha256(credential: str) -> str:
    scheme, _, key = credential.strip().partition(" ")
    return hashlib.sha256((key.strip() if key and scheme.lower() == "bearer" else credential.strip()).encode()).hexdigest()


SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Parameters that vLLM and SGLang read from the file."""


def read_sampling(path: Path | None) -> Mapping[str, Any]:
    """The defaults in a file that a person named. Raises CaptureError where it cannot be read."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: content[name] for name in SAMPLING if content.get(name) is not None}
    except (OSError, ValueError, AttributeError) as error:
        raise CaptureError(f"{path} is no generation_config.json: give the file beside the served weights") from error


def server_sampling(path: Path) -> Mapping[str, Any]:
    """The defaults beside served weights; none where there is no such file."""
    try:
        return read_sampling(path)
    except CaptureError:
        return {}
