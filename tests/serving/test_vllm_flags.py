"""vLLM's own parser reads the flags of a release's files: they are the arguments that were meant."""

import json
import subprocess
from pathlib import Path

import pytest

from model_ops.drafting.drafts import with_drafter
from model_ops.serving.service import Service, fingerprint
from model_ops.speculators.registry import ARCHITECTURES
from resources.releases.serving_scripts import ServingPlan, write_serving_files
from resources.releases.settings import ServingSettings
from tests.reports import process_report

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]

PARSES = """
import json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
read = [vars(parser.parse_args(["serve", *words])) for words in json.loads(sys.argv[1])]
for each in read:
    each["model"] = each.pop("model_tag", None) or each["model"]
    for name in ("config", "dispatch_function"):
        each.pop(name, None)
print(json.dumps([{name: str(value) for name, value in each.items()} for each in read]))
"""


@pytest.mark.thorough
def test_vllm_reads_the_arguments_of_a_release(python, tmp_path):
    said = fingerprint("3f2a91c0d4e5", "ab" * 32)
    plans = [
        ServingPlan(
            "tutor",
            f"r{number}",
            "models/target",
            "models/drafter",
            ARCHITECTURES[name].serving,
            with_drafter(3),
            Service(said, zero_retention=bool(number % 2)),
            ServingSettings(gpus=1 + number % 2).on(None),
            None,
            True,
        )
        for number, name in enumerate(("eagle3", "mtp", "dflash"))
    ]
    asked = []
    for plan in plans:
        write_serving_files(tmp_path / plan.directory, plan)
        asked.append(plan.words("vllm", "."))
    done = subprocess.run(
        [python, "-c", PARSES, json.dumps(asked)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, process_report(done)
    read = json.loads(done.stdout.splitlines()[-1])
    for script, plan in zip(read, plans, strict=True):
        assert (
            script["fingerprint_mode"] == "custom"
            and script["fingerprint_value"] == said
            and script["shutdown_timeout"] == "120"
        )
        assert script["enable_per_request_metrics"] == "True" and script["per_request_spec_decode_metrics"] == "summary"
        assert (script["enable_prefix_caching"] == "False") == plan.service.zero_retention
        assert Path(script["generation_config"]) == Path(plan.directory)
