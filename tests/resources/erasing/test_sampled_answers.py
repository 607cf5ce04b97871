"""Answers that a model gave while it was trained: an erasure takes the rows of the erased, and the weights stay what they are."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.answers.answer_rows import SAMPLED_ANSWER_ROWS
from resources.erasing.artefact_rows import erase_rows, rows_in_artefacts
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import Code, Manifest, changed_files, describe_files, files_digest, read_manifest


def row(row_id, *interactions):
    about = {"step": 0, "answer": 0, "grade": 1.0, "parts": [], "problem": "", "side": "chosen", "tokens": 3, "ended": True}
    return {"row_id": row_id, "interaction_ids": list(interactions), **about}


def test_rows_of_the_erased_go_and_the_model_s_digest_stays(tmp_path):
    directory = tmp_path / "models" / "tutor" / "preference_model" / "abcdef123456"
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"weights")
    rows = [row("i1", "i1"), row("pair:9", "i2", "i3"), row("task:sums:4")]
    pq.write_table(pa.Table.from_pylist(rows, schema=SAMPLED_ANSWER_ROWS), directory / "sampled.parquet")
    files = describe_files(directory)
    named = {"kind": "model", "name": "tutor/preference_model", "version": "abcdef123456", "op": "preference"}
    of = {"inputs": [], "config": {}, "code": Code(revision="", dirty=False), "environment": {}, "files": files}
    manifest = Manifest(digest=files_digest(files, "model"), **named, **of)
    (directory / "manifest.json").write_text(manifest.model_dump_json())
    selection = SimpleNamespace(derived_ids={"i1", "i3"}, seed_ids=set(), sessions=set())
    (hit,) = rows_in_artefacts(LakeLayout(tmp_path), selection)
    assert (hit.node, hit.path, hit.rows) == ("model:tutor/preference_model@abcdef123456", "sampled.parquet", 2)
    assert not hit.learnt, "the dataset's own rows taint the model"
    erase_rows(hit, selection, "erasure-1")
    assert [each["row_id"] for each in pq.read_table(directory / "sampled.parquet").to_pylist()] == ["task:sums:4"]
    after = read_manifest(directory)
    assert after.digest == manifest.digest and changed_files(directory, after) == []
    (directory / "model.safetensors").write_bytes(b"others")
    assert changed_files(directory, after) == ["model.safetensors"]
