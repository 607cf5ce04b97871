"""A plugin of pytest: with `--dist loadgroup`, the tests of a file that names an `xdist_group` run in one process, so what they
share is made once.

xdist 3.8 writes the group into the test's id, which pytest 9.2 does not let it do: every test would be a group of its own.
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_GROUP = re.compile(r"""\bxdist_group\(["']([^"']+)["']\)""")


def groups() -> dict[str, str]:
    """The group by file, both as they stand there: a path from the project's folder on."""
    found = {}
    for path in TESTS.rglob("test_*.py"):
        if named := _GROUP.search(path.read_text(encoding="utf-8")):
            found[path.relative_to(TESTS.parent).as_posix()] = named[1]
    return found


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    named = groups()

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return named.get(nodeid.partition("::")[0], nodeid)

    return ByFile(config, log)
