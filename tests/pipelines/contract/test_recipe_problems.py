"""A wrong recipe is answered with one sentence a problem: the line, the key, and what would be right."""

import itertools
import json
import random
import re

import pytest

from pipelines.contract.keys import ANY_NAME, accepted, keys_of
from pipelines.contract.problems import RecipeProblemsError
from pipelines.contract.recipe import Recipe, load_recipe
from pipelines.storage.locations import RECIPES
from tests.pipelines.contract.wrong_recipes import SMALLEST, VALUES, recipe_with, unlike_keys
from tests.thorough_cases import thorough_except

UNCLEAN = re.compile(r"pydantic|Input should|\bNone\b|Settings|: ?:|::|<class|\n|\bdict\b|\bstr\b|\bint\b|Traceback")


def problems(folder, text):
    path = folder / "toy.yaml"
    path.write_text(text)
    with pytest.raises(RecipeProblemsError) as raised:
        load_recipe(path)
    for problem in raised.value.problems:
        assert not UNCLEAN.search(str(problem)), problem
    assert str(raised.value).count("\n") == len(raised.value.problems) - 1
    return raised.value.problems


def said(folder, more):
    return [str(problem) for problem in problems(folder, SMALLEST + more)]


@pytest.mark.parametrize(
    "more, expected",
    [
        ("sft: {rank: 8}", "sft.rank: there is no such key; did you mean sft.lora.rank?"),
        (
            "sft: {early_end: {enabled: true}}",
            "sft.early_end: there is no such key any more: a training ends with its steps or epochs",
        ),
        (
            "student: {base: ./other, across_tokenizers: spelling}",
            "student.across_tokenizers: there is no such key any more: a student with another tokenizer learns answers, by "
            "student.label_weight: 1",
        ),
        ("sft: {lr: 1e-3}", "sft.lr: there is no such key; did you mean learning_rate?"),
        ("sft: {lora_rank: 8}", "sft.lora_rank: there is no such key; did you mean sft.lora.rank?"),
        ("sft: {learning-rate: 1e-3}", "sft.learning-rate: there is no such key; did you mean learning_rate?"),
        ("evals: {gsm8k: {ur: a}}", "evals.gsm8k.ur: there is no such key; did you mean uri?"),
        ("sft: {steps:3}", "sft.'steps:3': there is no such key; write one colon after a key, and a space after the colon"),
        ("tracking:: none", "'tracking:': there is no such key; write one colon after a key, and a space after the colon"),
        ("student: false", "student: it holds false; write `student: {enabled: false}` to switch it off"),
        ("speculator: none", "speculator: it holds 'none'; write `speculator: {enabled: false}` to switch it off"),
        ("sft: {dataset: best}", "sft.dataset: there is no dataset best under datasets.named; none is given there"),
        (
            "datasets: {named: {good: {}, better: {}}}\nsft: {dataset: best}",
            "sft.dataset: there is no dataset best under datasets.named; there are good, better",
        ),
        (
            "datasets: {named: {best: {mix: {gatewy: 1}}}}",
            "datasets.named.best.mix.gatewy: no source and no seed has this name; did you mean gateway?",
        ),
        (
            "datasets: {named: {sft_model: {}}}",
            "datasets.named.sft_model: millrace makes something of this name itself; choose another name",
        ),
        (
            "datasets: {named: {best: {min_quality: 8}}}",
            "datasets.named.best.min_quality: no judge scores the rows, so none would be left; set curation.judge, or leave it out",
        ),
        (
            "datasets: {preference: {dissatisfaction: 3}}",
            "datasets.preference.dissatisfaction: a judge rates the reactions, and nothing says which; set curation.judge",
        ),
        (
            "datasets: {preference: {dissatisfaction: 6}}",
            "datasets.preference.dissatisfaction: it holds 6; give a whole number from 1 to 5",
        ),
        (
            "datasets: {named: {best: {mix: {gateway: 0}}}}",
            "datasets.named.best: mix holds only zeros; give at least one source or seed a share above 0",
        ),
        ("retention: {counts_only: [gatway]}", "retention.counts_only: no source is called gatway; there are gateway"),
        (
            "seeds: {millrace_chat: {uri: a.jsonl}}\ndatasets: {sft: {mix: {millrace_chat: 2, gateway: 1}}}",
            "seeds.millrace_chat: answers that people rate in `millrace chat` have this name; give another one",
        ),
        ("evals: {gsm8k: ./gsm8k.jsonl}", "evals.gsm8k: it holds './gsm8k.jsonl'; write `gsm8k: {uri: ...}`"),
        ("seeds: {a: s3://b/c}", "seeds.a: it holds a text that is not accepted; write `a: {uri: ...}`"),
        ("speculator: {architecture: draft_model, draft_model: 7}", "speculator.draft_model: it holds 7; give text, in quotes"),
        (
            "release: {form: adapter}\nspeculator: {enabled: false}",
            "release.form: it is adapter, and what is served is the quantized model, which is no LoRA adapter on the base model; set sft.method "
            "to lora or qlora and switch the stages after sft off (student, quantize), or set release.form to merged",
        ),
        (
            "release: {form: adapter}\nspeculator: {enabled: false}\nstudent: {enabled: false}\nquantize: {enabled: false}",
            "release.form: it is adapter, and what is served is the fine-tuned model with sft.method full, which is no LoRA adapter on the base "
            "model; set sft.method to lora or qlora and switch the stages after sft off (student, quantize), or set release.form to merged",
        ),
        (
            "release: {form: adapter}\nsft: {method: lora, continue_from: last}\nspeculator: {enabled: false}\nstudent: {enabled: false}\n"
            "quantize: {enabled: false}",
            "sft.continue_from: it is last, and release.form is adapter: what is continued has the earlier adapter merged in, so the new one is "
            "none on the base model; leave it out, or set release.form to merged",
        ),
        (
            "release: {form: adapter}\nsft: {method: lora}\nstudent: {enabled: false}\nquantize: {enabled: false}",
            "release.form: it is adapter, and a drafter is trained for one model: a server on a shared base has one drafter for all its "
            "adapters; set speculator.enabled to false, or set release.form to merged",
        ),
        (
            "release: {form: adapter, serve_on: sglang/h100}\nsft: {method: lora}\nstudent: {enabled: false}\nquantize: {enabled: false}\n"
            "speculator: {enabled: false}",
            "release.serve_on: it is sglang/h100, and adapters are served by vLLM only; name vllm, or set release.form to merged",
        ),
        (
            "release: {form: adapter}\nsft: {method: lora, lora: {rank: 600}}\nstudent: {enabled: false}\nquantize: {enabled: false}\n"
            "speculator: {enabled: false}",
            "sft.lora.rank: it is 600, release.form is adapter, and vLLM serves ranks up to 512; give less, or set release.form to merged",
        ),
        (
            "speculator: {block_size: 4}",
            "speculator: block_size is set, but architecture is eagle3 and only dflash has it: leave it out",
        ),
        (
            "speculator: {architecture: mtp, num_layers: 2}",
            "speculator: num_layers is set, but architecture is mtp and eagle3, eagle3.1, dflash have it: leave it out",
        ),
        ("speculator: {architecture: medusa, residual_layers: 2}", "speculator: architecture medusa was removed: take eagle3"),
        ("speculator: {architecture: p_eagle}", "speculator: architecture p_eagle was removed: take eagle3"),
        (
            "speculator: {architecture: eagle4}",
            "speculator.architecture: it holds 'eagle4'; give one of eagle3, eagle3.1, "
            "dflash, mtp, draft_model; did you mean eagle3?",
        ),
        (
            "speculator: {architecture: null}",
            "speculator.architecture: is empty; give one of eagle3, eagle3.1, dflash, mtp, draft_model, or leave the key out",
        ),
        (
            "speculator: {architecture: dflash, blocksize: 4}",
            "speculator.blocksize: there is no such key; did you mean block_size?",
        ),
        ("speculator: {architecture: dflash, anchors: 0}", "speculator.anchors: it holds 0; give a whole number of at least 1"),
        ("gates: {recovery: 0.9}", "gates: there is no such key; did you mean release.gates?"),
        ("judge: {model: m}", "judge: there is no such key; did you mean curation.judge?"),
        ("steps: 3", "steps: there is no such key; did you mean tiny.steps, sft.steps, student.steps or speculator.steps?"),
        ("sft.steps: 3", "sft.steps: a key holds no dot; write steps below sft"),
        (
            "speculator: {temperature: 1}",
            "speculator.temperature: there is no such key; did you mean speculator.answers.temperature?",
        ),
        ("sft: {workload: a}", "sft.workload: there is no such key; did you mean workload?"),
        (
            "curation: {judge: {enabled: false}}",
            "curation.judge.enabled: there is no such key; leave curation.judge out to switch it off",
        ),
        (
            "student: null",
            "student: is empty; write `student: {enabled: false}` to switch it off, or leave the key out to take its defaults",
        ),
        ("sft:", "sft: is empty; write `sft: {enabled: false}` to switch it off, or leave the key out to take its defaults"),
        (
            "student: {layers: 99}",
            "student.layers: the student cannot keep 99 layers, its teacher has 10; set student.layers to at "
            "most 10, or to a share below 1",
        ),
        (
            "student: {layers: 11}",
            "student.layers: the student cannot keep 11 layers, its teacher has 10; set student.layers to at "
            "most 10, or to a share below 1",
        ),
        ("student: {layers: 2.5}", "student: layers is 2.5; it must be a share below 1 or a whole number of layers"),
        ("student: {layers: 70%}", "student.layers: it holds '70%'; give a number above 0 and at most 1,024; 70% is 0.7"),
        (
            "first_day: 2026-02-30",
            "first_day: there is no day 2026-02-30; a date is a year, a month and a day, such as 2026-06-01",
        ),
        ("first_day: 20260601", "first_day: a date is a year, a month and a day, such as 2026-06-01, without a time"),
        (
            "first_day: 2026-06-01T10:00:00",
            "first_day: a date is a year, a month and a day, such as 2026-06-01, without a time",
        ),
        ("first_day: 0206-06-01", "first_day: the year 206 is before 2000; is it a typing error?"),
        (
            "first_day: 2126-06-01",
            "first_day: 2126-06-01 is in the future, so there would be no day to read; give a day that has begun",
        ),
        ("speculator: {draft_coverage: 1.2}", "speculator.draft_coverage: it holds 1.2; give a number above 0 and at most 1"),
        (
            "datasets: {sft: {test_share: 1.5}}",
            "datasets.sft.test_share: it holds 1.5; give a number of at least 0 and below 1",
        ),
        (
            "datasets: {sft: {test_share: 0.6, validation_share: 0.5}}",
            "datasets.sft: validation_share and test_share leave nothing to train on; their sum must be below 1",
        ),
        (
            "datasets: {sft: {mix: {gateway: 0}}}",
            "datasets.sft: mix holds only zeros; give at least one source or seed a share above 0",
        ),
        ("datasets: {sft: {mix: {gateway: -1}}}", "datasets.sft.mix.gateway: it holds -1; give a number of at least 0"),
        (
            "datasets: {sft: {mix: {gatewy: 1}}}",
            "datasets.sft.mix.gatewy: no source and no seed has this name; did you mean gateway?",
        ),
        ('threads: "8"', "threads: it holds '8'; give a whole number from 1 to 1,024, without quotes"),
        ("threads: true", "threads: it holds true; give a whole number from 1 to 1,024"),
        ("sft: {learning_rate: .inf}", "sft.learning_rate: it holds .inf; give a number above 0 and at most 1"),
        ("sft: {gradient_clip: .nan}", "sft.gradient_clip: it holds .nan; give a number above 0"),
        (
            "quantize: {scheme: auto, budget: 0.4, candidates: [float]}",
            "quantize.candidates: it holds 1 of at least 2 items; give a "
            "list, each item one of fp8, fp8_block, w4a16, w4a16_g64, w4a16_g32, w8a8, w8a16, w8a16_channel, float",
        ),
        ("sft: [steps, 3]", "sft: it holds a list; give a mapping of keys, such as preset, steps, epochs"),
        (
            "quantize: {scheme: w8a9}",
            "quantize.scheme: it holds 'w8a9'; give one of fp8, fp8_block, w4a16, w4a16_g64, w4a16_g32, w8a8, w8a16, w8a16_channel, "
            "auto; did you mean "
            "w8a8?",
        ),
        ("quantize: {scheme: auto}", "quantize: scheme auto needs a budget: give one, such as 0.4"),
        (
            "quantize: {scheme: auto, budget: 0.4, candidates: [w4a16, w8a16]}\nrelease: {serve_on: vllm/cpu}",
            "quantize.candidates: vllm/cpu does not load scheme w8a16: choose w8a8, w4a16, w4a16_g64, w4a16_g32 or fp8 (w8a16 is loaded "
            "by vllm on GPU from 7.5; sglang on GPU from 8.0; transformers on any GPU, x86 CPU)",
        ),
        ("sft: {optimizer: adam}", "sft.optimizer: it holds 'adam'; give one of adamw, adamw_8bit, muon; did you mean adamw?"),
        (
            "automation: {retrain: {cron: 99 3 * * *}}",
            'automation.retrain.cron: the minute of a cron schedule is 0 to 59, not 99; "0 3 * * 1" is every Monday at 3:00',
        ),
        (
            "automation: {retrain: {cron: 0 0 31 2 *}}",
            'automation.retrain.cron: no time matches this cron schedule; "0 3 * * 1" is every Monday at 3:00',
        ),
        (
            "automation: {decide: {budget: {money_per_week: 5}}}",
            "automation.decide.budget.money_per_week: no price is known, so no cost "
            "in money is either; set automation.decide.price_per_device_hour, or leave it out",
        ),
        (
            "automation: {decide: {enabled: true, causes: [schedule]}}",
            "automation.decide.causes: it is schedule alone, and there is none; "
            "set automation.retrain.enabled to true, or name another cause",
        ),
        (
            'automation: {decide: {enabled: true, quiet: ["* * * * *"]}}',
            "automation.decide.quiet: * * * * * is every minute, so nothing "
            "would ever be started; give the minutes in which nothing may start, or set dry_run to true",
        ),
        (
            "release: {enabled: false, watch: {hours: 24}}",
            "release.watch: release.enabled is false, so there is nothing to watch; leave it out, or set enabled to true",
        ),
        (
            "automation: {decide: {enabled: true, causes: []}}",
            "automation.decide.causes: it is empty, so nothing would be looked at; name a cause, or set enabled to false",
        ),
        (
            "automation: {decide: {budget: {runs_per_week: -1}}}",
            "automation.decide.budget.runs_per_week: it holds -1; give a number from 0 to 10,000",
        ),
        ("tiny: {kv_heads: 3}", "tiny: kv_heads 3 is not a divisor of heads 4; give a divisor"),
        (
            "release: {gates: {acceptance_length: 4.5}}",
            "release.gates.acceptance_length: 4.5 cannot be reached: 3 drafted tokens give "
            "at most 4 a verification; give less, or raise speculator.num_speculative_tokens",
        ),
        (
            "release: {serve_on: vllm/b200}",
            "quantize.scheme: vllm/b200 does not load scheme w8a8: choose w4a16, w4a16_g64, w4a16_g32, "
            "fp8, fp8_block, w8a16 or w8a16_channel (w8a8 is loaded by vllm on GPU from 7.5 to below 10.0, x86 CPU; sglang on GPU from 8.0 to below 10.0, x86 CPU with "
            "AMX; transformers on any GPU, x86 CPU)",
        ),
        (
            "quantize: {scheme: w4a16, kv_cache: fp8}\nrelease: {serve_on: vllm/a100}",
            "quantize.kv_cache: vllm/a100 has no FP8 cache of "
            "keys and values: leave quantize.kv_cache out (it is read by vllm on GPU from 8.9, x86 CPU; sglang on GPU from 8.9; "
            "transformers on any GPU, x86 CPU)",
        ),
        (
            "release: {serve_on: llama.cpp/cpu}",
            "release.serve_on: llama.cpp/cpu reads GGUF files only: set quantize: {gguf: true}",
        ),
        (
            "release: {serve_on: vllm}",
            "release.serve_on: 'vllm' is no server and device: give one of vllm, sglang, transformers, "
            "llama.cpp, a slash, and cpu, cpu-amx, a device such as h100, or sm and a compute capability such as sm80",
        ),
        (
            "last_day: 2026-06-01\nfirst_day: 2026-06-02",
            "last_day: 2026-06-01 is before first_day 2026-06-02; change one of them",
        ),
    ],
)
def test_each_problem_is_one_sentence(tmp_path, more, expected):
    assert said(tmp_path, more + "\n") == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workload: a\nbase_model: tiny\nsources: {gateway: {url: ./logs}}\n", "sources.gateway.url: … did you mean uri?"),
        ("workload: a\nbase_model: tiny\nsources: {gateway: {path: ./logs}}\n", "sources.gateway.path: … did you mean uri?"),
        (SMALLEST + "evals: {gsm8k: {url: ./gsm8k}}\n", "evals.gsm8k.url: … did you mean uri?"),
        ("workload: a\nmodel: tiny\nsources: {a: {uri: b}}\n", "model: … did you mean base_model?"),
        ("workload: a\nbase_model: tiny\ndata: {a: {uri: b}}\n", "data: … did you mean sources?"),
        (SMALLEST + "speculator: {arch: eagle3}\n", "speculator.arch: … did you mean architecture?"),
        (SMALLEST + "sft: {warmup_steps: 8}\n", "sft.warmup_steps: … did you mean warmup_share?"),
        (SMALLEST + "curation: {judge: {url: http://a, model: m}}\n", "curation.judge.url: … did you mean base_url?"),
    ],
)
def test_a_key_of_the_same_section_is_meant_before_one_far_away(tmp_path, text, expected):
    found = [str(problem) for problem in problems(tmp_path, text)]
    assert expected.replace("…", "there is no such key;") in found


def test_problems_are_named_all_at_once_with_their_lines_in_the_order_of_the_file(tmp_path):
    text = SMALLEST + "sft:\n  steps: 0\n  rank: 8\nstudent: {layers: [1]}\nsft: {}\nspeculator:\n  answers:\n    prompts: -5\n"
    found = problems(tmp_path, text)
    assert [(problem.line, problem.key) for problem in found] == [
        (6, "sft.steps"),
        (7, "sft.rank"),
        (8, "student.layers"),
        (9, "sft"),
        (12, "speculator.answers.prompts"),
    ]
    missing = problems(tmp_path, "threads: 0\n")
    assert [(problem.line, problem.key) for problem in missing] == [
        (1, "threads"),
        (None, "workload"),
        (None, "base_model"),
        (None, "sources"),
    ]


def test_the_message_begins_with_file_and_line(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(SMALLEST + "\nsft:\n  rank: 8\n")
    with pytest.raises(RecipeProblemsError) as raised:
        load_recipe(path)
    assert str(raised.value) == f"{path} line 7: sft.rank: there is no such key; did you mean sft.lora.rank?"


def test_a_sentence_about_a_section_stands_at_the_line_of_the_key_it_names(tmp_path):
    [problem] = problems(tmp_path, SMALLEST + "sft:\n  steps: 3\n  lora: {rank: 8}\n")
    assert (problem.line, problem.key) == (7, "sft")


@pytest.mark.parametrize(
    "more",
    [
        "sft: {learning_rate: 1e-3, tokens_per_step: 65_536, epochs: 2}",
        "curation: {language: {allow: [no, en]}}",
        "student: {enabled: no}",
        "student: {layers: 0.5}",
        "teacher: {base: sft, licence: mit, trains: student}\nstudent: {label_weight: 1}",
        "curation: {judge: null, min_quality: null}\nsft: {lora: null, steps: null}\nseeds:\nevals:",
        'first_day: "2026-06-01"\nlast_day: 2026-6-2',
        "release: {gates: {recovery: null}}",
        "sft: &t {steps: 3}\nstudent: {<<: *t, layers: 7}",
        "automation: {retrain: {cron: 0 3 * * mon-fri}}",
        "speculator: {architecture: eagle3, block_size: null, anchors: null}",
        "speculator: {enabled: false}\nrelease: {gates: {acceptance_length: 9}}",
    ],
)
def test_what_is_right_loads(tmp_path, more):
    path = tmp_path / "toy.yaml"
    path.write_text(SMALLEST + more + "\n")
    assert load_recipe(path).workload == "math-tutor"


def test_layers_of_a_base_in_a_directory_are_counted(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps({"text_config": {"num_hidden_layers": 6}}))
    text = SMALLEST.replace("tiny", "base")
    [problem] = problems(tmp_path, text + "student: {layers: 7}\n")
    assert "its teacher has 6" in problem.sentence
    for fine in ("student: {layers: 6}", "student: {layers: 7, enabled: false}"):
        (tmp_path / "fine.yaml").write_text(text + fine + "\n")
        assert load_recipe(tmp_path / "fine.yaml")


@pytest.mark.parametrize(
    "base, words",
    [
        ("TINY", "did you mean tiny?"),
        ("my model", "nor an id of the Hugging Face Hub"),
        ("a/b/c", "nor an id of the Hugging Face Hub"),
        ("~no-such-user-here/x", "base_model"),
        ("./" + "x" * 5000, "not a path on this machine"),
    ],
)
def test_a_base_that_is_nowhere(tmp_path, base, words):
    assert words in str(problems(tmp_path, SMALLEST.replace("tiny", base))[0])


def test_no_message_shows_a_secret(tmp_path):
    secret = "hunter2"
    judge = "curation: {judge: {base_url: 'http://a:hunter2@x/v1', model: m, api_key_env: sk-hunter2, prompt: [hunter2]}}"
    for text in (
        SMALLEST.replace("logs/", "s3://me:hunter2@bucket/x"),
        SMALLEST + judge,
        SMALLEST.replace("{uri: logs/}", "'s3://me:hunter2@bucket'"),
        SMALLEST + "threads: s3://me:hunter2@b\n",
        SMALLEST + "sft: {preset: sk-hunter2}\n",
        SMALLEST + "'s3://me:hunter2@b': 1\n",
        SMALLEST.replace("gateway", '"s3://me:hunter2@b"'),
        SMALLEST.replace("{uri: logs/}", "{uri: [hunter2]}"),
    ):
        assert problems(tmp_path, text)
        assert not any(secret in str(problem) for problem in problems(tmp_path, text)), text


@pytest.mark.parametrize("value", thorough_except(VALUES[::8], VALUES), ids=repr)
def test_any_value_of_any_key_loads_or_is_answered_in_clean_sentences(tmp_path, value):
    path = tmp_path / "toy.json"
    for key in unlike_keys():
        content, dotted = recipe_with(key, value)
        path.write_text(json.dumps(content))
        try:
            load_recipe(path)
        except RecipeProblemsError as error:
            for problem in error.problems:
                assert not UNCLEAN.search(str(problem)), (dotted, value, problem)
                assert problem.key and problem.line == 1, (dotted, value, problem)
            assert any(
                problem.key.startswith((dotted, dotted.rpartition(".")[0])) or dotted in problem.sentence
                for problem in error.problems
            ), (dotted, value, error)


def test_every_misspelt_key_finds_its_way_back(tmp_path):
    lost = []
    for key in unlike_keys():
        if len(key.name) < 5 or ANY_NAME in key.path[-1:]:
            continue
        content, dotted = recipe_with(key, 1)
        at = content
        *above, name = dotted.split(".")
        for part in above:
            at = at[part]
        del at[name]
        at[name[:2] + name[3:]] = 1
        path = tmp_path / "toy.json"
        path.write_text(json.dumps(content))
        with pytest.raises(RecipeProblemsError) as raised:
            load_recipe(path)
        if f"did you mean {name}?" not in str(raised.value):
            lost.append(dotted)
    assert lost == []


def test_what_is_accepted_is_said_of_every_key():
    for key in keys_of(Recipe):
        words = accepted(key.annotation, key.field.metadata)
        assert words and not UNCLEAN.search(words), (key.dotted, words)


def test_dagster_and_the_check_of_schedules_agree():
    import dagster as dg

    def takes(schedule):
        try:
            dg.ScheduleDefinition(job_name="any", cron_schedule=schedule)
        except dg.DagsterInvalidDefinitionError:
            return False
        return True

    from pipelines.contract.fields import checked_cron

    for minute, hour, day in itertools.product(
        ("*", "5", "*/15", "0,30", "60", "x"), ("3", "24", "1-5"), ("*", "31", "0", "L")
    ):
        schedule = f"{minute} {hour} {day} * *"
        try:
            ours = bool(checked_cron(schedule))
        except ValueError:
            ours = False
        assert ours == takes(schedule), schedule


def test_a_damaged_recipe_loads_or_is_answered_in_clean_sentences(tmp_path):
    whole = (RECIPES / "demo.yaml").read_text(encoding="utf-8")
    scraps = [
        *"abc:{}[]-#&*!|>'\"%@`,?\t\n 0.\\~<",
        "null",
        "---\n",
        "<<: ",
        "é",
        "😀",
        "\x85",
        "- ",
        "? ",
        "!!str ",
        "&a ",
        "*a",
    ]
    dice = random.Random(7)
    path = tmp_path / "toy.yaml"
    for _ in range(150):
        at = dice.randrange(len(whole))
        path.write_text(whole[:at] + dice.choice(scraps) + whole[at + dice.choice((0, 0, 1, 5)) :], encoding="utf-8")
        try:
            load_recipe(path)
        except RecipeProblemsError as error:
            assert error.problems
            for problem in error.problems:
                said = re.sub(r"'[^']*'", "", str(problem))  # a key in quotes is the recipe's own text
                assert not UNCLEAN.search(said), (problem, path.read_text(encoding="utf-8"))


def test_answers_with_log_probabilities_keep_their_reasoning(tmp_path):
    teacher = "teacher: {base_url: 'http://a/v1', model: m, licence: x, logprobs: 5}\nstudent: {teacher: answers}\n"
    [problem] = said(tmp_path, "datasets: {sft: {thinking: strip}}\n" + teacher)
    assert "datasets.sft.thinking: it is strip" in problem and "set it to keep" in problem
    (tmp_path / "toy.yaml").write_text(SMALLEST + teacher)
    assert load_recipe(tmp_path / "toy.yaml").student.teacher == "answers"
