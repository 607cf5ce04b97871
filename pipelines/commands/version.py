"""`millrace --version`: one line with the versions of millrace and its main libraries, without importing them."""

from __future__ import annotations

import platform
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SHOWN = ("dagster", "duckdb", "torch")


def version_line() -> str:
    """`millrace 0.1.0 (python 3.11.7, dagster 1.13.27, duckdb 2.0.0, torch 2.13.0; revision 0123456789ab)`."""
    parts = [f"python {platform.python_version()}", *(f"{name} {_version_of(name)}" for name in SHOWN)]
    revision = checkout_revision(PROJECT)
    return f"millrace {own_version()} ({', '.join(parts)}{f'; revision {revision}' if revision else ''})"


def own_version() -> str:
    """The version in pyproject.toml of a checkout, else of the installed package."""
    declared = PROJECT / "pyproject.toml"
    if declared.is_file():
        return tomllib.loads(declared.read_text(encoding="utf-8")).get("project", {}).get("version", "unknown")
    return _version_of("millrace")


def checkout_revision(project: Path) -> str | None:
    """The Git revision of a checkout, with `-dirty` if files were changed; None without a checkout or git."""
    if not (project / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(project), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
