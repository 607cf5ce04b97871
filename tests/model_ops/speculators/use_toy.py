"""Run by test_draft_model.py in a copy of the project that has the toy architecture: the whole life of a drafter.

python use_toy.py PLACE      # PLACE holds target/ and answers/; writes drafter/, release/ and found.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from model_ops.drafting.drafts import with_drafter
from model_ops.evaluation import report as evaluate
from model_ops.jobs import Job, Progress
from model_ops.speculators import ARCHITECTURES, load_draft_model
from model_ops.speculators import operation as speculator
from model_ops.verify import verify
from pipelines.contract import Recipe, RecipeProblemsError, json_schema, read_recipe, reference
from resources.releases.serving_scripts import ServingPlan, write_serving_files

torch.set_num_threads(1)
place = Path(sys.argv[1])
recipe = {
    "workload": "shop",
    "base_model": "tiny",
    "sources": {"logs": {"uri": "logs"}},
    "speculator": {
        "architecture": "toy", "num_speculative_tokens": 2, "steps": 3, "tokens_per_step": 256, "precision": "float32",
        "max_length": 256, "learning_rate": 2e-3,
    },
}  # fmt: skip
settings = read_recipe(recipe, base=place).speculator
metrics = speculator.run(
    Job(
        operation="speculator",
        output=place / "drafter",
        settings=settings.model_dump(mode="json"),
        inputs={"target": place / "target", "dataset": place / "answers"},
    ),
    Progress(),
)
model = load_draft_model(place / "drafter")
measured = evaluate.run(
    Job(
        operation="evaluate",
        output=place / "evaluation",
        inputs={"target": place / "target", "dataset": place / "dataset", "speculator": place / "drafter"},
        settings={"prompts": 2, "max_new_tokens": 4, "temperatures": [0], "num_speculative_tokens": 2},
    ),
    Progress(),
)
write_serving_files(
    place / "release",
    ServingPlan("shop", "release", "models/target", "models/drafter", ARCHITECTURES["toy"].serving, with_drafter(2)),
)
try:
    read_recipe({**recipe, "speculator": {"toy_layers": 2}}, base=place)
    refused = ""
except RecipeProblemsError as error:
    refused = str(error)
(place / "found.json").write_text(
    json.dumps(
        {
            "settings": type(settings).__name__,
            "kind": model.kind,
            "class": type(model).__name__,
            "layers": model.config.num_layers,
            "steps": metrics["steps"],
            "problems": [problem.sentence for problem in verify(place / "drafter", place / "target")],
            "tau": measured["tau_toy_t0"],
            "refused": refused,
            "explained": "`architecture: toy`" in reference(Recipe),
            "in_schema": "ToySettings" in json_schema(Recipe)["$defs"],
        }
    )
)
