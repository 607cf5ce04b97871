"""An erasure that is killed after any of its steps on one machine is completed on another, and leaves nothing in the bucket."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.lake_bytes import places_of
from model_ops.files.atomic_files import write_json
from resources.artefacts.registry import Registry
from resources.endpoints.endpoint_log import Actor
from resources.erasing import erasure
from resources.erasing.journal import ask_for
from resources.lake.lake import LakeLayout
from resources.lake.lake_use import at_work
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from stores.mirror.mirror import Mirror

sys.path.insert(0, str(Path(__file__).parents[1] / "resources" / "erasing"))
from filled_lake import MARK, sources, write_logs

pytestmark = pytest.mark.xdist_group("killed erasure")

BY = Actor("tester", "test", "request 1")


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of a small lake, which has texts of the user ann in tables, a dataset, a page, a report and answers."""
    home = tmp_path_factory.mktemp("small")
    write_logs(home / "logs")
    lake = LakeLayout.open(home / "lake")
    ingest(Tables(lake), "tutor", sources(home / "logs"))
    rows = Tables(lake).open("interactions").to_pyarrow_table(columns=["interaction_id", "session_id", "messages"])
    registry = Registry(lake, "tutor")
    theirs = next(row["interaction_id"] for row in rows.to_pylist() if MARK in row["messages"])

    def made(kind, name, inputs, **content):
        draft = registry.draft(kind, name, op=name, sources=("resources/lake/lake.py",), config={}, inputs=inputs)
        for file, text in content.items():
            (draft.directory / file.replace("_", ".")).write_text(text)
        if kind == "dataset":
            keyed = rows.append_column("request_sha256", pa.array([f"k-{row}" for row in rows["interaction_id"].to_pylist()]))
            pq.write_table(keyed, draft.directory / "train.parquet")
        return registry.finish(draft, {})

    dataset = made("dataset", "sft_dataset", [], rendered_md="\n".join(rows["messages"].to_pylist()))
    model = made("model", "sft_model", [dataset.as_input()], model_safetensors="weights")
    release = made("release", "release", [model.as_input()], report_md=f"worst row: {theirs}\n" + "long " * 60_000)
    write_json(lake.endpoint("tutor"), {"workload": "tutor", "generation": 1, "champion": release.version})
    (lake.root / "answers").mkdir()
    answer = {"model": "t", "failure": "", "finish_reason": "stop", "prompt_tokens": 1, "answer_tokens": 1, "cost": 0.0}
    lines = [
        {"key": f"k-{row['interaction_id']}", "answer": {**answer, "message": {"content": row["messages"]}}}
        for row in rows.to_pylist()
    ]
    (lake.root / "answers" / "tutor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {
        path.relative_to(lake.root).as_posix(): path.read_bytes()
        for path in lake.root.rglob("*")
        if path.is_file() and not path.relative_to(lake.root).as_posix().startswith((".", "catalog"))
    }


STEPS = {
    "write": erasure.journal, "_bury": erasure, "erase_answers": erasure, "clean_page": erasure, "erase_rows": erasure,
    "keep_taint": erasure, "push": Mirror, "remove_rows": erasure, "remove_old_files": erasure, "rebuild": erasure,
}  # fmt: skip
TABLES = ["feedback", "decisions", "quarantine", "interactions"]
"""Those that lose rows; each is removed in a step of its own."""


def killed_after(step, work):
    """Whether `work` reached the step, after which its process ended: nothing is published after it."""
    with pytest.MonkeyPatch.context() as patch:
        made = getattr(STEPS[step], step)

        def last(*args, **words):
            found = made(*args, **words)
            if step == "remove_rows" and not found:
                return found
            patch.setattr(Mirror, "push", lambda mirror: None)
            raise Killed

        patch.setattr(STEPS[step], step, last)
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.slow
def test_an_erasure_killed_after_any_step_is_completed_on_another_machine(machine, server, bucket, files, tmp_path):
    """Each machine in turn goes on with the erasure and is killed after the next step."""
    for name, content in files.items():
        server.put(bucket, f"lakes/tutor/{name}", content)
    a, b = machine("a", create=False), machine("b", create=False)
    asked = ask_for(Tables(a), "user", "ann")
    assert killed_after("write", lambda: erasure.forget(a, asked, BY, vacuum=True))
    steps = [step for step in STEPS for _ in (TABLES if step == "remove_rows" else [step])][1:]
    for number, step in enumerate(steps):
        lake = (b, a)[number % 2]
        lake.mirror.pull()  # as a command does at its begin
        assert killed_after(step, lambda lake=lake: erasure.complete_unfinished(lake)), step
    last, other = (b, a) if len(steps) % 2 == 0 else (a, b)
    plan = erasure.forget(last, asked, BY, vacuum=True)
    assert plan.completed == 1 and plan.is_empty

    for name in server.names(bucket):
        path = tmp_path / "after" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(server.client.get_object(Bucket=bucket, Key=name)["Body"].read())
    assert places_of({MARK}, tmp_path / "after") == [] and not server.names(bucket, "lakes/tutor/.erasing")
    with at_work(other):
        assert Tables(other).open("interactions").to_pyarrow_table(columns=["interaction_id"]).num_rows == 10
    assert places_of({MARK}, a.root) == places_of({MARK}, b.root) == []
    answers = (tmp_path / "after" / "lakes" / "tutor" / "answers" / "tutor.jsonl").read_text().splitlines()
    assert len(answers) == 10 and "long " * 60_000 in next((tmp_path / "after").rglob("report.md")).read_text()
