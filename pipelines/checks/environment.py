"""Checks packages, servers, devices and the approver that a recipe needs."""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import urllib3

from model_ops.completions import EndpointSettings, MissingKeyError, OpenAiApi, key_in
from model_ops.jobs import ModelError
from model_ops.machine import DRIVER_NAMES, parse_devices
from model_ops.planning import LLAMA_CPP, keeps_activations, parse_place
from model_ops.serving import program_of
from pipelines.checks.finding import CheckFinding, ok, problem, warning
from pipelines.contract import Recipe
from pipelines.planning import METHODS
from resources.curating import PresidioError, presidio_finder
from resources.endpoints import Actor, ActorError
from resources.launching import child_environment
from resources.signing import SIGNING_KEY, TRUSTED_KEYS, KeyProblemError, signing_key, trusted_keys
from resources.stages import planned_sections

SERVER_SECONDS = 3.0
PLAN_SECONDS = 60.0
LARGE = 1_000_000_000
"""Parameters from which training without an accelerator takes days."""


def check_packages(recipe: Recipe) -> list[CheckFinding]:
    """Extras that the recipe's settings need."""
    eight_bit = [name for name, settings in recipe.trained.items() if settings.optimizer == "adamw_8bit"]
    needs = [
        ("bitsandbytes", "sft.method qlora", "millrace[qlora]", recipe.sft.enabled and recipe.sft.method == "qlora"),
        ("bitsandbytes", f"optimizer adamw_8bit of {', '.join(eight_bit)}", "millrace[qlora]", bool(eight_bit)),
        ("gguf", "quantize.gguf", "millrace[gguf]", recipe.quantize.enabled and recipe.quantize.gguf),
        ("tensorboard", "tracking", "millrace[tensorboard]", recipe.tracking == "tensorboard"),
        *((service, "tracking", service, recipe.tracking == service) for service in ("wandb", "mlflow")),
    ]
    findings = [
        problem("packages", f"{what} needs the package {package}, which is not installed", f"pip install '{extra}'")
        for package, what, extra, on in needs
        if on and importlib.util.find_spec(package) is None
    ]
    if recipe.curation.pii_engine == "presidio":
        try:
            presidio_finder()
        except PresidioError as error:
            findings.append(problem("packages", str(error).partition(": ")[0], str(error).partition(": ")[2]))
    return findings or [ok("packages", "all that the recipe's settings need are installed")]


def check_endpoints(recipe: Recipe) -> list[CheckFinding]:
    """The servers that the recipe names: GET /models, once, for a few seconds."""
    findings = []
    if recipe.curation.judge is not None:
        findings += _server("judge", "curation.judge", recipe.curation.judge, needed=True)
    if recipe.teacher is not None and recipe.teacher.base is None:
        findings += _server("teacher", "teacher", recipe.teacher.endpoint, needed=True)
    answers = recipe.speculator.answers.endpoint
    if recipe.speculator.enabled and answers is not None:
        findings += _server("answers", "speculator.answers.endpoint", answers, needed=False)
    judge = recipe.evaluation.tasks.judge
    asked = [name for name, suite in recipe.evals.items() if suite.task == "judge"]
    if asked and judge is not None:
        findings += _server("answer judge", "evaluation.tasks.judge", judge, needed=False)
    elif asked:
        said = f"nobody judges the answers to evals.{asked[0]}, so its items are not asked"
        findings.append(warning("answer judge", said, "name a server: evaluation.tasks.judge"))
    return findings


def _server(check: str, where: str, settings: EndpointSettings, needed: bool) -> list[CheckFinding]:
    not_one = "see that it is an OpenAI API"
    later = "start it before the run needs it" if not needed else "start it, or correct base_url"
    try:
        api = OpenAiApi(settings.base_url, api_key=key_in(settings.api_key_env), connections=1, timeout_s=SERVER_SECONDS)
    except MissingKeyError as error:
        return [problem(check, f"{where}: {error}", f"export {settings.api_key_env}=...")]
    try:
        response = api.request("GET", "/models")
    except urllib3.exceptions.HTTPError as error:
        message = f"{settings.base_url} does not answer within {SERVER_SECONDS:g} s ({type(error).__name__})"
        return [(problem if needed else warning)(check, message, later)]
    finally:
        api.close()
    if response.status in (401, 403):
        mend = f"check the key in {settings.api_key_env}" if settings.api_key_env else f"name its key: {where}.api_key_env"
        return [problem(check, f"{settings.base_url} refuses the key (HTTP {response.status})", mend)]
    if response.status != 200:
        return [warning(check, f"{settings.base_url}/models answers with HTTP {response.status}", not_one)]
    try:
        served = [str(each["id"]) for each in json.loads(response.data)["data"]]
    except (ValueError, KeyError, TypeError):
        return [warning(check, f"{settings.base_url}/models gives no list of models", not_one)]
    if settings.model not in served:
        said = f"{settings.base_url} serves {', '.join(served[:5]) or 'nothing'}, not {settings.model}"
        return [warning(check, said, f"correct {where}.model")]
    return [ok(check, f"{settings.base_url} serves {settings.model}")]


def check_serving(recipe: Recipe) -> list[CheckFinding]:
    """Whether the server computes what the evaluation measures. A scheme that it does not load is a problem of the recipe."""
    if recipe.release.serve_on is None or not recipe.quantize.enabled:
        return []
    place, scheme = parse_place(recipe.release.serve_on), recipe.quantize.scheme
    coarser = [name for name in recipe.quantize.schemes if keeps_activations(name, place)]
    if place.server == LLAMA_CPP:
        said = f"{place} serves the Q8_0 file, and the evaluation measures scheme {scheme}"
        return [warning("serving", said, "compare the two, or choose scheme w8a16, whose error is the most alike")]
    if coarser:
        message = (
            f"{place} loads the weights of scheme {coarser[0]} and leaves activations in 16 bits: the "
            "evaluation, which quantizes them, understates the endpoint"
        )
        return [warning("serving", message, "leave it so, or choose a scheme without quantized activations, such as w4a16")]
    return [ok("serving", f"{place} loads scheme {scheme}")]


def check_evaluation_server(recipe: Recipe) -> list[CheckFinding]:
    """Whether the server that the evaluation starts is installed."""
    asked = recipe.evaluation.server
    if asked is None:
        return []
    try:
        program = program_of(asked.kind, asked.python)
    except ModelError as error:
        what, _, remedy = str(error).rpartition(": ")
        return [problem("server", what, remedy)]
    place = recipe.release.serve_on and parse_place(recipe.release.serve_on)
    if place and place.server != asked.kind:
        said = f"set evaluation.server.kind to {place.server}, or leave it so if that server cannot run here"
        return [warning("server", f"the evaluation starts {asked.kind}, and release.serve_on is {place}", said)]
    return [ok("server", f"the evaluation starts {asked.kind} with {program[0]}")]


def check_rollout_server(recipe: Recipe) -> list[CheckFinding]:
    """Whether the server that reinforcement fine-tuning starts is installed."""
    if recipe.rft is None or recipe.rft.engine != "vllm":
        return []
    try:
        program = program_of("vllm", recipe.rft.server.python if recipe.rft.server else None, "rft.server")
    except ModelError as error:
        what, _, remedy = str(error).rpartition(": ")
        return [problem("rollouts", what, remedy)]
    return [ok("rollouts", f"rft starts vllm with {program[0]}")]


def check_person(recipe: Recipe) -> list[CheckFinding]:
    """Who approves and who signs."""
    return [_approver(recipe), *_signers(recipe)]


def _approver(recipe: Recipe) -> CheckFinding:
    if recipe.release.approval == "automatic":
        return ok("approval", "automatic: what passes the gates is served")
    wanted = "a person has" if recipe.release.approval == "person" else "two people have"
    try:
        actor = Actor.of_command()
    except ActorError as error:
        return warning("approval", f"{wanted} to approve, and {' '.join(str(error).split())}", "set MILLRACE_USER")
    return ok("approval", f"{wanted} to approve; here {actor.name} would ({actor.identity_from})")


def _signers(recipe: Recipe) -> list[CheckFinding]:
    if not recipe.release.signed:
        return []
    try:
        key, trusted = signing_key(), trusted_keys()
    except KeyProblemError as error:
        return [problem("signature", str(error), "docs/releases.md says how keys are made")]
    if key is not None and trusted is not None:
        return [ok("signature", f"the run signs releases with the key {key.id[:12]}; {trusted.place} says who is trusted")]
    missing = [name for name, value in ((SIGNING_KEY, key), (TRUSTED_KEYS, trusted)) if value is None]
    what = f"release.signed wants a signature, and {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
    if recipe.release.approval == "automatic":
        return [problem("signature", f"{what}: an automatic approval would fail", "set them where the recipe runs")]
    return [warning("signature", what, "set them, or sign with millrace sign and approve on machines that have them")]


def check_devices(recipe: Recipe, path: Path, parameters: int | None, plan: bool) -> list[CheckFinding]:
    """Checks this machine's accelerators and, with `plan`, whether each training stage fits their memory."""
    devices = accelerators()
    count = sum(devices.values())
    findings = []
    if count and _torch_without_accelerators():
        said = f"this machine has {_named(devices)}, and the installed torch is for CPUs only"
        findings.append(problem("devices", said, "install a torch build for this machine's accelerators (docs/training.md)"))
        count = 0
    elif count:
        findings.append(ok("devices", _named(devices)))
    else:
        findings.append(ok("devices", "no accelerator here: training runs on the CPU"))
    if not count and parameters is not None and parameters >= LARGE:
        message = f"{parameters / 1e9:.1f} billion parameters on a CPU: training would take days"
        words = "run on a machine with an accelerator; millrace plan says which one is large enough"
        findings.append(warning("devices", message, words))
        return findings
    stages = [name for name in planned_sections() if name in recipe.trained] if plan else []
    return [*findings, *_planned(recipe, path, stages, devices if count else Counter())]


def _planned(recipe: Recipe, path: Path, stages: list[str], devices: Counter[str]) -> Iterator[CheckFinding]:
    """Runs `millrace plan` in a process of its own, since a trace cannot be interrupted, to the first stage without a plan."""
    have = sum(devices.values())
    groups: dict[str, list[str]] = {}
    for stage in stages:
        check, mesh = f"memory of {stage}", getattr(recipe, stage).mesh
        try:
            processes = mesh.resolved(have).processes or 1
        except ValueError as error:
            yield problem(check, str(error), f"correct {stage}.mesh")
            return
        if have and processes > have:
            said = f"{stage}.mesh asks for {processes} processes, and this machine has {have} accelerators"
            yield problem(check, said, "make the mesh smaller, or run on a larger machine")
            return
        groups.setdefault(f"{processes if have else 1}x{next(iter(devices))}" if have else "cpu", []).append(stage)
    for name, group in groups.items():
        for finding in _plans(recipe, path, name, group):
            yield finding
            if finding.state != "ok":
                return


def _plans(recipe: Recipe, path: Path, devices: str, stages: list[str]) -> Iterator[CheckFinding]:
    seconds = PLAN_SECONDS * min(2, len(stages))
    command = [sys.executable, "-m", "pipelines.cli", "plan", str(path.resolve()), "--gpus", devices, "--format", "json"]
    try:
        result = subprocess.run(
            [*command, *(word for stage in stages for word in ("--stage", stage))],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        again = f"millrace plan {path.name} --gpus {devices} --stage {stages[0]}"
        yield warning(f"memory of {stages[0]}", f"could not be predicted within {seconds:g} s", again)
        return
    message = " ".join(result.stderr.rpartition("millrace: ")[2].split())[:400]
    lines = result.stdout.splitlines()
    for stage, line in zip_longest(stages, lines[: len(stages)]):
        check = f"memory of {stage}"
        try:
            plan = json.loads(line or "")
            yield ok(
                check,
                f"{METHODS[plan['method']]}, rows of {getattr(recipe, stage).resolved().max_length:,} tokens: fits in "
                f"{plan['device_gib']:,.0f} GiB",
            )
        except (ValueError, KeyError):
            if result.returncode == 1 and message:  # nothing fits
                yield problem(check, message, f"millrace plan {path.name} --gpus {devices} --stage {stage}")
            else:
                mend = "name a directory that holds the model, with settings that fit it"
                yield warning(check, f"cannot be planned: {message}", mend)


def accelerators() -> Counter[str]:
    """This machine's NVIDIA devices as the planner calls them, by nvidia-smi; none where there is no such command."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return Counter()
    try:
        said = subprocess.run(
            [command, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return Counter()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    lines = [line for line in said.splitlines() if "," in line]
    if shown is not None:
        lines = lines[: len([each for each in shown.split(",") if each.strip() not in ("", "-1")])]
    return Counter(_planner_name(*line.rsplit(",", 1)) for line in lines)


def _planner_name(name: str, mebibytes: str) -> str:
    known = next((short for contained, short in DRIVER_NAMES if contained in name.lower()), None)
    if known is not None:
        return parse_devices(known)[1].name
    return f"{int(mebibytes) / 1024:.1f}GiB" if mebibytes.strip().isdigit() else "8GiB"


def _named(devices: Counter[str]) -> str:
    return ", ".join(f"{count}x{name}" for name, count in devices.items())


def _torch_without_accelerators() -> bool:
    try:
        return importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
