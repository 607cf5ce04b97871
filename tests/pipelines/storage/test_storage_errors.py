"""A disk that refuses: one sentence with the path, what is needed, and that nothing is lost. Causes are real where root can
mount a file system here."""

import errno
import os
import resource
import signal
import sqlite3
import subprocess

import duckdb
import pyarrow as pa
import pytest
from dagster._utils.error import serializable_error_info_from_exc_info
from deltalake import write_deltalake
from sqlalchemy import create_engine, text

from pipelines.storage.storage_errors import StorageError, require_writable, storage_sentence
from resources.catalog.build import rebuild
from resources.catalog.catalog import query
from resources.lake.lake import LakeLayout


def raised(call):
    try:
        call()
    except BaseException as error:
        return error
    pytest.fail("nothing was raised")


def mounted(folder, *options):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    return folder


@pytest.fixture
def small_disk(tmp_path):
    """A file system of three megabytes."""
    folder = mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=3m", "tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def read_only(tmp_path):
    """A lake on a file system that cannot be written."""
    lake = LakeLayout.open(tmp_path / "lake")
    rebuild(lake)
    create_engine(f"sqlite:///{lake.root}/history.db").connect().execute(text("create table t (i int)")).connection.commit()
    folder = mounted(tmp_path / "mounted", "--bind", str(lake.root))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
    yield LakeLayout(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    with (folder / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_an_error_with_another_cause_is_left_alone(tmp_path):
    assert storage_sentence(ValueError("no space left for this idea"), tmp_path) is None
    assert storage_sentence(FileNotFoundError(2, "No such file or directory", "x"), tmp_path) is None
    assert storage_sentence(sqlite3.OperationalError("unable to open database file"), tmp_path) is None  # it can be written
    assert storage_sentence(PermissionError("Forbidden: Permission denied"), tmp_path) is None  # a server's word


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Error while serializing: I/O error: No space left on device (os error 28)", "is full"),
        ("(sqlite3.OperationalError) database or disk is full\n[SQL: insert into runs]", "is full"),
        ("Disk quota exceeded (os error 122)", "quota"),
        ("IO Error: Could not write all bytes to file: File too large", "ulimit -f"),
        ("(sqlite3.OperationalError) attempt to write a readonly database", "read-only file system"),
        ('IO Error: Cannot open file "/nowhere/x.parquet": Permission denied', "may not read or write /nowhere/x.parquet"),
    ],
)
def test_every_layers_words_are_known_wherever_they_are_in_the_chain(tmp_path, words, said):
    lake = LakeLayout.open(tmp_path / "lake")

    def wrapped():
        try:
            raise RuntimeError(words)
        except RuntimeError as error:
            raise ValueError("the step failed") from error

    error = raised(wrapped)
    sentence = storage_sentence(error, lake.root)
    assert said in sentence and "nothing is lost" in sentence and "\n" not in sentence
    assert (
        storage_sentence(serializable_error_info_from_exc_info((type(error), error, error.__traceback__)), lake.root)
        == sentence
    )
    assert (f"the lake {lake.root}" in sentence) == ("/nowhere" not in words)


def test_a_full_disk_is_said_by_every_library_that_writes(small_disk):
    lake = LakeLayout.open(small_disk / "lake")
    rebuild(lake)
    engine = create_engine(f"sqlite:///{lake.root}/history.db")
    fill(small_disk)

    def sqlite():
        with engine.begin() as connection:
            connection.execute(text("create table t (words varchar)"))
            connection.execute(text("insert into t values (:words)"), {"words": "x" * 5_000_000})

    rows = pa.table({"words": [os.urandom(300).hex() for _ in range(8000)]})
    for call in (
        sqlite,
        lambda: write_deltalake(str(lake.root / "table"), rows),
        lambda: (lake.root / "note.txt").write_text("x" * 5_000_000),
        lambda: duckdb.from_arrow(rows).write_parquet(str(lake.root / "rows.parquet")),
        lambda: rebuild(lake),
    ):
        said = storage_sentence(raised(call), lake.root)
        assert said is not None and f"the disk of the lake {lake.root} is full (" in said and "3.15 MB are left" in said
    with pytest.raises(StorageError, match="is full"):
        require_writable(lake.root)


def test_a_catalog_that_did_not_fit_does_not_replace_the_one_there(small_disk):
    lake = LakeLayout.open(small_disk / "lake")
    rebuild(lake)
    before = lake.catalog.read_bytes()
    fill(small_disk)
    refused = 0
    for pages in (1, 16, 64, 128, 192):
        filler = small_disk / "filler"
        os.truncate(filler, filler.stat().st_size - pages * 4096)
        try:
            rebuild(lake)
        except duckdb.Error as error:
            assert "is full" in storage_sentence(error, lake.root)
            assert lake.catalog.read_bytes() == before
            refused += 1
        assert query(lake, "select count(*) n from interactions").to_pylist() == [{"n": 0}]
        fill(small_disk)
    assert refused > 1, "there was room for the catalog all along: this test tests nothing"
    assert [path.name for path in lake.root.iterdir() if path.name.startswith(".catalog-")] == []


def test_a_read_only_lake_is_said_and_can_be_asked(read_only, cli):
    with pytest.raises(StorageError, match=r"read-only file system.*sql, lineage and why can read it"):
        require_writable(read_only.root)
    engine = create_engine(f"sqlite:///{read_only.root}/history.db")

    def sqlite():
        with engine.begin() as connection:
            connection.execute(text("insert into t values (1)"))

    assert f"the lake {read_only.root} is on a read-only" in storage_sentence(raised(sqlite), read_only.root)
    assert "1" in cli("sql", "select 1 as one", "--lake", read_only.root).stdout


def test_commands_on_a_read_only_lake_end_in_one_sentence(read_only, cli, tmp_path):
    (tmp_path / "logs").mkdir()
    recipe = tmp_path / "shop.yaml"
    recipe.write_text("workload: shop\nbase_model: tiny\nsources:\n  gateway: {uri: logs}\nlast_day: 2026-06-02\n")
    for words in (["run", recipe], ["ui", recipe]):
        said = cli(*words, "--lake", read_only.root, check=1).stderr
        assert said.startswith(f"millrace: the lake {read_only.root} is on a read-only file system")
        assert "Traceback" not in said and "Errno" not in said and len(said.strip().splitlines()) == 1
    assert "MILLRACE_HOME" in said


def test_a_folder_of_another_user_is_named_with_the_user(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o555)
    if os.geteuid() == 0:  # root may write anywhere
        os.seteuid(65534)
    try:
        with pytest.raises(StorageError, match=f"may not read or write {folder}"):
            require_writable(folder)
    finally:
        os.seteuid(os.getuid())


def test_a_lake_that_was_deleted_under_a_run_is_said(tmp_path):
    gone = tmp_path / "lake"
    said = storage_sentence(sqlite3.OperationalError("unable to open database file"), gone)
    assert said.startswith(f"there is no folder {gone}, or no longer")


def test_a_limit_on_the_size_of_files_is_said(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match="ulimit -f"):
            require_writable(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_report_that_cannot_be_kept_is_said_before_logs_are_read(cli, tmp_path):
    said = cli("inspect", tmp_path, "--html", tmp_path / "none" / "report.html", check=1).stderr
    assert said.startswith("millrace: ") and "none" in said and "Traceback" not in said
