"""`millrace verify`: checks the files of a model, drafter, dataset, release or a lake's endpoints against digests and
formats."""

from pathlib import Path

from model_ops.verify import verify
from resources.endpoints import Endpoint, recheck, workloads_with_endpoints
from resources.lake import LakeError, LakeLayout
from resources.manifests import TAINTED, erased_in
from resources.releases import read_release
from stores.mirror.location import url_at


def verify_directory(directory: Path) -> list[str]:
    """One sentence per problem; none when everything agrees. Raises LakeError for a path that is not a directory."""
    if not directory.is_dir():
        raise LakeError(f"there is no directory {directory}; give one that holds a model, drafter, dataset or release")
    _fetch_if_mirrored(directory.resolve())
    if directory.resolve().name == "endpoints" and (directory.resolve().parent / "lake.json").exists():
        lake = LakeLayout.open(directory.resolve().parent, create=False)
        return [problem for workload in workloads_with_endpoints(lake) for problem in Endpoint(lake, workload).problems()]
    if not (directory / "release.json").exists():
        return [problem.sentence for problem in verify(directory)]
    release = read_release(directory)
    lake = LakeLayout.open(directory.resolve().parents[2], create=False)
    problems = recheck(lake, directory.resolve())
    target = lake.root / release.target.path
    problems += [f"{release.target.name}: {problem.sentence}" for problem in verify(target)]
    if release.base is not None:
        problems += [f"{release.base.name}: {problem.sentence}" for problem in verify(lake.root / release.base.path)]
    if release.speculator is not None:
        faults = verify(lake.root / release.speculator.path, target)
        problems += [f"{release.speculator.name}: {problem.sentence}" for problem in faults]
    return problems


def _fetch_if_mirrored(directory: Path) -> None:
    """Fetches the files of a directory that lies in the mirror of a lake in a bucket."""
    for root in directory.parents:
        if url_at(root) is not None:
            LakeLayout.open(root, create=False).mirror.fetch(directory)


def notes_on_erasures(directory: Path) -> list[str]:
    """What was erased from an artefact that agrees with its digests, or from what its weights learnt."""
    notes = []
    if (erasure := erased_in(directory)) is not None and erasure.rows:
        notes.append(f"{erasure.sentence} (erased.json): the digests are those after the erasure")
    if (directory / TAINTED).exists():
        notes.append("its weights learnt rows that were erased since (tainted.json)")
    return notes
