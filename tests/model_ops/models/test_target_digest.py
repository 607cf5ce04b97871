"""Digests of weights and of what token ids mean."""

import hashlib
import json

from model_ops.files.digests import WeightNames, target_digest, vocabulary_digest


def weights(folder, content=b"abc"):
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    return folder


def test_the_digest_is_of_the_weights(tmp_path):
    one, other = weights(tmp_path / "one"), weights(tmp_path / "other", b"abd")
    line = f"{hashlib.sha256(b'abc').hexdigest()}  model.safetensors\n"
    assert target_digest(one) == hashlib.sha256(line.encode()).hexdigest() != target_digest(other)
    (one / "README.md").write_text("words do not count")
    assert target_digest(one) == hashlib.sha256(line.encode()).hexdigest()
    assert target_digest(tmp_path / "empty") == ""


def test_a_manifest_spares_reading_the_weights_and_names_the_artefact(tmp_path):
    folder = weights(tmp_path / "one")
    whole = target_digest(folder)
    entry = {"path": "model.safetensors", "bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"digest": "d" * 64, "version": "0123456789ab", "files": [entry]}))
    (folder / "model.safetensors").write_bytes(b"xyz")  # not read: its size is what the manifest says
    assert target_digest(folder) == whole
    (folder / "model.safetensors").write_bytes(b"longer")
    assert target_digest(folder) != whole
    names = WeightNames.of(folder)
    assert names.has("sha256:" + "D" * 64) and names.has("d" * 12) and names.has("0123456789ab")
    assert not names.has("d" * 11) and not names.has("e" * 64) and not names.has(None)


def test_the_vocabulary_is_what_ids_mean(tmp_path):
    def tokenizer(name, vocab, added=(), **more):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": list(added), **more}))
        return vocabulary_digest(folder)

    first = tokenizer("a", {"x": 0, "y": 1})
    assert first == tokenizer("b", {"y": 1, "x": 0}, normalizer={"type": "NFC"})
    assert first != tokenizer("c", {"x": 1, "y": 0}) and first != tokenizer("d", {"x": 0, "y": 1}, [{"id": 2, "content": "z"}])
    assert first == tokenizer("e", [["x", -1.0], ["y", -2.0]])
    assert vocabulary_digest(tmp_path) == ""
