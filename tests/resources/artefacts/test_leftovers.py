"""What stopped and killed runs leave, and who may remove it when."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from model_ops.files.atomic_files import write_json
from resources.artefacts import leftovers
from resources.artefacts.leftovers import KEEP_DAYS, keep_seconds, remove_leftovers
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeError, LakeLayout
from resources.manifests.manifest import Input
from stores.in_use import InUse, hold, let_go, taken

DAY = 86_400.0
WEEK = 7 * DAY
PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def when_written(monkeypatch):
    """The real age of a file, which tests cannot set; without it, age is the st_mtime that `aged` sets."""
    real = leftovers._written
    monkeypatch.setattr(leftovers, "_written", lambda status: status.st_mtime)
    return real


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def aged(place, days):
    """A path, and all that is in it, as if written so many days ago."""
    then = time.time() - days * DAY
    for path in [*(place.rglob("*") if place.is_dir() and not place.is_symlink() else ()), place]:
        os.utime(path, (then, then), follow_symlinks=False)
    return place


def unfinished(lake, where="models/tutor/sft_model/1a2b3c4d5e6f", days=8.0):
    place = lake.root / where
    (place / ".work" / "checkpoints" / "step-4").mkdir(parents=True)
    (place / ".work" / "checkpoints" / "step-4" / "0.safetensors").write_bytes(b"x" * 1_200_000)
    (place / "metrics.jsonl").write_text("{}\n")
    return aged(place, days)


def finished(lake, name="sft_model", config=None):
    registry = Registry(lake, "tutor")
    draft = registry.draft(
        "model", name, "sft", ("model_ops/jobs/job.py",), config or {}, [Input(kind="external", name="a", digest="b")]
    )
    (draft.directory / "weights").write_text("w")
    registry.finish(draft, {})
    return draft.directory


def test_a_stopped_version_goes_after_the_stated_time_and_is_named(lake):
    place = unfinished(lake)
    stopped = time.strftime("%Y-%m-%d", time.gmtime(place.stat().st_mtime))
    [found] = remove_leftovers(lake, "tutor", WEEK)
    assert found.sentence() == f"removed unfinished sft_model 1a2b3c4d5e6f (stopped {stopped}, 1.2 MB)"
    assert list((lake.root / "models" / "tutor" / "sft_model").iterdir()) == []
    assert remove_leftovers(lake, "tutor", WEEK) == []


@pytest.mark.parametrize(
    "where", ["datasets/tutor/sft_dataset/1a2b3c4d5e6f", "releases/tutor/1a2b3c4d5e6f", "models/tutor/speculator/1a2b3c4d5e6f"]
)
def test_every_kind_of_unfinished_directory_goes(lake, where):
    place = unfinished(lake, where)
    assert len(remove_leftovers(lake, "tutor", WEEK)) == 1
    assert not place.exists()


def test_what_was_written_to_within_the_time_stays(lake):
    place = unfinished(lake)
    (place / "metrics.jsonl").write_text("{}\n{}\n")  # one young file deep inside is enough
    assert remove_leftovers(lake, "tutor", WEEK) == []
    assert (place / ".work" / "checkpoints").is_dir()


def test_a_finished_artefact_is_never_touched_however_old(lake):
    place = aged(finished(lake), 400)
    assert remove_leftovers(lake, "tutor", 0.0) == []
    assert (place / "weights").read_text() == "w"


VERSION = "1a2b3c4d5e6f"
MODEL = f"models/tutor/sft_model/{VERSION}"


@pytest.mark.parametrize(("where", "content"), [
    ("models/tutor/sft_model/current.json", {"version": VERSION}),
    ("releases/tutor/abcdefabcdef/release.json", {"target": {"path": MODEL}, "speculator": None}),
    ("releases/tutor/abcdefabcdef/release.json", {"target": {}, "speculator": {"path": MODEL, "version": VERSION}}),
    ("endpoints/tutor.json", {"candidate": VERSION, "champion": None, "previous": None}),
    ("endpoints/tutor.json", {"candidate": None, "champion": None, "previous": VERSION}),
    ("models/tutor/quantized_model/abcdefabcdef/manifest.json", {"inputs": [{"kind": "model", "version": VERSION}]}),
    ("releases/other/abcdefabcdef/manifest.json", {"inputs": [{"kind": "table"}, {"version": VERSION}]}),
])  # fmt: skip
def test_a_version_that_lost_its_manifest_stays_while_anything_names_it(lake, where, content):
    place = unfinished(lake, MODEL)
    write_json(lake.root / where, content)
    assert remove_leftovers(lake, "tutor", WEEK) == []
    assert (place / "metrics.jsonl").exists()
    (lake.root / where).unlink()
    assert len(remove_leftovers(lake, "tutor", WEEK)) == 1


def test_a_damaged_manifest_or_pointer_elsewhere_does_not_stop_the_removal(lake):
    unfinished(lake, MODEL)
    for content in ("[]", "{", '{"inputs": 3}', '{"inputs": ["x"]}', f'{{"digest": "{VERSION}{VERSION}"}}'):
        place = lake.root / "models" / "tutor" / "quantized_model" / "abcdefabcdef"
        place.mkdir(parents=True, exist_ok=True)
        (place / "manifest.json").write_text(content)
        assert VERSION not in leftovers.named_versions(lake)
    assert len(remove_leftovers(lake, "tutor", WEEK)) == 1


def test_files_restored_with_old_dates_are_young(lake, when_written, monkeypatch):
    place = unfinished(lake, MODEL, days=400)
    monkeypatch.setattr(leftovers, "_written", when_written)
    assert remove_leftovers(lake, "tutor", WEEK) == []
    assert place.exists()


def test_only_this_workload_and_the_named_assets(lake):
    other = unfinished(lake, "models/shop/sft_model/1a2b3c4d5e6f")
    drafter, model = unfinished(lake, "models/tutor/speculator/1a2b3c4d5e6f"), unfinished(lake)
    assert [found.name for found in remove_leftovers(lake, "tutor", WEEK, {"sft_model"})] == ["sft_model"]
    assert other.exists() and drafter.exists() and not model.exists()


def test_what_no_operation_named_is_left_alone(lake):
    place = lake.root / "models" / "tutor" / "sft_model" / "my-notes"
    place.mkdir(parents=True)
    (place / "read.me").write_text("keep")
    aged(place, 400)
    assert remove_leftovers(lake, "tutor", WEEK) == []
    assert (place / "read.me").exists()


def test_catalogs_and_writes_cut_short_go_and_are_told_together(lake):
    finished(lake)
    catalog = lake.root / ".catalog-ab_cd12e"
    catalog.mkdir()
    (catalog / "catalog.duckdb").write_bytes(b"x" * 1000)
    half = [
        lake.root / ".lake.json.abcd1234",
        lake.root / "models" / "tutor" / "sft_model" / ".current.json.abcd1234",
        next((lake.root / "models" / "tutor" / "sft_model").glob("*/manifest.json")).parent / ".manifest.json.abcd1234",
        lake.root / "endpoints" / ".tutor.json.abcd1234",
        lake.root / "endpoints" / "log" / "tutor" / ".000001.json.abcd1234",
        lake.root / ".dagster" / ".dagster.yaml.abcd1234",
    ]
    for path in half:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
    young = lake.root / ".catalog-zzzzzzzz"
    young.mkdir()
    for path in (catalog, *half):
        aged(path, 8)
    [found] = remove_leftovers(lake, "tutor", WEEK)
    assert found.sentence() == "removed 7 temporary files of killed processes (1.0 kB)"
    assert not catalog.exists() and not any(path.exists() for path in half)
    assert young.exists() and (lake.root / "lake.json").exists()
    assert remove_leftovers(lake, "tutor", 0.0) == [], "what is written in one go has an hour"


def test_a_removal_that_was_killed_is_finished_by_the_next(lake):
    aside = lake.root / "models" / "tutor" / "sft_model" / ".removing-1a2b3c4d5e6f"
    aside.mkdir(parents=True)
    (aside / "0.safetensors").write_bytes(b"x")
    place = unfinished(lake)
    assert place.exists()
    remove_leftovers(lake, "tutor", WEEK)
    remove_leftovers(lake, "tutor", WEEK)
    assert not aside.exists() and not place.exists()


def test_links_are_not_followed_out_of_the_lake(lake, tmp_path):
    outside = tmp_path / "elsewhere"
    (outside / "1a2b3c4d5e6f").mkdir(parents=True)
    (outside / "1a2b3c4d5e6f" / "precious").write_text("mine")
    aged(outside, 400)
    home = lake.root / "models" / "tutor"
    (home / "sft_model").mkdir(parents=True)
    (home / "student_model").symlink_to(outside)  # a whole asset
    (home / "sft_model" / "1a2b3c4d5e6f").symlink_to(outside / "1a2b3c4d5e6f")  # a version
    (lake.root / "datasets").symlink_to(outside)  # a kind
    (lake.root / ".catalog-abcd1234").symlink_to(outside)
    inside = unfinished(lake, "models/tutor/speculator/1a2b3c4d5e6f")
    (inside / ".work" / "link").symlink_to(outside / "1a2b3c4d5e6f")  # within what is removed
    aged(inside, 400)
    [found] = remove_leftovers(lake, "tutor", WEEK)
    assert found.name == "speculator" and not inside.exists()
    assert (outside / "1a2b3c4d5e6f" / "precious").read_text() == "mine"
    assert (home / "sft_model" / "1a2b3c4d5e6f").is_symlink()


def test_forever_keeps_everything_and_nonsense_is_refused(lake, monkeypatch):
    place = unfinished(lake, days=4000)
    monkeypatch.setenv(KEEP_DAYS, "forever")
    assert keep_seconds() is None and remove_leftovers(lake, "tutor", keep_seconds()) == [] and place.exists()
    for text, seconds in (("", WEEK), ("  ", WEEK), ("0", 0.0), ("1.5", 1.5 * DAY)):
        monkeypatch.setenv(KEEP_DAYS, text)
        assert keep_seconds() == seconds
    for text in ("-1", "soon", "nan", "inf", "7 days"):
        monkeypatch.setenv(KEEP_DAYS, text)
        with pytest.raises(LakeError, match=f"{KEEP_DAYS}={text}: give a number of days, such as 7, or forever"):
            keep_seconds()


def test_an_empty_or_missing_lake_has_no_leftovers(lake):
    assert remove_leftovers(lake, "tutor", 0.0) == []


def test_what_cannot_be_removed_stays_and_breaks_nothing(lake, monkeypatch):
    place = unfinished(lake)
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    assert remove_leftovers(lake, "tutor", WEEK) == []
    assert place.exists()


# in use


def test_a_draft_is_held_until_it_is_finished(lake):
    registry = Registry(lake, "tutor")
    draft = registry.draft("model", "sft_model", "sft", ("model_ops/jobs/job.py",), {}, [])
    aged(draft.directory, 400)
    assert remove_leftovers(lake, "tutor", 0.0) == [], "held by this process"
    (draft.directory / "weights").write_text("w")
    registry.finish(draft, {})
    with taken(draft.directory):
        pass


def test_a_version_that_another_process_works_in_stays_until_that_process_is_gone(lake):
    place = unfinished(lake, days=400)
    script = (
        f"import sys; from pathlib import Path; from stores.in_use import hold; hold(Path({str(place)!r})); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        aged(place, 400)
        assert remove_leftovers(lake, "tutor", 0.0) == []
        process.kill()  # no chance to say goodbye
        process.wait()
        assert len(remove_leftovers(lake, "tutor", 0.0)) == 1


def test_who_comes_while_it_is_removed_waits_and_gets_a_new_one(tmp_path):
    place = tmp_path / "1a2b3c4d5e6f"
    place.mkdir()
    (place / "old").write_text("x")
    come = threading.Event()

    def work():
        come.set()
        hold(place)
        (place / "new").write_text("y")

    with taken(place):
        worker = threading.Thread(target=work)
        worker.start()
        come.wait()
        time.sleep(0.05)
        place.rename(tmp_path / "aside")
    worker.join(timeout=10)
    assert [path.name for path in place.iterdir()] == ["new"]
    with pytest.raises(InUse), taken(place):
        pass
    let_go(place)
    with taken(place):
        pass


def test_many_that_work_and_many_that_clean_lose_nothing_that_is_held(lake):
    """Each draft is written to while others clean with no time to keep: what was written under the lock is there."""
    lost, stop = [], threading.Event()

    def clean():
        while not stop.is_set():
            remove_leftovers(lake, "tutor", 0.0)

    cleaners = [threading.Thread(target=clean) for _ in range(2)]
    for thread in cleaners:
        thread.start()
    registry = Registry(lake, "tutor")
    for number in range(40):
        draft = registry.draft("model", "sft_model", "sft", ("model_ops/jobs/job.py",), {"steps": number}, [])
        (draft.directory / "weights").write_text(str(number))
        registry.finish(draft, {})
        if (draft.directory / "weights").read_text() != str(number):
            lost.append(number)
    stop.set()
    for thread in cleaners:
        thread.join()
    assert lost == []
    assert len(list((lake.root / "models" / "tutor" / "sft_model").glob("*/manifest.json"))) == 40


def test_holding_twice_is_holding_once_and_letting_go_of_nothing_is_nothing(tmp_path):
    hold(tmp_path / "a" / "b")
    hold(tmp_path / "a" / "b")
    let_go(tmp_path / "a" / "b")
    let_go(tmp_path / "a" / "b")
    with taken(tmp_path / "a" / "b"):
        pass
    with pytest.raises(FileNotFoundError), taken(tmp_path / "gone"):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(NotADirectoryError), taken(tmp_path / "link"):
        pass


def test_one_that_was_removed_under_its_holder_is_made_anew(tmp_path):
    place = tmp_path / "v"
    hold(place)
    place.rename(tmp_path / "moved")
    hold(place)
    assert place.is_dir()
    let_go(place)
