"""The sections of the recipe reference: what each is for, and an example. Tests load every example."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """One chapter of the reference."""

    key: str
    """The dotted key that it explains; empty for the top-level keys."""
    title: str
    text: str
    example: str = ""


CHANGED = """
first_day last_day threads sources.format sources.*.fields.request sources.*.fields.response sources.*.fields.id
sources.*.fields.time sources.*.fields.user sources.*.fields.feedback evals.task training.preset training.epochs
training.learning_rate training.tokens_per_step training.max_length curation.pii curation.min_quality curation.language.allow
datasets.preference.confidence datasets.sft.max_rows datasets.sft.validation_share datasets.sft.test_share sft.method
sft.lora.rank sft.lora.alpha preference.method preference.loss preference.beta preference.on_policy.answers
preference.on_policy.sync_steps preference.on_policy.prompts preference.on_policy.grader.parts.weight
rft.loss rft.answers rft.prompts_per_step rft.max_new_tokens rft.kl rft.method rft.grader.parts.weight
student.base student.layers quantize.scheme quantize.calibration_rows speculator.num_speculative_tokens
speculator.continue_from evaluation.rows evaluation.prompts evaluation.server.kind evaluation.server.concurrencies
release.approval release.serve_on release.gates.recovery release.gates.loss_above_base release.gates.acceptance_length
automation.watch_logs automation.retrain.cron automation.decide.quiet automation.decide.budget.runs_per_week
retention.raw_days retention.curated_days
"""
"""Keys that people change. The reference shows these, needed ones, switches and those with a chapter, and folds the others.
`training` are the keys of every training."""

SECTIONS = (
    Chapter(
        "",
        "Top level",
        "Three keys are needed; everything else has a default that works. Tables show the keys "
        "that people change, further ones fold.",
        """\
workload: math-tutor
base_model: Qwen/Qwen3-0.6B          # or ./models/mine, ./outputs/adapter, or tiny
sources:
  gateway: {uri: s3://logs/gateway/}
first_day: 2026-06-01
""",
    ),
    Chapter(
        "sources",
        "sources",
        "Logs and feedback, each under a name of your own. Relative paths start at the recipe's "
        "folder. [data.md](data.md) lists the formats.",
        """\
sources:
  gateway: {uri: s3://logs/gateway/, workloads: {prod-tutor: math-tutor}}
  thumbs: {uri: ./feedback/*.jsonl}
""",
    ),
    Chapter(
        "seeds",
        "seeds",
        "Training examples written by hand or by a model, each set under a name of your own: files in "
        "any format that logs can have, or the training rows of another dataset of the lake.",
        """\
seeds:
  handmade: {uri: ./seeds.jsonl, licence: cc-by-4.0}
  generated: {uri: s3://seeds/generated/, synthetic: true}
  old: {dataset: old-tutor/sft_dataset}
""",
    ),
    Chapter(
        "sources.*.fields",
        "sources.fields",
        "For records of no known format; `millrace inspect` proposes a mapping. "
        'Without a request, columns of records that a known format reads. A key with a dot is quoted, `["user.id"]`, and '
        "a path goes on inside a text that is JSON.",
        """\
sources:
  app:
    uri: ./app/*.jsonl
    fields: {request: payload.request, response: payload.reply, id: uuid, time: at, feedback: meta.stars}
  surveys:
    uri: ./surveys.csv
    fields: {id: message_id, feedback: rating}
  gateway:
    uri: ./gateway/*.jsonl
    fields: {user: actor.login, cost: billing.amount}
""",
    ),
    Chapter(
        "evals",
        "evals",
        "Evaluation suites under names of your own. Rows that hold one of their items are dropped "
        "(`curation.decontamination`), and the evaluation asks items whose answers it can score "
        "([evaluation.md](evaluation.md)).",
        """\
evals:
  gsm8k: {uri: ./evals/gsm8k.jsonl, format: gsm8k}
  extract: {uri: ./evals/extract.jsonl, task: json_schema}
""",
    ),
    Chapter(
        "tiny",
        "tiny",
        "Used only with `base_model: tiny`. It takes the [training keys](#training-keys) as well.",
        """\
base_model: tiny
tiny: {layers: 10, steps: 400, learning_rate: 4e-3}
""",
    ),
    Chapter(
        "curation",
        "curation",
        "Each rule drops rows and records why; `millrace why` shows the decision on a row. "
        "Set a rule to false to switch it off. [data.md](data.md) says how the rules work.",
        """\
curation:
  pii: redact
  near_duplicates: {similarity: 0.8}
  decontamination: {enabled: false}
  language: {allow: [en, de]}
""",
    ),
    Chapter("curation.near_duplicates", "curation.near_duplicates", "", ""),
    Chapter(
        "curation.semantic_duplicates",
        "curation.semantic_duplicates",
        "",
        """\
curation:
  semantic_duplicates: {enabled: true, model: ./models/embedder}
""",
    ),
    Chapter("curation.decontamination", "curation.decontamination", ""),
    Chapter("curation.status", "curation.status", ""),
    Chapter("curation.tools", "curation.tools", ""),
    Chapter("curation.language", "curation.language", ""),
    Chapter("curation.repetition", "curation.repetition", ""),
    Chapter("curation.length", "curation.length", ""),
    Chapter("curation.feedback", "curation.feedback", ""),
    Chapter(
        "curation.judge",
        "curation.judge",
        "Leave the key out, or set it to null, to judge no row.",
        """\
curation:
  judge: {base_url: http://localhost:8000/v1, model: judge, api_key_env: JUDGE_API_KEY}
  min_quality: 6
""",
    ),
    Chapter(
        "drift",
        "drift",
        "`drift: {enabled: false}` switches the comparison off. [drift.md](drift.md) says what is "
        "tested, and what the rate of false alarms means.",
        """\
drift:
  reference_days: 28
  false_alarms_per_1000_days: 1
""",
    ),
    Chapter("datasets", "datasets", "One dataset is always made, `sft`; the others where they are given."),
    Chapter(
        "datasets.sft",
        "datasets.sft",
        "[data.md](data.md#datasets) explains mixing, splits and the card.",
        """\
datasets:
  sft:
    mix: {gateway: 0.9, handmade: {rows: 500}}
    limits: {handmade: {max_repeats: 3}}
    test_share: 0.1
    validation_share: 0.05
""",
    ),
    Chapter("datasets.sft.mix", "datasets.sft.mix", ""),
    Chapter("datasets.sft.limits", "datasets.sft.limits", ""),
    Chapter(
        "datasets.preference",
        "datasets.preference",
        "Leave the key out to make none.",
        """\
datasets:
  preference: {min_difference: 1, confidence: {rated: 0.9, strong: 0.6}}
""",
    ),
    Chapter("datasets.preference.confidence", "datasets.preference.confidence", ""),
    Chapter(
        "datasets.rl_prompts",
        "datasets.rl_prompts",
        "Leave the key out to make none.",
        """\
datasets:
  rl_prompts:
    tasks:
      arithmetic: {uri: ./train/arithmetic.jsonl, task: number}
""",
    ),
    Chapter(
        "datasets.calibration",
        "datasets.calibration",
        "Leave the key out to calibrate with rows of `datasets.sft`.",
        """\
datasets:
  calibration: {rows: 256}
""",
    ),
    Chapter(
        "datasets.named",
        "datasets.named",
        "Each has a mixture and a choice of rows of its own, and the held-out rows of "
        "`datasets.sft`. [data.md](data.md#named-datasets) explains them.",
        """\
datasets:
  named:
    best: {min_feedback: 1, mix: {gateway: 0.5, handmade: 0.5}, max_rows: 2000}
sft: {dataset: best}
""",
    ),
    Chapter(
        "sft",
        "sft",
        "`sft: {enabled: false}` switches the stage off: the next stage starts from the base model. It takes "
        "the [training keys](#training-keys) as well.",
        """\
sft:
  method: lora
  lora: {rank: 32, alpha: 64}
  epochs: 2
  learning_rate: 2e-4
""",
    ),
    Chapter("sft.lora", "sft.lora", ""),
    Chapter(
        "second_sft",
        "second_sft",
        "Leave the key out for one stage. It takes the [training keys](#training-keys) as "
        "well, and takes nothing over from `sft`. [training.md](training.md#a-second-stage) explains it.",
        """\
datasets:
  named:
    best: {min_feedback: 1, max_rows: 2000}
second_sft: {dataset: best, epochs: 1, learning_rate: 5e-6}
""",
    ),
    Chapter(
        "preference",
        "preference",
        "Leave the key out to train none. It learns `datasets.preference`, and takes the [training keys](#training-keys) as "
        "well. [preference.md](preference.md#training) explains losses and metrics.",
        """\
datasets: {preference: {}}
preference: {loss: [{dpo: 0.8}, {bco: 0.2}, {sft: 1.0}], beta: 0.1}
""",
    ),
    Chapter(
        "preference.on_policy",
        "preference.on_policy",
        "",
        """datasets: {rl_prompts: {tasks: {sums: {uri: ./sums.jsonl, task: number}}}}
preference: {on_policy: {prompts: rl_prompts, grader: verifier}}
""",
    ),
    Chapter("preference.on_policy.grader", "preference.on_policy.grader", ""),
    Chapter(
        "preference.on_policy.grader.parts",
        "preference.on_policy.grader.parts",
        "",
        """datasets: {preference: {}}
preference:
  on_policy:
    grader:
      parts:
        liked: {by: judge, judge: {base_url: http://localhost:8000/v1, model: Qwen/Qwen3-32B}}
        brief: {by: length, most_tokens: 300, weight: 0.2}
""",
    ),
    Chapter("preference.on_policy.grader.parts.*.judge", "preference.on_policy.grader.parts.judge", ""),
    Chapter(
        "rft",
        "rft",
        "Leave the key out to train none. It answers the prompts of `datasets.rl_prompts`, and takes the "
        "[training keys](#training-keys) as well. [reinforcement.md](reinforcement.md) explains losses and metrics.",
        """\
datasets: {rl_prompts: {tasks: {sums: {uri: ./sums.jsonl, task: number}}}}
rft: {grader: verifier}
""",
    ),
    Chapter("rft.grader", "rft.grader", ""),
    Chapter(
        "rft.grader.parts",
        "rft.grader.parts",
        "",
        """datasets: {rl_prompts: {tasks: {sums: {uri: ./sums.jsonl, task: number}}}}
rft:
  grader:
    parts:
      right: {by: verifier}
      brief: {by: length, most_tokens: 300, weight: 0.2}
""",
    ),
    Chapter("rft.grader.parts.*.judge", "rft.grader.parts.judge", ""),
    Chapter("rft.held_out_grader", "rft.held_out_grader", ""),
    Chapter(
        "rft.server",
        "rft.server",
        "[reinforcement.md](reinforcement.md#engines) says when a server samples.",
        """datasets: {rl_prompts: {tasks: {sums: {uri: ./sums.jsonl, task: number}}}}
rft:
  grader: verifier
  engine: vllm
  server: {arguments: ["--gpu-memory-utilization", "0.4"]}
""",
    ),
    Chapter(
        "reward_model",
        "reward_model",
        "Leave the key out to train none. It learns `datasets.preference`, and takes the [training keys](#training-keys) as "
        "well. [preference.md](preference.md#reward-model) explains what is measured.",
        """\
datasets: {preference: {}}
reward_model: {method: lora, gate: {accuracy: 0.6}}
""",
    ),
    Chapter("reward_model.gate", "reward_model.gate", ""),
    Chapter(
        "teacher",
        "teacher",
        "Leave the key out to learn the logged answers. [teachers.md](teachers.md) explains cost, limits and failures.",
        """\
teacher:
  base_url: https://api.example.com/v1
  model: big-model
  api_key_env: TEACHER_API_KEY
  licence: apache-2.0
  price: {input: 0.5, output: 1.5}
  max_cost: 20
""",
    ),
    Chapter("teacher.price", "teacher.price", ""),
    Chapter(
        "teacher.verify",
        "teacher.verify",
        "With `answers` above 1: rejection sampling.",
        """\
teacher:
  base_url: http://localhost:8000/v1
  model: big-model
  licence: apache-2.0
  answers: 4
  verify: {kind: number}
""",
    ),
    Chapter(
        "merge",
        "merge",
        "Leave the key out to merge nothing. [merging.md](merging.md) explains it.",
        """\
merge: {models: [sft, base], weights: [0.7, 0.3]}
""",
    ),
    Chapter(
        "student",
        "student",
        "`student: {enabled: false}` switches the stage off. It takes the "
        "[training keys](#training-keys) as well. [distillation.md](distillation.md) explains the choices.",
        """\
student: {layers: 0.5, label_weight: 0.3, epochs: 2}
""",
    ),
    Chapter("student.on_policy", "student.on_policy", ""),
    Chapter(
        "quantize",
        "quantize",
        "`quantize: {enabled: false}` switches the stage off. [quantization.md](quantization.md) compares the schemes.",
        """\
quantize: {enabled: false}
""",
    ),
    Chapter(
        "quantize.distil",
        "quantize.distil",
        "Off by default. It takes the [training keys](#training-keys) as well.",
        """\
quantize:
  scheme: w4a16
  distil: {enabled: true, epochs: 1}
""",
    ),
    Chapter(
        "speculator",
        "speculator",
        "`speculator: {enabled: false}` switches the stage off. It takes the "
        "[training keys](#training-keys) as well. Each architecture has keys of its own; a key of another one is "
        "refused. [speculators.md](speculators.md) compares the architectures.",
        """\
speculator:
  architecture: eagle3
  num_speculative_tokens: 3
  answers: {prompts: 20000, temperature: 1.0, max_new_tokens: 256}
""",
    ),
    Chapter("speculator.answers", "speculator.answers", ""),
    Chapter(
        "speculator.answers.endpoint",
        "speculator.answers.endpoint",
        "Leave the key out to answer with the project's own generator.",
        """\
speculator:
  answers:
    endpoint: {base_url: http://localhost:8000/v1, model: tutor, api_key_env: TUTOR_API_KEY}
""",
    ),
    Chapter("evaluation", "evaluation", "[evaluation.md](evaluation.md) says what is measured, and how."),
    Chapter(
        "evaluation.server",
        "evaluation.server",
        "Leave the key out to start no server. "
        "[evaluation.md](evaluation.md#in-a-real-server) says what is asked and compared.",
        """\
evaluation:
  server: {kind: vllm, arguments: ["--max-model-len", "8192"]}
""",
    ),
    Chapter(
        "evaluation.server.drafting",
        "evaluation.server.drafting",
        "[speculators.md](speculators.md#what-a-release-drafts-with) says how the release chooses.",
        """\
evaluation:
  server:
    kind: vllm
    concurrencies: [1, 4, 16]
    drafting: {methods: [ngram, drafter], num_speculative_tokens: [1, 3, 5]}
""",
    ),
    Chapter("evaluation.tasks", "evaluation.tasks", ""),
    Chapter(
        "evaluation.tasks.judge",
        "evaluation.tasks.judge",
        "",
        """\
evaluation:
  tasks:
    judge: {base_url: http://localhost:8000/v1, model: Qwen/Qwen3-32B}
""",
    ),
    Chapter(
        "release",
        "release",
        "`release: {enabled: false}` switches release and endpoint off. [releases.md](releases.md) says what approval does.",
        """\
release:
  approval: person
  gates: {recovery: 0.99, acceptance_length: 1.5}
""",
    ),
    Chapter(
        "release.serving",
        "release.serving",
        "[releases.md](releases.md#files-of-a-release) lists the files.",
        """\
release:
  zero_retention: true
  serving: {gpus: 2, memory_gib: 128, images: {vllm: "registry.example.com/vllm:v0.32.0"}}
""",
    ),
    Chapter("release.serving.images", "release.serving.images", ""),
    Chapter(
        "release.gates",
        "release.gates",
        "All but `erased_rows` are on by default; [evaluation.md](evaluation.md#gates) explains them.",
    ),
    Chapter(
        "release.drafting",
        "release.drafting",
        "[speculators.md](speculators.md#what-a-release-drafts-with) explains the choice.",
        """\
evaluation: {server: {kind: vllm, concurrencies: [1, 16]}}
release:
  drafting: {choose: measured, concurrency: [16]}
""",
    ),
    Chapter(
        "release.watch",
        "release.watch",
        "Leave the key out to watch no release. [watch.md](watch.md) says what is "
        "compared, and what the rate of false alarms means.",
        """\
release:
  watch: {hours: 48, acceptance_drop: 0.1, false_alarm: 0.01}
""",
    ),
    Chapter("automation", "automation", ""),
    Chapter(
        "automation.retrain",
        "automation.retrain",
        "",
        """\
automation:
  retrain: {enabled: true, cron: "0 3 * * 1"}     # every Monday at 3:00
""",
    ),
    Chapter(
        "automation.decide",
        "automation.decide",
        "Off by default. [automation.md](automation.md) says what is decided, and how.",
        """\
automation:
  watch_logs: true
  decide:
    enabled: true
    quiet: ["* 8-19 * * 1-5"]        # nothing starts on working days from 8:00 to 20:00
    timezone: Europe/Amsterdam
    budget: {runs_per_week: 3, device_hours_per_week: 20}
""",
    ),
    Chapter("automation.decide.budget", "automation.decide.budget", ""),
    Chapter(
        "alerts",
        "alerts",
        "Leave the key out to be told nothing. Addresses with secrets and passwords are named by their "
        "environment variables. [alerts.md](alerts.md) says what is told, and in which form.",
        """\
alerts:
  webhook: {url_env: ALERT_WEBHOOK_URL}
  email:
    host: smtp.example.com
    sender: millrace@example.com
    to: [team@example.com]
    user: millrace
    password_env: SMTP_PASSWORD
""",
    ),
    Chapter("alerts.webhook", "alerts.webhook", ""),
    Chapter(
        "alerts.slack",
        "alerts.slack",
        "",
        """\
alerts:
  slack: {url_env: SLACK_WEBHOOK_URL}
  kinds: [approval, failed_run, rollback]
""",
    ),
    Chapter("alerts.email", "alerts.email", ""),
    Chapter(
        "retention",
        "retention",
        "Leave the key out to keep everything. [erasure.md](erasure.md#retention) says what is never removed.",
        """\
retention: {raw_days: 30, curated_days: 365, versions_days: 30, old_files_days: 7}
""",
    ),
)
"""In the order of the graph."""

INTRODUCTION = """\
A recipe is one YAML file for one workload. This page lists all of its keys; `millrace schema --markdown` prints it, and a test
keeps it equal to the code. `millrace schema > recipe.schema.json` writes the same as JSON Schema (draft 2020-12). An editor
with the YAML language server (VS Code, Neovim, ...) completes and checks the keys of a recipe whose first line names that file:

```yaml
# yaml-language-server: $schema=recipe.schema.json
```

## The file

- Unknown keys and values of the wrong kind are refused. Each problem is one sentence with the line, the key and what would be
  right; the nearest key of the whole recipe is proposed.
- A key given twice, a tab, a second document and an unknown tag are refused. Anchors, aliases and `<<` work.
- Values are read as YAML 1.2: `1e-3` is a number; `no`, `off` and `1:30` are text. Where a key asks for true or false, `yes`,
  `no`, `on` and `off` are understood. Numbers in quotes are text and are refused where a number is asked for.
- Dates are written as year, month, day: `2026-06-01`.
- A default in words ("by preset") can be written as `null`. Elsewhere `null` is accepted only where this page says so. A
  section without keys below it (`student:`) is refused, because it could mean off: write `enabled: false`, or remove it.
- Relative paths start at the folder of the recipe. Never write keys or passwords into a recipe: endpoints take the name of an
  environment variable.

## Switching a stage off

`enabled: false` switches off:

{switches}

Any combination works that makes at least one model: `recipes/` has `drafter_only.yaml`, `quantize_only.yaml`,
`distil_only.yaml`, `finetune_only.yaml`, `preferences.yaml`, `rft.yaml`, `rft-tools.yaml`, `r1-distill.yaml`,
`merged.yaml`, `taught.yaml` and `models_only.yaml`. Everything else is always on. `preference`, `rft`, `merge`, `teacher`,
`curation.judge` and `speculator.answers.endpoint` are off until they are given.

```yaml
student: {{enabled: false}}
quantize: {{enabled: false}}
speculator: {{enabled: false}}
```

A stage that is off is not in the graph; the next stage starts from the one before it, the first one from the base model. What
is served is then the last model that is on, or the base model itself.
"""

TRAINING = """\
`tiny` and each section of a trained stage take these keys. `preset` fills what is left out:

{presets}

{settings}
`mesh` and its keys are for `sft`, `preference`, `student`, and without `cp` for `reward_model` and `rft`; `speculator` and
`quantize` take `dp_replicate` and `dp_shard` only, and `tiny` takes one process. [training.md](training.md) explains
schedules, checkpoints and meshes.
"""
