"""A virtual environment with the clients that agents use, and prime-rl's verifiers; made once for all checkouts of a user.

python = agents_python()                 # in the user's cache folder: MILLRACE_AGENTS moves it
python = agents_python(make=False)       # None where it is missing
python -m benchmarks.agents_environment  # makes it, and prints its interpreter
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
HOME = Path(os.environ.get("MILLRACE_AGENTS") or CACHE / "millrace" / f"agents-python3.{sys.version_info.minor}")
REQUIREMENTS = Path(__file__).with_name("requirements-agents.txt")


def agents_python(home: Path = HOME, make: bool = True) -> Path | None:
    """The interpreter. Raises subprocess.CalledProcessError when the packages cannot be installed."""
    ready = home / f"ready-{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]}"
    if not make:
        return home / "bin" / "python" if ready.exists() else None
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
            pip = [home / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "install", "-r", REQUIREMENTS], check=True, stderr=subprocess.DEVNULL)
            ready.touch()
    return home / "bin" / "python"


if __name__ == "__main__":
    print(agents_python())
