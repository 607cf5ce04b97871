"""Whether anything about a signed release can be changed without being refused by name.

    python -m benchmarks.tamper --lake demo/lake       # a demo's lake; its release is copied, and signed with keys made here

The release of the lake, with its target and drafter, is copied, signed, approved and packaged. Then one thing at a time is
changed and changed back. In a package, the package's own verify.py has to refuse it, and its output has to name the file; in a
lake, the re-check that comes before every approval and before anything is served. tried, refused: number of changes, and of
those that were refused by name. missed: the others. The unchanged release is verified between changes.
A bit of each file is flipped at its beginning, in its middle and at its end.
"""

import argparse
import contextlib
import importlib.util
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.record import record
from benchmarks.signed_release import make_keys, signed_copy
from resources.endpoints.approvals import approvals_of, recheck
from resources.lake.lake import LakeLayout
from resources.releases.release import read_release
from resources.releasing.push import package
from resources.signing.keys import SIGNING_KEY, TRUSTED_KEYS

PLACES = {"beginning": 0.0, "middle": 0.5, "end": 1.0}
BESIDE = {"model.sig", "provenance.dsse.json", "approvals.json", "verify.py"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lake", type=Path, required=True, help="lake of a finished demo, such as demo/lake")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        home = Path(folder)
        keys = make_keys(home)
        os.environ[SIGNING_KEY], os.environ[TRUSTED_KEYS] = str(keys / "ann.pem"), str(keys / "trusted")
        lake, directory = signed_copy(LakeLayout.open(given.lake, create=False), home)
        package(lake, directory, home / "package", "directory")
        found = [*_in_package(home, keys, directory), *_in_lake(lake, directory)]
    refused = [name for name, said in found if said]
    record(
        "tamper",
        {
            "tried": len(found),
            "refused": len(refused),
            "missed": [name for name, said in found if not said],
            "in_package": sum(name.startswith("package") for name, _ in found),
        },
    )


def _in_package(home: Path, keys: Path, directory: Path) -> Iterator[tuple[str, bool]]:
    root, trusted = home / "package", keys / "trusted" / "ann.pub"
    verify = _verifier(root, trusted)

    def refusal(name: str) -> bool:
        code, said = verify("--approver", str(trusted), "--release", directory.name)
        return code == 1 and name in said

    _must_hold(verify("--approver", str(trusted), "--release", directory.name)[0] == 0)
    for path in sorted(path for path in root.rglob("*") if path.is_file() and path.name != "verify.py"):
        name = path.relative_to(root).as_posix()
        for place, share in PLACES.items():
            with _changed(path, partial(_flip, path, share)):
                yield f"package: {name}, one bit at its {place}", refusal(name)
        _must_hold(verify()[0] == 0)
        with _changed(path, path.unlink):
            yield f"package: {name} removed", refusal(name)
        with _changed(path, partial(_as_link, path, home / "outside")):
            yield f"package: {name} as a link that leads out", refusal(name)
    target, drafter = (next(root.glob(f"models/*/{name}/*/model.safetensors")) for name in _served(root))
    with _changed(target, lambda: shutil.copyfile(drafter, target)):
        yield "package: the drafter's weights in the place of the target's", refusal(target.relative_to(root).as_posix())
    for place in (
        "sitecustomize.py",
        ".hidden",
        ".git/config",
        f"{target.parent.relative_to(root)}/extra.safetensors",
        f"releases/{directory.parent.name}/000000000000/release.json",
    ):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text("added")
        yield f"package: {place} added", refusal(Path(place).name)
        (root / place).unlink()
        with contextlib.suppress(OSError):
            (root / place).parent.rmdir()
    code, said = verify("--release", "000000000000")
    yield "package: another release than the one that was asked for", code == 1 and "not 000000000000" in said
    other, said = _verifier(root, keys / "mallory.pub")()
    yield "package: another key than the one that signed", other == 1 and "another key" in said
    code, said = verify("--approver", str(keys / "mallory.pub"))
    yield "package: approved by nobody who was named", code == 1 and "0 of 1 approvals" in said


def _in_lake(lake: LakeLayout, directory: Path) -> Iterator[tuple[str, bool]]:
    _must_hold(recheck(lake, directory) == [] and approvals_of(lake, directory).missing == 0)
    folders = [directory, *(lake.root / part.path for part in read_release(directory).parts)]
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(lake.root).as_posix()
        for place, share in PLACES.items():
            with _changed(path, partial(_flip, path, share)):
                yield f"lake: {name}, one bit at its {place}", _refused(lake, directory, path.name)
    for folder in folders:
        (folder / "extra.json").write_text("{}")
        yield f"lake: {folder.relative_to(lake.root)}/extra.json added", _refused(lake, directory, "extra.json")
        (folder / "extra.json").unlink()
    entry = own_approval(lake, directory)
    with _changed(entry, lambda: entry.write_text(entry.read_text().replace('"ann"', '"eve"'))):
        yield "lake: another approver in the log", _refused(lake, directory, "entry")
    yield "lake: an older signed release in the place of a newer one", _replayed(lake, directory)


def own_approval(lake: LakeLayout, directory: Path) -> Path:
    """The log's entry of the approval by the key made here; a lake that comes approved has others."""
    entries = {path: path.read_text() for path in sorted((lake.root / "endpoints" / "log").rglob("*.json"))}
    return next(path for path, text in entries.items() if all(word in text for word in ('"ann"', "approved", directory.name)))


def _replayed(lake: LakeLayout, directory: Path) -> bool:
    """Whether the signed files are refused under the name of another version."""
    newer = directory.with_name("ffffffffffff")
    shutil.copytree(directory, newer)
    try:
        return any("was added" in problem or "is missing" in problem for problem in recheck(lake, newer))
    finally:
        shutil.rmtree(newer)


def _refused(lake: LakeLayout, directory: Path, name: str) -> bool:
    """Whether the re-check or the count of approvals refuses, and names what changed."""
    try:
        said = recheck(lake, directory) + approvals_of(lake, directory).refused
    except Exception as error:  # a damaged file stops the check with its own error
        said = [str(error)]
    return any(name in problem for problem in said)


def _verifier(root: Path, key: Path) -> Callable[..., tuple[int, str]]:
    """Runs the package's verify.py: exit code, output."""

    spec = importlib.util.spec_from_file_location("verify", root / "verify.py")
    program = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(program)

    def run(*arguments: str) -> tuple[int, str]:
        said, own = io.StringIO(), sys.argv
        sys.argv = ["verify.py", str(root), "--key", str(key), *arguments]
        try:
            with contextlib.redirect_stdout(said):
                return program.main(), said.getvalue()
        finally:
            sys.argv = own

    return run


def _served(root: Path) -> tuple[str, str]:
    drafter = "speculator"
    target = next(path.parent.name for path in root.glob("models/*/*/*") if path.parent.name != drafter)
    return target, drafter


@contextmanager
def _changed(path: Path, change: Callable[[], object]) -> Iterator[None]:
    before = path.read_bytes()
    change()
    try:
        yield
    finally:
        if path.is_symlink():
            path.unlink()
        path.write_bytes(before)


def _flip(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    content[min(len(content) - 1, int(len(content) * share))] ^= 1
    path.write_bytes(content)


def _as_link(path: Path, outside: Path) -> None:
    """Moves the content out and leaves a link to it: the same bytes at this moment."""
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)


def _must_hold(held: bool) -> None:
    if not held:
        sys.exit("the unchanged release was refused: nothing can be said of changes")


if __name__ == "__main__":
    main()
