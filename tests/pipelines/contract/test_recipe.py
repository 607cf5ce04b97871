"""Recipes: three keys are enough; every mistake is one sentence that names the field and what would be right."""

from datetime import date
from pathlib import Path

import pytest
import yaml

from pipelines.contract.recipe import load_recipe, read_recipe
from pipelines.contract.text import RecipeProblemsError

SMALLEST = "workload: math-tutor\nbase_model: tiny\nsources:\n  gateway: {uri: logs/}\n"


def write(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def refuses(tmp_path, text, words):
    with pytest.raises(RecipeProblemsError, match=words):
        load_recipe(write(tmp_path, text))


def test_three_keys_are_enough_and_paths_are_relative_to_the_recipe(tmp_path):
    recipe = load_recipe(write(tmp_path, SMALLEST))
    assert recipe.sources["gateway"].uri.startswith(str(tmp_path / "logs"))
    assert recipe.speculator.num_speculative_tokens == 3
    assert recipe.policy.served == "quantized_model"


def test_what_is_measured_is_what_is_served(tmp_path):
    more = "speculator: {num_speculative_tokens: 4, answers: {temperature: 0.7}}\n"
    recipe = load_recipe(write(tmp_path, SMALLEST + more))
    assert recipe.evaluate_settings.num_speculative_tokens == 4
    assert 0.7 in recipe.evaluate_settings.temperatures


def test_urls_are_left_alone(tmp_path):
    recipe = load_recipe(write(tmp_path, SMALLEST.replace("logs/", "s3://bucket/logs/")))
    assert recipe.sources["gateway"].uri == "s3://bucket/logs/"


def test_the_digest_depends_on_values_not_on_spelling(tmp_path):
    plain = load_recipe(write(tmp_path, SMALLEST)).digest
    spelled = load_recipe(write(tmp_path, SMALLEST + "quantize: {scheme: w8a8}\n")).digest
    changed = load_recipe(write(tmp_path, SMALLEST + "student: {layers: 0.5}\n")).digest
    assert plain == spelled != changed


def test_a_drafter_that_is_a_language_model_begins_from_the_student_or_from_a_directory(tmp_path):
    (tmp_path / "small").mkdir()
    student = load_recipe(write(tmp_path, SMALLEST + "speculator: {architecture: draft_model}\n"))
    assert student.policy.drafting_model == "student_model" and student.policy.source_of("quantized_model") == "sft_model"
    given = load_recipe(write(tmp_path, SMALLEST + "speculator: {architecture: draft_model, draft_model: small}\n"))
    assert given.policy.drafting_model is None and given.policy.source_of("quantized_model") == "student_model"
    assert given.speculator.draft_model == str(tmp_path / "small")
    off = "student: {enabled: false}\nspeculator: {architecture: draft_model"
    assert load_recipe(write(tmp_path, SMALLEST + off + ", draft_model: small}\n")).policy.drafter_from is None
    refuses(tmp_path, SMALLEST + off + "}\n", "enable the student, or name a directory")
    said = r"speculator.draft_model: there is no directory .*; give the directory of a small language"
    refuses(tmp_path, SMALLEST + "speculator: {architecture: draft_model, draft_model: none}\n", said)


def test_a_base_model_s_own_layer_drafts_where_it_has_one(tmp_path):
    (tmp_path / "mimo").mkdir()
    for drafter in ("{architecture: mtp}", "{architecture: mtp, mtp_layer: mimo}"):
        refuses(tmp_path, SMALLEST + f"speculator: {drafter}\n", "base_model tiny has none")
    own = load_recipe(write(tmp_path, SMALLEST.replace("tiny", "./mimo") + "speculator: {architecture: mtp}\n"))
    assert own.policy.drafter_from == "base_model" and own.policy.served == "quantized_model" and not own.policy.drafting_model
    assert own.quantize.mtp_layer and not load_recipe(write(tmp_path, SMALLEST)).quantize.mtp_layer
    said = SMALLEST.replace("tiny", "./mimo") + "quantize: {mtp_layer: false}\nspeculator: {architecture: mtp}\n"
    refuses(tmp_path, said, r"leave quantize\.mtp_layer out")
    said = SMALLEST.replace("tiny", "./mimo") + "speculator: {architecture: mtp, mtp_layer: mimo}\n"
    given = load_recipe(write(tmp_path, said))
    assert given.policy.drafter_from is None and given.speculator.mtp_layer == str(tmp_path / "mimo")


def test_a_share_of_a_previous_drafter_asks_for_one(tmp_path):
    said = r"previous_share is set and nothing is continued: set speculator\.continue_from"
    refuses(tmp_path, SMALLEST + "speculator: {previous_share: 0.5}\n", said)
    going_on = load_recipe(write(tmp_path, SMALLEST + "speculator: {previous_share: 0.5, continue_from: last}\n"))
    assert going_on.speculator.previous_share == 0.5


def test_a_students_base_is_a_directory_relative_to_the_recipe(tmp_path):
    small = tmp_path / "models" / "small"
    small.mkdir(parents=True)
    (small / "config.json").write_text('{"model_type": "qwen3", "num_hidden_layers": 2}')
    text = SMALLEST + "student: {base: ./models/small}\n"
    refuses(tmp_path, text, r"student\.base: .* holds no \.safetensors")
    (small / "model.safetensors").write_bytes(b"")
    (small / "tokenizer.json").write_text("{}")
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.student.base == str(small.resolve())
    assert read_recipe(recipe.as_text(), base=tmp_path / "elsewhere").student.base == str(small.resolve())
    said = r"student\.base: there is no directory .*/none; give the directory of a model"
    refuses(tmp_path, SMALLEST + "student: {base: ./none}\n", said)
    refuses(tmp_path, SMALLEST + "student: {base: ./models/small, layers: 2}\n", "layers and base are both given")


def test_the_evaluations_server_is_an_interpreter_relative_to_the_recipe_and_its_link_stays(tmp_path):
    assert load_recipe(write(tmp_path, SMALLEST)).evaluation.server is None
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/python").symlink_to("/bin/sh")
    text = SMALLEST + "evaluation: {server: {python: ./venv/../venv/python, arguments: [--max-model-len, '4096']}}\n"
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.evaluation.server.python == str(tmp_path / "venv/python") and recipe.evaluation.server.kind == "vllm"
    again = read_recipe(recipe.as_text(), base=tmp_path / "elsewhere")
    assert again.evaluate_settings.server == recipe.evaluation.server
    for wrong in ("./none", "./venv"):
        said = r"evaluation\.server\.python: there is no program .*; give a Python interpreter"
        refuses(tmp_path, SMALLEST + f"evaluation: {{server: {{python: {wrong}}}}}\n", said)


def test_the_rollouts_server_and_drafter_are_found_from_the_recipe(tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/python").symlink_to("/bin/sh")
    rewarded = SMALLEST + "datasets: {rl_prompts: {}}\nrft: {grader: verifier, "
    served = load_recipe(write(tmp_path, rewarded + "engine: vllm, server: {python: ./venv/python}}\n"))
    assert served.rft.server.python == str(tmp_path / "venv/python") and served.rft.files == []
    assert read_recipe(served.as_text(), base=tmp_path / "elsewhere").rft == served.rft
    drafted = load_recipe(write(tmp_path, rewarded + "drafter: ./venv}\n"))
    assert drafted.rft.files == [drafted.rft.drafter] == [str(tmp_path / "venv")]
    assert read_recipe(drafted.as_text(), base=tmp_path / "elsewhere").rft == drafted.rft
    assert load_recipe(write(tmp_path, rewarded + "drafter: suffix}\n")).rft.files == []
    for wrong, said in (
        ("drafter: ./none", r"rft\.drafter: there is no directory .*; give the directory of a drafter, or `ngram`, `suffix`"),
        ("engine: vllm, server: {python: ./none}", r"rft\.server\.python: there is no program"),
    ):
        refuses(tmp_path, rewarded + wrong + "}\n", said)


@pytest.mark.parametrize("word", ["--port", "--host=0.0.0.0", "--trust_remote_code", "--speculative-config", "--api-key"])
def test_what_the_evaluation_chooses_for_its_server_is_no_argument(tmp_path, word):
    said = SMALLEST + f"evaluation: {{server: {{arguments: ['{word}', '1']}}}}\n"
    refuses(tmp_path, said, "the evaluation chooses models, address and drafter itself")


def test_a_revision_is_of_a_base_on_the_hub(tmp_path):
    (tmp_path / "base").mkdir()
    hub = SMALLEST.replace("tiny", "company/base") + "base_revision: v2.1/main\n"
    assert load_recipe(write(tmp_path, hub)).base_revision == "v2.1/main"
    for name in ("tiny", "./base", "base"):
        said = r"base_revision: it is v2, and base_model is not on the Hugging Face Hub; leave it out"
        refuses(tmp_path, SMALLEST.replace("tiny", name) + "base_revision: v2\n", said)
    refuses(tmp_path, hub.replace("v2.1/main", "'a b'"), "base_revision")


TEXT = "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nsft: {steps: 3, learning_rate: 1e-3}\n"
VALUES = {
    "workload": "shop",
    "base_model": "tiny",
    "sources": {"gateway": {"uri": "logs"}},
    "first_day": date(2026, 6, 1),
    "sft": {"steps": 3, "learning_rate": 1e-3},
}


def test_a_file_its_text_and_its_values_are_the_same_recipe(tmp_path):
    (tmp_path / "shop.yaml").write_text(TEXT)
    of_file = load_recipe(tmp_path / "shop.yaml")
    assert of_file.sources["gateway"].uri == str(tmp_path / "logs")
    assert of_file == read_recipe(TEXT, tmp_path) == read_recipe(VALUES, tmp_path)
    assert read_recipe(TEXT, tmp_path / "elsewhere").digest != of_file.digest


def test_text_and_values_are_refused_in_the_sentences_of_a_file(tmp_path):
    wrong = TEXT.replace("steps: 3", "stps: 3, epochs: '2'")
    (tmp_path / "shop.yaml").write_text(wrong)
    said = []
    for read in (
        lambda: load_recipe(tmp_path / "shop.yaml"),
        lambda: read_recipe(wrong, tmp_path),
        lambda: read_recipe(yaml.safe_load(wrong.replace("1e-3", "1.0e-3")), tmp_path),
    ):
        with pytest.raises(RecipeProblemsError) as refused:
            read()
        said.append(refused.value)
    assert len({frozenset(map(str, error.problems)) for error in said}) == 1
    assert str(said[1]).startswith("the recipe line 5: sft.")
    assert str(said[2]).startswith("the recipe: sft.")


@pytest.mark.parametrize("values", [{"workload": object()}, {("a", "b"): 1}])
def test_values_that_no_recipe_holds_are_one_sentence(values):
    with pytest.raises(RecipeProblemsError, match="the recipe: holds a value that no recipe can hold"):
        read_recipe(values, Path.cwd())


def test_the_copy_of_a_recipe_holds_absolute_paths_and_is_the_same_recipe(tmp_path, monkeypatch):
    for folder in ("mimo", "small", "vectors"):
        (tmp_path / folder).mkdir()
    more = (
        "evals: {held: {uri: e.jsonl}}\nseeds: {s: {uri: s.jsonl}}\n"
        "curation: {semantic_duplicates: {enabled: true, model: vectors}}\n"
        "speculator: {architecture: draft_model, draft_model: small}\n"
    )
    recipe = read_recipe(TEXT.replace("tiny", "./mimo") + more, tmp_path)
    copy = recipe.as_text()
    monkeypatch.chdir("/")
    again = read_recipe(copy, Path("/nowhere"))
    assert again.model_dump() == recipe.model_dump() and again.digest == recipe.digest
    assert again.base_model == str(tmp_path / "mimo") and again.speculator.draft_model == str(tmp_path / "small")
    assert again.curation.semantic_duplicates.model == str(tmp_path / "vectors")
    assert "logs" in copy and str(tmp_path / "logs") in copy and "evaluation" not in copy  # defaults are not written down


def test_the_shipped_recipes_survive_being_copied():
    from pipelines.storage.locations import RECIPES

    for path in RECIPES.glob("*.yaml"):
        if path.stem == "mail":  # its base model is fetched by the demo
            continue
        recipe = load_recipe(path)
        assert read_recipe(recipe.as_text(), Path("/nowhere")).digest == recipe.digest
