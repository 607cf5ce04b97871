"""A release from its lake to a server elsewhere: signed, packaged, verified, served with its drafter, and as it was measured.

    python -m benchmarks.release_served --lake demo/lake            # some minutes; --vllm VENV names vLLM's environment
    python -m benchmarks.release_served --lake demo/quick/lake --quick

The lake's newest release (or --release) is copied, signed with a key made here, approved, and packaged as a directory. A new
virtual environment with model-signing alone verifies the package by its own verify.py. Then the package's serve-vllm.sh starts
vLLM, with the drafter and the weights as they were published, and the server is asked:

- the prompts of the release's evaluation report, at its temperatures and length: acceptance_gap is the server's acceptance
  length (1 + accepted / drafts, from its counters) over the report's, less 1, where it is largest; gap_standard_error is that
  of temperature 1, from the spread of the server's passes, of which the report's one pass is another;
- the same prompts greedily: parity is the share of the server's tokens that the project's own layers rank first after the same
  text, or within `tie` logits of the first (two steps of bfloat16 where the largest logits lie);
- a prompt with a JSON schema, which the server enforces, at temperature 1: schema_valid is the share of complete answers that
  are valid; without the schema the share is `schema_valid_unasked`.

ok: the package is verified, nothing failed, and every share and gap is within its bound (acceptance 3 %, or two standard errors
where these are larger; parity 0.98; schema 1).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.record import record
from benchmarks.signed_release import make_keys, signed_copy
from benchmarks.vllm_environment import HOME, vllm_python
from model_ops.completions.served import ServedModel, measure_served
from model_ops.serving.cpu_dtype import dtype_words
from model_ops.serving.server_process import running_server
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import read_manifest
from resources.releases.release import read_release
from resources.releasing.push import package
from resources.signing.keys import SIGNING_KEY, TRUSTED_KEYS

PASSES, STARTS_WITHIN_S, CONCURRENCY, TIE = 3, 900, 8, 0.25
BOUNDS = {"acceptance_gap": 0.03, "parity": 0.98, "schema_valid": 1.0}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}, "kind": {"enum": ["new", "old"]}},
    "required": ["name", "count", "kind"],
    "additionalProperties": False,
}
SIGNING_PACKAGES = ("model-signing", "pyopenssl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lake", type=Path, required=True, help="lake of a finished demo, such as demo/lake")
    parser.add_argument("--release", default="", help="beginning of the release's version; default: the newest")
    parser.add_argument("--quick", action="store_true", help="one pass; nothing is recorded")
    parser.add_argument("--vllm", type=Path, default=HOME, help="vLLM's environment; made there where it is missing")
    given = parser.parse_args()
    python = vllm_python(given.vllm)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        home = Path(folder)
        keys = make_keys(home)
        os.environ[SIGNING_KEY], os.environ[TRUSTED_KEYS] = str(keys / "ann.pem"), str(keys / "trusted")
        lake, directory = signed_copy(LakeLayout.open(given.lake, create=False), home, given.release)
        package(lake, directory, home / "package", "directory")
        verified = _verified(home, keys / "trusted" / "ann.pub", directory.name)
        record(
            "release_served",
            _served(home, lake, directory, python, 1 if given.quick else PASSES, verified),
            keep=not given.quick,
        )


def _verified(home: Path, trusted: Path, version: str) -> bool:
    """Whether verify.py says so in an environment that has nothing of the project."""
    subprocess.run([sys.executable, "-m", "venv", home / "bare"], check=True)
    python = home / "bare" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *SIGNING_PACKAGES], check=True)
    done = subprocess.run(
        [python, "-I", "verify.py", "--key", trusted, "--approver", trusted, "--release", version],
        cwd=home / "package",
        env={"PATH": os.environ["PATH"]},
    )
    return done.returncode == 0


def _served(home: Path, lake: LakeLayout, directory: Path, python: Path, passes: int, verified: bool) -> dict[str, Any]:
    release, report, dataset = read_release(directory), *_measured_on(lake, directory)
    asked = report["settings"]
    target = home / "package" / release.target.path
    prompts = _prompts(target, dataset, asked)
    script = home / "package" / directory.relative_to(lake.root) / "serve-vllm.sh"
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": "",
    }
    words = [script, "--enforce-eager", "--no-enable-prefix-caching", "--seed", "0", *dtype_words("vllm", target)]
    with (
        running_server(words, log=home / "server.log", start_s=STARTS_WITHIN_S, environment=environment) as server,
        ServedModel(server.url, model=release.workload, through_proxy=False) as client,
    ):
        several = {"concurrency": CONCURRENCY, "max_tokens": asked["max_new_tokens"]}
        greedy = measure_served(client, prompts, temperature=0, **several)
        sampled = [measure_served(client, prompts, temperature=1, seed=1_000 * number, **several) for number in range(passes)]
        constrained = {
            name: _valid_share(client, schema, min(len(prompts), 40))
            for name, schema in (("schema_valid", SCHEMA), ("schema_valid_unasked", None))
        }
    taus = {"t0": [greedy.acceptance.tau], "t1": [each.acceptance.tau for each in sampled]}
    method = release.served_drafting.method
    drafter = release.architecture if method == "drafter" else method
    said = {
        f"t{summary['temperature']:g}": summary["tau_of_drafts"]
        for summary in report["acceptance"]
        if summary["drafter"] == drafter and summary["sampling"] != "as logged"
    }
    gaps = {name: statistics.mean(found) / said[name] - 1 for name, found in taus.items()}
    error = statistics.stdev(taus["t1"]) * (1 / passes + 1) ** 0.5 / said["t1"] if passes > 1 else None
    parity = _parity(target, prompts, [reply.token_ids for reply in greedy.replies])
    allowed = max(BOUNDS["acceptance_gap"], 2 * (error or 0))
    gap = max(gaps.values(), key=abs)
    return {
        "ok": verified and abs(gap) <= allowed and parity >= BOUNDS["parity"] and constrained["schema_valid"] == 1,
        "verified": verified,
        "acceptance_gap": round(gap, 4),
        "gap_standard_error": error and round(error, 4),
        "parity": round(parity, 4),
        "tie": TIE,
        **constrained,
        "tau": {name: round(statistics.mean(found), 3) for name, found in taus.items()},
        "tau_of_report": {name: round(said[name], 3) for name in taus},
        "drafting": release.served_drafting.label,
        "prompts": len(prompts),
        "max_new_tokens": asked["max_new_tokens"],
        "passes": passes,
        "read": greedy.replies[0].text[:200],
    }


def _measured_on(lake: LakeLayout, directory: Path) -> tuple[dict[str, Any], Path]:
    """The release's report.json, and the dataset whose held-out prompts it measured."""
    inputs = {item.name.rsplit("/", 1)[-1]: item for item in read_manifest(directory).inputs}
    report = lake.artefacts("dataset") / inputs["evaluation_report"].name / inputs["evaluation_report"].version
    behind = {item.name.rsplit("/", 1)[-1]: item for item in read_manifest(report).inputs}
    dataset = lake.artefacts("dataset") / behind["sft_dataset"].name / behind["sft_dataset"].version
    return json.loads((report / "report.json").read_text()), dataset


def _prompts(target: Path, dataset: Path, asked: dict[str, Any]) -> list[list[int]]:
    """The prompts of the report, as token ids."""
    from model_ops.decoding.prompts import choose_prompts, read_prompts
    from model_ops.models.model_directory import load_tokenizer

    positions = json.loads((target / "config.json").read_text())["max_position_embeddings"]
    room = min(asked["max_length"], positions - asked["max_new_tokens"])
    fitting = [prompt for prompt in read_prompts(dataset, "test", load_tokenizer(target)) if 0 < len(prompt.ids) <= room]
    return [prompt.ids for prompt in choose_prompts(fitting, asked["prompts"], asked["seed"])]


def _valid_share(client: ServedModel, schema: dict[str, Any] | None, count: int) -> float:
    """The share of complete answers that are objects of SCHEMA, asked for with a schema or not."""
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}} if schema else {}
    asked = [{"role": "user", "content": "Name a thing and how many there are, as JSON."}]
    replies = [
        client.answer(asked, temperature=1, max_tokens=128, seed=number, frequency_penalty=2.0, **form)
        for number in range(count)
    ]  # without the penalty, a toy model writes the white space that JSON allows for ever
    complete = [reply for reply in replies if reply.finish_reason == "stop" or not schema]
    return round(sum(_is_valid(reply.text) for reply in complete) / max(1, len(complete)), 4)


def _is_valid(text: str) -> bool:
    from jsonschema import Draft202012Validator

    try:
        return Draft202012Validator(SCHEMA).is_valid(json.loads(text))
    except ValueError:
        return False


def _parity(target: Path, prompts: list[list[int]], replies: list[list[int]]) -> float:
    """The share of the server's greedy tokens that own layers rank first after the same text, ties of bfloat16 apart."""
    import torch

    from model_ops.models.model_directory import load_model
    from model_ops.quantization.quantized_model import load_quantized

    quantized = "quantization_config" in json.loads((target / "config.json").read_text())
    dtype = torch.float32 if dtype_words("vllm", target) else None
    model = load_quantized(target, dtype) if quantized else load_model(target, attention="sdpa")
    gaps = []
    with torch.no_grad():
        for prompt, reply in zip(prompts, replies, strict=True):
            ids = torch.tensor([[*prompt, *reply]])
            logits = model(ids[:, :-1]).logits[0, len(prompt) - 1 :].float()
            gaps.append(logits.amax(-1) - logits.gather(1, ids[0, len(prompt) :, None])[:, 0])
    return float((torch.cat(gaps) < TIE).float().mean())


if __name__ == "__main__":
    main()
