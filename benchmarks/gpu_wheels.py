"""Fetches the wheels that a bare GPU machine lacks, for `benchmarks.gpu --wheels`: run it where there is a network.

    python -m benchmarks.gpu_wheels benchmarks/wheels                    # for Python 3.12, x86-64 Linux
    python -m benchmarks.gpu_wheels benchmarks/wheels --python 3.13
    python -m benchmarks.gpu_wheels benchmarks/wheels --rows DIR/rows.jsonl      # what a run on the machine found missing

The versions are those of constraints.txt. Without --rows: what a machine with torch,
transformers, numba, pyarrow and pytest lacks.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

PACKAGES = ("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "zstandard")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_wheels", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", choices=("3.11", "3.12", "3.13"), help="of the machine (3.12)")
    parser.add_argument("--rows", type=Path, help="rows.jsonl of benchmarks.gpu on the machine")
    given = parser.parse_args()
    wanted = PACKAGES if given.rows is None else missing_in(given.rows)
    if not wanted:
        print("no package was missing there")
        return 0
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", given.python, *(word for name in PLATFORMS for word in ("--platform", name))]
    command += ["--dest", str(given.folder), *pinned(wanted)]
    code = subprocess.run(command).returncode
    if code == 0:
        print("\n".join(sorted(path.name for path in given.folder.glob("*.whl"))))
    return code


def missing_in(rows: Path) -> list[str]:
    """The packages that the last run found missing."""
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    return next((row["missing"] for row in reversed(found) if row["part"] == "environment"), [])


def pinned(packages: Collection[str]) -> list[str]:
    """The packages with the versions of constraints.txt."""
    lines = (Path(__file__).resolve().parent.parent / "constraints.txt").read_text().splitlines()
    versions = {line.partition("==")[0].lower().replace("-", "_"): line for line in lines}
    return [versions[package.lower().replace("-", "_")] for package in packages]


if __name__ == "__main__":
    sys.exit(main())
