"""Makes the Python environment of another project's tool, from benchmarks/requirements-NAME.txt."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def environment(home: Path, peer: str, without_dependencies: Sequence[str] = ()) -> Path:
    """The interpreter of a peer's environment; made where it is missing (minutes). without_dependencies: packages that are
    installed as they are. Raises SystemExit where pip cannot."""
    requirements = Path(__file__).with_name(f"requirements-{peer}.txt")
    ready = home / f"ready-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    python = home / "bin" / "python"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for what in (["-r", requirements], *([["--no-deps", *without_dependencies]] if without_dependencies else [])):
            done = subprocess.run([*pip, *what], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{peer} could not be installed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        ready.touch()
    return python
