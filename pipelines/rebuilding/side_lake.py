"""A lake beside a lake, in which one artefact can be made again exactly as it was made.

    side = side_lake(lake, manifest, Path("/tmp/again"))       # its inputs are linked; the artefact itself is not there

Artefacts behind the manifest are linked in the versions that it was made from; tables are as they were when it was finished.
Only files are linked, never a folder, so nothing that is done in the side lake changes the lake.
"""

import os
import shutil
from pathlib import Path

from deltalake import DeltaTable

from model_ops.files import write_json
from resources.artefacts import home_of
from resources.lake import LakeLayout
from resources.manifests import Manifest, ManifestError, read_manifest


def side_lake(lake: LakeLayout, manifest: Manifest, place: Path) -> LakeLayout:
    """Makes the side lake at `place`, a new or empty folder.

    Raises ManifestError if an artefact behind the manifest is gone, or if a table cannot be read as it was.
    """
    side = LakeLayout.open(place)
    shutil.copyfile(lake.root / "lake.json", side.root / "lake.json")  # with the key that ids are hashed with
    for ancestor in _ancestors(lake, manifest):
        source, home = (home_of(each, ancestor.kind, ancestor.name) for each in (lake, side))
        lake.mirror.fetch(source / ancestor.version)
        _link_files(source / ancestor.version, home / ancestor.version)
        write_json(home / "current.json", {"version": ancestor.version})
    for log in sorted((lake.root / "tables").glob("*/_delta_log")):
        lake.mirror.fetch(log.parent)
        _link_table(log.parent, side.table(log.parent.name), manifest)
    answers = lake.root / "answers" / f"{manifest.name.split('/')[0]}.jsonl"
    if answers.is_file():  # a teacher's answers are not asked for twice
        (side.root / "answers").mkdir()
        shutil.copyfile(answers, side.root / "answers" / answers.name)
    return side


def _ancestors(lake: LakeLayout, manifest: Manifest) -> list[Manifest]:
    """Every artefact behind a manifest. Those behind a pinned input only, such as an earlier champion, come first: of two
    versions of one artefact, the last one becomes current."""
    ancestors: dict[tuple[str, str, str], Manifest] = {}
    waiting = [(item.pinned, item) for item in manifest.inputs]
    while waiting:
        waiting.sort(key=lambda entry: entry[0])  # stable: what is behind a pin comes last
        pinned, item = waiting.pop(0)
        key = (item.kind, item.name, item.version)
        if item.kind == "table" or item.kind == "external" or key in ancestors:
            continue
        try:
            ancestors[key] = read_manifest(home_of(lake, item.kind, item.name) / item.version)
        except ManifestError as error:
            raise ManifestError(
                f"{manifest.name}@{manifest.version} was made from {item.name}@{item.version}, which is not in "
                "the lake any more: it cannot be made again"
            ) from error
        waiting += [(pinned or each.pinned, each) for each in ancestors[key].inputs]
    return list(reversed(ancestors.values()))


def _link_files(directory: Path, to: Path) -> None:
    """Links every file of a directory tree under `to`, whose folders are real ones."""
    for folder, _, names in os.walk(directory):
        inside = to / Path(folder).relative_to(directory)
        inside.mkdir(parents=True, exist_ok=True)
        for name in names:
            (inside / name).symlink_to((Path(folder) / name).resolve())


def _link_table(table: Path, to: Path, manifest: Manifest) -> None:
    """Links a Delta table as it was when an artefact was finished."""
    at = round(manifest.created_at.timestamp() * 1000)
    commits = [commit["version"] for commit in DeltaTable(str(table)).history() if commit.get("timestamp", 0) <= at]
    if not commits:
        return  # it did not exist yet
    (to / "_delta_log").mkdir(parents=True)
    for entry in (table / "_delta_log").iterdir():
        number = entry.name.partition(".")[0]
        if number.isdigit() and int(number) <= max(commits):
            shutil.copyfile(entry, to / "_delta_log" / entry.name)
    as_it_was = DeltaTable(str(to))
    for path in as_it_was.file_uris():
        inside = Path(path).relative_to(as_it_was.table_uri.removeprefix("file://").rstrip("/"))
        if not (table / inside).is_file():
            raise ManifestError(
                f"a file of the table {table.name} as it was on {manifest.created_at:%Y-%m-%d} was vacuumed: "
                f"{manifest.name}@{manifest.version} cannot be made again"
            )
        (to / inside).parent.mkdir(parents=True, exist_ok=True)
        (to / inside).symlink_to((table / inside).resolve())
