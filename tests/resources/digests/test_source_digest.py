"""Which files an operation's version depends on, and which changes of them count."""

import shutil
import textwrap
from pathlib import Path

import pytest

from resources.artefacts.registry import Registry
from resources.digests import code as module
from resources.digests.code import files_used
from resources.lake.lake import LakeLayout

FILES = {
    "model_ops/sft.py": '''
        """Trains."""
        from typing import TYPE_CHECKING
        from model_ops.training.loss import loss
        if TYPE_CHECKING:
            from model_ops.planning import plan
        TEMPLATE = "chat.jinja"
        def run(): return loss(1)
    ''',
    "model_ops/training/__init__.py": "",
    "model_ops/training/loss.py": "def loss(x): return x * 2  # twice\n",
    "model_ops/planning.py": "PLAN = 1\n",
    "model_ops/chat.jinja": "{{ message }}",
    "resources/clean.py": """
        from resources.sql import run
        def clean(name):
            run("clean/texts")
            run(f"rules/{name}")
    """,
    "resources/sql.py": "def run(name): ...\n",
    "sql/clean.sql": "-- name: texts\n-- Texts.\nselect 1 -- one\n\n-- name: other\nselect 2\n",
    "sql/rules.sql": "-- name: length\nselect length('a  b')\n",
}


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return tmp_path


def digests(project: Path) -> tuple[str, str]:
    """Of the two operations, anew."""
    for each in vars(module).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()
    return module._source_digest(project, ("model_ops/sft.py",)), module._source_digest(project, ("resources/clean.py",))


def change(project: Path, name: str, old: str, new: str) -> None:
    text = (project / name).read_text()
    assert old in text
    (project / name).write_text(text.replace(old, new))


def test_the_files_that_an_operation_uses(project):
    assert files_used("model_ops/sft.py", project=project) == [
        "model_ops/chat.jinja",
        "model_ops/sft.py",
        "model_ops/training/__init__.py",
        "model_ops/training/loss.py",
    ]
    assert files_used("resources/clean.py", project=project) == [
        "resources/clean.py",
        "resources/sql.py",
        "sql/clean/texts",
        "sql/rules/length",
    ]


@pytest.mark.parametrize(("name", "old", "new", "changes"), [
    ("model_ops/training/loss.py", "# twice", "# two times", (False, False)),
    ("model_ops/sft.py", "Trains.", "Trains a model.", (False, False)),
    ("model_ops/planning.py", "1", "2", (False, False)),
    ("sql/clean.sql", "-- one", "-- the one\n", (False, False)),
    ("sql/clean.sql", "-- Texts.", "-- The texts.\n", (False, False)),
    ("sql/clean.sql", "2", "3", (False, False)),
    ("model_ops/training/loss.py", "x * 2", "x * 3", (True, False)),
    ("model_ops/chat.jinja", "{{ message }}", "{{ message}}", (True, False)),
    ("model_ops/sft.py", "def run", "REVISION = 1\ndef run", (True, False)),
    ("sql/clean.sql", "1", "2", (False, True)),
    ("sql/rules.sql", "a  b", "a b", (False, True)),
    ("resources/sql.py", "...", "return name", (False, True)),
])  # fmt: skip
def test_what_changes_a_version(project, name, old, new, changes):
    before = digests(project)
    change(project, name, old, new)
    assert tuple(now != then for now, then in zip(digests(project), before, strict=True)) == changes


def test_a_new_section_of_a_file_of_sql_that_an_operation_chooses_from_counts(project):
    before = digests(project)
    change(project, "sql/rules.sql", "-- name: length", "-- name: refusal\nselect 1\n\n-- name: length")
    assert digests(project)[1] != before[1]


def test_a_file_that_moves_with_its_imports_changes_no_version(project):
    before = digests(project)
    (project / "model_ops/objectives").mkdir()
    (project / "model_ops/objectives/__init__.py").touch()
    shutil.move(project / "model_ops/training/loss.py", project / "model_ops/objectives/likelihood.py")
    change(project, "model_ops/sft.py", "model_ops.training.loss", "model_ops.objectives.likelihood")
    assert digests(project) == before


def test_another_function_of_the_same_name_from_another_file_counts(project):
    (project / "model_ops/other.py").write_text("def loss(x): return x * 5\n")
    change(project, "model_ops/sft.py", "def run", "import model_ops.other\ndef run")
    before = digests(project)
    change(project, "model_ops/sft.py", "from model_ops.training.loss import loss", "from model_ops.other import loss")
    change(project, "model_ops/sft.py", "import model_ops.other", "import model_ops.training.loss")
    assert digests(project)[0] != before[0]


@pytest.mark.parametrize(("line", "file"), [
    ("from .training import loss", "model_ops/training/loss.py"),
    ("from .training.loss import loss", "model_ops/training/loss.py"), ("from . import planning", "model_ops/planning.py"),
    ("import model_ops.training.loss", "model_ops/__init__.py"), ("WORDS = '_words.json'", "model_ops/_words.json"),
])  # fmt: skip
def test_other_ways_to_name_a_file_count_too(project, line, file):
    (project / "model_ops/__init__.py").write_text("x = 1")
    (project / "model_ops/_words.json").write_text("[1]")
    change(project, "model_ops/sft.py", "from model_ops.training.loss import loss", line)
    before = digests(project)
    with (project / file).open("a") as content:
        content.write("\ny = 2")
    assert digests(project)[0] != before[0]


def test_a_package_is_taken_before_a_module_of_the_same_name(project):
    (project / "model_ops/training.py").write_text("x = 1")
    assert "model_ops/training.py" not in files_used("model_ops/sft.py", project=project)


def test_the_code_of_digests_is_no_part_of_one_that_imports_it(project):
    (project / "resources/digests").mkdir()
    (project / "resources/digests/code.py").write_text("x = 1")
    change(project, "resources/clean.py", "from resources.sql", "import resources.digests.code\nfrom resources.sql")
    before = digests(project)
    change(project, "resources/digests/code.py", "1", "2")
    assert digests(project) == before


WORKERS = ("tiny_base", "import_base", "sft", "distill", "quantize", "generate", "speculator", "evaluate", "embed")
OPERATIONS = {
    **{name: f"model_ops/operations/{name}.py" for name in WORKERS},
    "ingest": "resources/reading/ingestion.py",
    "clean": "resources/curating/cleaning.py",
    "judge": "resources/curating/judgements.py",
    "curate": "resources/curating/selection.py",
    "sft_dataset": "resources/composing/datasets.py",
    "seeds": "resources/composing/seeds.py",
    "eval_suite": "resources/composing/eval_suite.py",
    "served_answers": "resources/composing/served_answers.py",
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_an_operation_depends_on(operation):
    """Rooms that only start, find, show or judge results can change none. The list is printed for who changes an import."""
    found = files_used(OPERATIONS[operation])
    print(operation, *found, sep="\n    ")
    others = [
        "assets/",
        "pipelines/",
        "millrace/",
        "resources/launching/",
        "resources/catalog/",
        "resources/releasing/",
        "resources/workshop/",
        "resources/inspecting/",
        "model_ops/worker.py",
    ]
    if operation not in ("speculator", "evaluate"):
        others.append("model_ops/speculators/")
    if operation in WORKERS:
        others += ["resources/", "sql/"]
    else:
        others += ["model_ops/training/", "model_ops/operations/", "sql/catalog/"]
    assert OPERATIONS[operation] in found
    for room in others:
        inside = [file for file in found if file.startswith(room)]
        if operation == "ingest":  # what is moving is told to the terminal, and one at a time is let in
            inside = [file for file in inside if not file.startswith("resources/launching/")]
        assert not inside, room


def test_a_release_depends_on_no_code_that_trains_or_reads_weights():
    """A release is made from figures, digests and the servers' options: a change of a loss or a network makes none anew."""
    from resources.workshop.release_candidate import RELEASE_SOURCES

    found = files_used(*RELEASE_SOURCES)
    doors = [file for file in found if file.endswith("/__init__.py")]
    assert {file for file in found if file.startswith("model_ops/")} - {*doors} == {
        "model_ops/files/atomic_files.py",
        "model_ops/files/columns.py",
        "model_ops/drafting/drafts.py",
        "model_ops/jobs/errors.py",
        "model_ops/jobs/job.py",
        "model_ops/evaluation/measurement.py",
        "model_ops/adapters/adapter_base.py",
        "model_ops/files/template_files.py",
        "model_ops/serving/lora_flags.py",
        "model_ops/serving/command.py",
        "model_ops/drafting/drafting_choice.py",
        "model_ops/serving/service.py",
        "model_ops/speculators/serving.py",
        "model_ops/jobs/wording.py",
    }


def test_a_setting_of_one_operation_is_no_part_of_another():
    settings = {f"model_ops/operations/{name}_settings.py" for name in WORKERS}
    for operation, entry in OPERATIONS.items():
        found = settings & set(files_used(entry))
        assert found <= {f"model_ops/operations/{operation}_settings.py"}, (operation, found)


def test_cleaning_reads_all_that_it_runs():
    """A few that stand for the rest: a rule, a macro named in a list, what another file runs for it."""
    found = files_used(OPERATIONS["clean"])
    for file in (
        "sql/curating/rules/length",
        "sql/curating/macros/one_line",
        "resources/curating/pii_patterns.py",
        "resources/curating/quality_kernels.py",
        "sql/curating/clean/row_feedback",
    ):
        assert file in found, file
    assert "model_ops/operations/chatml.jinja" in files_used(OPERATIONS["tiny_base"])


def test_an_artefact_is_found_again_after_a_comment_changed_and_made_anew_after_a_rule_did(project, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PROJECT", project)
    registry = Registry(LakeLayout.open(tmp_path / "lake"), "tutor")

    def drafted():
        digests(project)  # reads the files anew, as another process does
        return registry.draft("model", "sft_model", "sft", ("model_ops/sft.py",), {}, [])

    draft = drafted()
    (draft.directory / "weights").write_text("1")
    made = registry.finish(draft, {})
    change(project, "model_ops/training/loss.py", "# twice", '# the double\n"""Said of nothing."""')
    assert drafted().finished == made
    change(project, "model_ops/training/loss.py", "x * 2", "x * 2.5")
    assert drafted().finished is None


@pytest.mark.parametrize(("semantic", "counts"), [({}, False), ({"enabled": True, "model": "vectors"}, True)])
def test_curation_depends_on_the_worker_that_embeds_where_it_embeds(tmp_path, semantic, counts):
    from types import SimpleNamespace

    from assets import traffic as asset
    from resources.curating.curation import CurationSettings
    from resources.manifests.manifest import Input

    named = {}
    model = tmp_path / "vectors"
    model.mkdir()
    (model / "config.json").write_text("{}")
    given = Input(kind="table", name="interactions", digest="0" * 12)
    workshop = SimpleNamespace(
        current=lambda *_: SimpleNamespace(as_input=lambda: given),
        slice=lambda name: given,
        build=lambda *_, **said: named.update(said) or (_ for _ in ()).throw(KeyError("built")),
    )
    if semantic:
        semantic = {**semantic, "model": str(model)}
    work = asset.curated_interactions.op.compute_fn.decorated_fn
    with pytest.raises(KeyError, match="built"):
        work(workshop, CurationSettings(semantic_duplicates=semantic))
    assert ("model_ops/operations/embed.py" in files_used(*named["sources"])) == counts
