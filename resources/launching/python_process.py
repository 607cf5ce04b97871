"""Starts a module of this project as a process of its own, from a checkout as from an installed wheel.

    subprocess.Popen(python_module("model_ops.worker", "--stdin"), env=child_environment(MPLBACKEND="Agg"))

The child keeps the user's current folder, so relative paths in its environment mean what they meant to the user. That
folder is not on the child's module path (`python -P`): a file sql.py or a folder assets/ there hides nothing.
"""

from __future__ import annotations

import os
import site
import sys

from resources.artefacts.source_digest import PROJECT


def python_module(module: str, *words: str) -> list[str]:
    """The command line of `python -m module words`, safe from files in the current folder."""
    return [sys.executable, "-P", "-m", module, *words]


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment for a child that imports the same project files, plus `more`."""
    found = {**os.environ, "PYTHONSAFEPATH": "1", **more}
    if str(PROJECT) not in {*site.getsitepackages(), site.getusersitepackages()}:  # a checkout need not be installed
        found["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return found
