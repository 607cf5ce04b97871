"""`millrace --version`."""

import subprocess
import sys

from pipelines.commands import describe as version


def test_the_line_names_what_it_runs_on():
    line = version.version_line()
    assert line.startswith(f"millrace {version.own_version()} (python 3.")
    for name in ("dagster", "duckdb", "torch"):
        assert f"{name} " in line
    assert "not installed" not in line and "\n" not in line


def test_the_revision_of_a_checkout_and_of_what_is_none(tmp_path):
    assert version.checkout_revision(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "a").write_text("1")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    clean = version.checkout_revision(tmp_path)
    assert clean and len(clean) == 12
    (tmp_path / "a").write_text("2")
    assert version.checkout_revision(tmp_path) == f"{clean}-dirty"


def test_the_command_imports_no_heavy_library_to_say_it():
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pipelines.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("millrace ")
    imported = {line.rsplit("|", 1)[-1].strip() for line in said.stderr.splitlines()}
    assert not imported & {"torch", "dagster", "duckdb", "pyarrow", "pydantic"}
