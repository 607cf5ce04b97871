"""Serving files of a release: one description of the command in all of them, in the forms that their readers document."""

import itertools
import json
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from model_ops.drafting.drafts import NO_DRAFTING, Drafting, with_drafter
from model_ops.serving.service import Service, fingerprint
from model_ops.speculators.registry import ARCHITECTURES
from model_ops.speculators.serving import DrafterServing, VllmOptions
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import read_manifest
from resources.releases.release import ReleaseError, write_release
from resources.releases.serving_scripts import MOUNTED, ServingPlan, write_serving_files
from resources.releases.settings import ServingSettings

SAID = fingerprint("3f2a91c0d4e5", "ab" * 32)
TARGET, DRAFTER = "models/my_shop/quantized_model/0a1b", "models/my_shop/speculator/2c3d"


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def target_of(release):
    part = json.loads((release / "release.json").read_text())["target"]
    return read_manifest(release.parents[2] / part["path"])


def plan(architecture="eagle3", zero_retention=False, drafter=DRAFTER, gguf=None, place=None, **settings):
    serving = ARCHITECTURES[architecture].serving if architecture in ARCHITECTURES else DrafterServing(architecture)
    drafting, service = with_drafter(3) if drafter else NO_DRAFTING, Service(SAID, zero_retention=zero_retention)
    how = (drafting, service, ServingSettings(**settings).on(place), gguf, True)
    return ServingPlan("my_shop", "3f2a91c0d4e5", TARGET, drafter, serving, *how)


def as_mapping(flags):
    """`--name value` as name: value, JSON values as mappings, and flags without a value as true."""
    found = {}
    for word, following in pairwise([*flags, "--"]):
        if word.startswith("--"):
            is_json = following.startswith(("{", "[")) or following.isdigit()
            found[word[2:]] = True if following.startswith("--") else json.loads(following) if is_json else following
    return found


def written(tmp_path, made):
    """Every flag of each file, as a mapping, with the lake at LAKE; and the target."""
    release = tmp_path / "releases" / "my_shop" / "3f2a91c0d4e5"
    (tmp_path / TARGET).mkdir(parents=True, exist_ok=True)
    write_serving_files(release, made)
    stand_in = tmp_path / "vllm"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    how = {"env": {"PATH": f"{tmp_path}:/usr/bin:/bin"}, "check": True, "capture_output": True, "text": True}
    printed = subprocess.run(["bash", release / "serve-vllm.sh"], **how).stdout.splitlines()
    read = {"docker-compose.yaml": yaml.safe_load((release / "docker-compose.yaml").read_text())}
    read["kubernetes.yaml"] = list(yaml.safe_load_all((release / "kubernetes.yaml").read_text()))
    words = {"compose": read["docker-compose.yaml"]["services"]["vllm"]["command"], "kubernetes": in_pod(read)["args"]}

    def at(place, words):
        return json.loads(json.dumps(as_mapping(words)).replace(place, "LAKE"))

    found = {name: (given[0], at(MOUNTED, given[1:-4])) for name, given in words.items()}
    found["script"] = (printed[1], at(str(tmp_path), printed[2:]))
    return release, read, found


def in_pod(read):
    [container] = read["kubernetes.yaml"][0]["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("zero_retention", [False, True])
@pytest.mark.parametrize("architecture", ["eagle3", "mtp", "of no server"])
def test_every_file_starts_the_same_server(tmp_path, architecture, zero_retention):
    _, _, found = written(tmp_path, plan(architecture, zero_retention, gpus=2))
    assert {target.rpartition("models/")[2] for target, _ in found.values()} == {TARGET.removeprefix("models/")}
    flags = found["script"][1]
    for name, (_, others) in found.items():
        assert others == flags, name
    assert flags["fingerprint-value"] == SAID and flags["fingerprint-mode"] == "custom" and flags["shutdown-timeout"] == 120
    assert flags["served-model-name"] == "my_shop" and flags["tensor-parallel-size"] == 2
    assert flags["generation-config"] == "LAKE/releases/my_shop/3f2a91c0d4e5"
    assert ("speculative-config" in flags) == ("per-request-spec-decode-metrics" in flags) == (architecture != "of no server")
    if architecture == "eagle3":
        assert flags["speculative-config"]["model"] == f"LAKE/{DRAFTER}"
    assert ("no-enable-prefix-caching" in flags) == zero_retention


def test_the_same_variables_are_set_in_every_file(tmp_path):
    release, read, _ = written(tmp_path, plan(zero_retention=True))
    service = read["docker-compose.yaml"]["services"]["vllm"]
    assert service["ulimits"] == {"core": 0} and "ulimit -c 0" in (release / "serve-vllm.sh").read_text()
    variables = dict(service["environment"])
    pod = {each["name"]: each["value"] for each in in_pod(read)["env"]}
    lines = (release / "serve-vllm.sh").read_text().splitlines()
    exported = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    exported = {name: value.strip('"').replace("$LAKE", MOUNTED) for name, value in exported.items()}
    assert variables == pod == exported and variables["VLLM_ENABLE_RESPONSES_API_STORE"] == "0"
    logging = json.loads((release / "vllm-logging.json").read_text())
    assert variables["VLLM_LOGGING_CONFIG_PATH"].endswith("/releases/my_shop/3f2a91c0d4e5/vllm-logging.json")
    assert logging["loggers"]["vllm.logging_utils.dump_input"]["level"] == "CRITICAL"


def test_without_zero_retention_nothing_is_switched_off(tmp_path):
    release, read, _ = written(tmp_path, plan())
    assert not (release / "vllm-logging.json").exists() and "ulimit" not in (release / "serve-vllm.sh").read_text()
    assert read["docker-compose.yaml"]["services"]["vllm"]["environment"] == {"HF_HUB_OFFLINE": "1"}


def test_suffix_drafting_keeps_no_answers_where_nothing_is_retained(tmp_path):
    suffix = DrafterServing("suffix", vllm=VllmOptions("suffix"))
    for zero_retention in (False, True):
        made = ServingPlan("shop", "r", TARGET, DRAFTER, suffix, with_drafter(8), Service(SAID, zero_retention=zero_retention))
        words = made.words("vllm", "/lake")
        config = json.loads(words[words.index("--speculative-config") + 1])
        assert config.get("suffix_decoding_max_cached_requests") == (0 if zero_retention else None)


def test_files_have_the_form_that_their_readers_document(tmp_path):
    """Keys and types of a Deployment and a Service of Kubernetes, and of Compose."""
    asked = {"claim": "models-claim", "cpus": 8, "memory_gib": 64, "replicas": 2, "gguf": f"{TARGET}/model-q8_0.gguf"}
    release, read, _ = written(tmp_path, plan(**asked))
    assert "&id" not in (release / "kubernetes.yaml").read_text()  # YAML's anchors are hard to read
    deployment, service = read["kubernetes.yaml"]
    assert (deployment["apiVersion"], deployment["kind"], service["kind"]) == ("apps/v1", "Deployment", "Service")
    assert deployment["metadata"]["name"] == service["metadata"]["name"] == "my-shop" and deployment["spec"]["replicas"] == 2
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    pod = deployment["spec"]["template"]["spec"]
    assert set(pod) == {"terminationGracePeriodSeconds", "containers", "volumes"}
    assert pod["terminationGracePeriodSeconds"] == 150
    container = in_pod(read)
    assert container["name"] == "vllm" and container["image"] == "vllm/vllm-openai:v0.32.0"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert container["resources"]["requests"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    assert [each["name"] for each in container["volumeMounts"]] == [each["name"] for each in pod["volumes"]]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "models-claim"
    assert all(isinstance(each["value"], str) for each in container["env"])
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["containerPort"] == 8000
    services = read["docker-compose.yaml"]["services"]
    assert set(services) == {"vllm", "sglang", "llama-cpp"} and services["sglang"]["profiles"] == ["sglang"]
    assert services["vllm"]["image"] == "${VLLM_IMAGE:-vllm/vllm-openai:v0.32.0}" and "profiles" not in services["vllm"]
    assert services["vllm"]["volumes"] == [f"../../..:{MOUNTED}:ro"] and services["vllm"]["stop_grace_period"] == "150s"
    assert services["llama-cpp"]["command"][:2] == ["--model", f"{MOUNTED}/{TARGET}/model-q8_0.gguf"]


@pytest.mark.parametrize("asked", [{"gpus": 0}, {"place": "vllm/cpu"}, {"place": "vllm/cpu-amx"}])
def test_a_server_on_the_cpu_asks_for_no_gpu(tmp_path, asked):
    _, read, _ = written(tmp_path, plan(**asked))
    assert in_pod(read)["image"] == "vllm/vllm-openai-cpu:v0.32.0"
    assert "deploy" not in read["docker-compose.yaml"]["services"]["vllm"]
    assert "limits" not in in_pod(read)["resources"]


def test_llama_cpp_is_served_only_where_the_target_has_a_gguf_file(tmp_path):
    release, _, _ = written(tmp_path, plan())
    assert not (release / "serve-llama-cpp.sh").exists()
    release, _, _ = written(tmp_path, plan(gguf=f"{TARGET}/model-q8_0.gguf", zero_retention=True))
    script = (release / "serve-llama-cpp.sh").read_text()
    assert f'--model "$LAKE/{TARGET}/model-q8_0.gguf" --alias my_shop' in script and "without the drafter" in script
    assert "--no-slots --no-cache-prompt --cache-ram 0" in script and "ulimit -c 0" in script


def test_sglang_gets_the_fingerprint_as_the_version_of_its_weights():
    words = plan(zero_retention=True).words("sglang", "/lake")
    assert words[words.index("--weight-version") + 1] == SAID and "--disable-radix-cache" in words
    assert "--disable-radix-cache" not in plan().words("sglang", "/lake")


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config.json": {"eos_token_id": [7, 8], "temperature": 0.7}, "config.json": {"eos_token_id": 1}}, [7, 8]),
        ({"generation_config.json": {"top_p": 0.9}, "config.json": {"eos_token_id": 1}}, [1]),
        ({"config.json": {"eos_token_id": [0]}}, [0]),
    ],
)
def test_a_release_says_where_answers_end(tmp_path, lake, make_release, files, ids):
    target = target_of(make_release(lake, 1))
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    out = tmp_path / "r9"
    out.mkdir()
    write_release(out, "tutor", target, None, 0, [], DrafterServing("eagle3"), target_directory=tmp_path)
    found = json.loads((out / "generation_config.json").read_text())
    given = files.get("generation_config.json", {})
    assert found["eos_token_id"] == ids and found.get("temperature") == given.get("temperature")
    assert "--generation-config" in yaml.safe_load((out / "docker-compose.yaml").read_text())["services"]["vllm"]["command"]


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ('<tool_call>\n{"name": {{ name }}, "arguments": {{ arguments }}}\n</tool_call>', "hermes"),
        ("no tools", None),
        (None, None),
    ],
)
def test_every_file_names_the_parser_of_the_targets_tool_calls(tmp_path, lake, make_release, template, parser):
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    out = tmp_path / "r9"
    out.mkdir()
    target = target_of(make_release(lake, 1))
    write_release(out, "tutor", target, None, 0, [], DrafterServing("eagle3"), target_directory=tmp_path)
    for name in ("serve-vllm.sh", "docker-compose.yaml", "kubernetes.yaml"):
        text = (out / name).read_text()
        assert ("tool-call-parser" in text) == ("enable-auto-tool-choice" in text) == (parser is not None), name
        assert parser is None or parser in text
    assert "tool-call-parser" not in (out / "serve-sglang.sh").read_text()


def test_a_target_whose_answers_never_end_is_refused(tmp_path, lake, make_release):
    target = target_of(make_release(lake, 1))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ReleaseError, match="names no eos_token_id"):
        write_release(tmp_path, "tutor", target, None, 0, [], DrafterServing("eagle3"), target_directory=tmp_path)


def test_a_released_target_and_its_release_are_named_in_every_answer(lake, make_release):
    release = make_release(lake, 1)
    made = json.loads((release / "release.json").read_text())
    assert made["service"]["fingerprint"] == f"millrace-{release.name}-{made['target']['digest']}"
    assert made["service"]["fingerprint"] in Path(release / "serve-vllm.sh").read_text()


@pytest.mark.parametrize(
    ("architecture", "method", "sglang"),
    [
        ("eagle3", "eagle3", "EAGLE3"),
        ("eagle3.1", "eagle3", "EAGLE3"),
        ("dflash", "dflash", "DFLASH"),
        ("of no server", None, None),
        ("mtp", "mtp", None),
        ("draft_model", "draft_model", "STANDALONE"),
    ],
)
def test_serve_scripts_ask_each_server_for_what_it_runs(tmp_path, architecture, method, sglang):
    """The scripts, run with stand-ins for the servers that print the arguments they are given."""
    model, release = tmp_path / "models" / "m", tmp_path / "releases" / "tutor" / "r1"
    model.mkdir(parents=True)
    serving = ARCHITECTURES[architecture].serving if architecture in ARCHITECTURES else DrafterServing(architecture)
    plan = ServingPlan("tutor", "r1", "models/m", "models/m", serving, with_drafter(3))
    write_serving_files(release, plan)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("vllm", "python"):
        (programs / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (programs / name).chmod(0o755)
    how = {"env": {"PATH": f"{programs}:/usr/bin:/bin"}, "check": True, "capture_output": True, "text": True}
    scripts = {server: release / f"serve-{server}.sh" for server in ("vllm", "sglang")}
    done = {server: subprocess.run(["bash", script, "--port", "1"], **how) for server, script in scripts.items()}
    words = done["vllm"].stdout.splitlines()
    assert words[0] == "serve" and words[-1] == "1" and Path(words[1]).is_dir()
    if method is None:
        assert "--speculative-config" not in words and "without it" in done["vllm"].stderr
    else:
        config = json.loads(words[words.index("--speculative-config") + 1])
        assert config["method"] == method and config["num_speculative_tokens"] == 3 and Path(config["model"]).is_dir()
        assert config["draft_sample_method"] == "probabilistic" and not done["vllm"].stderr
    overrides = [json.loads(words[at + 1]) for at, word in enumerate(words) if word == "--hf-overrides"]
    assert overrides == ([{"num_nextn_predict_layers": 1}] if architecture == "mtp" else [])
    words = done["sglang"].stdout.splitlines()
    options = {name: value for name, value in itertools.pairwise(words) if name.startswith("--speculative")}
    assert options.get("--speculative-algorithm") == sglang and bool(done["sglang"].stderr) == (sglang is None)
    assert options.get("--speculative-num-draft-tokens") == (None if sglang is None else "4")
    assert options.get("--speculative-num-steps") == ("3" if sglang in ("EAGLE3", "STANDALONE") else None)


@pytest.mark.parametrize(
    ("drafting", "config", "sglang"),
    [
        (NO_DRAFTING, None, None),
        (
            Drafting(method="ngram", num_speculative_tokens=4),
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 4},
            ("NGRAM", "5"),
        ),
        (Drafting(method="suffix", num_speculative_tokens=12), {"method": "suffix", "num_speculative_tokens": 12}, None),
        (
            Drafting(method="drafter", num_speculative_tokens=3, by_batch_size=((1, 2, 3), (3, 8, 0))),
            {"method": "eagle3", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 8, 0]]},
            ("EAGLE3", "4"),
        ),
    ],
)
def test_the_chosen_drafting_is_served(tmp_path, drafting, config, sglang):
    write_serving_files(tmp_path, ServingPlan("tutor", "r1", "models/m", "models/d", ARCHITECTURES["eagle3"].serving, drafting))
    words = shlex.split((tmp_path / "serve-vllm.sh").read_text().partition("exec ")[2])
    found = json.loads(words[words.index("--speculative-config") + 1]) if "--speculative-config" in words else None
    if found is not None:
        assert found.pop("model", None) == ("$LAKE/models/d" if drafting.method == "drafter" else None)
        for name in ("draft_sample_method", "rejection_sample_method"):
            assert (found.pop(name, None) is not None) == (drafting.method == "drafter")
    assert found == config
    script = (tmp_path / "serve-sglang.sh").read_text()
    words = shlex.split(script.partition("exec ")[2])
    said = dict(itertools.pairwise(words))
    assert (sglang or (None, None)) == (said.get("--speculative-algorithm"), said.get("--speculative-num-draft-tokens"))
    assert ("without it" in script) == (drafting.method == "suffix")
