"""A local S3 server, and machines: each has a mirror of its own."""

import pytest

from resources.lake.lake import LakeLayout


@pytest.fixture(scope="session")
def server():
    pytest.importorskip("moto", reason="moto is not installed: no local S3 server")
    from benchmarks.s3_server import s3_server

    with s3_server() as running:
        yield running


@pytest.fixture
def bucket(server, monkeypatch, request):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    name = f"b{abs(hash(request.node.nodeid))}"
    server.bucket(name)
    yield name
    server.heal()


@pytest.fixture
def machine(bucket, monkeypatch, tmp_path):
    """machine("a") is the lake as the machine a sees it; called again, as a new process there would."""

    def opened(name, create=True) -> LakeLayout:
        monkeypatch.setenv("MILLRACE_MIRRORS", str(tmp_path / name))
        return LakeLayout.open(f"s3://{bucket}/lakes/tutor", create)

    return opened
