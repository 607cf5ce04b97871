"""A local S3 server (moto) in a process of its own, for tests and benchmarks.

    with s3_server() as server:                  # its keys and endpoint stand in server.environment
        server.put("logs", "a/b.json", b"...")
    with s3_server(keys={"many": 100_000}) as server: ...    # a bucket that begins with so many small objects

It is stopped by its process id; the port is a free one of this machine's loopback. moto is Python: it answers some 300 to
500 requests a second on one core, which bounds whatever is measured against it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

KEY, SECRET = "AKIDOFTHETESTS000000", "secret-of-the-tests-that-nobody-may-see"
DAYS, LOOPBACK = 30, "127.0.0.1"


@dataclass
class S3Server:
    endpoint: str
    process: subprocess.Popen[bytes]
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        import botocore.session

        self.client = botocore.session.Session().create_client(
            "s3", endpoint_url=self.endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1"
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket(self, name: str) -> None:
        self.client.create_bucket(Bucket=name)

    def put(self, bucket: str, key: str, content: bytes) -> str:
        """Stores an object; returns its etag."""
        return self.client.put_object(Bucket=bucket, Key=key, Body=content)["ETag"].strip('"')

    def delete(self, bucket: str, key: str) -> None:
        self.client.delete_object(Bucket=bucket, Key=key)


@contextmanager
def s3_server(keys: dict[str, int] | None = None, seconds: float = 120) -> Iterator[S3Server]:
    """Raises RuntimeError where the server does not come up in time."""
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.s3_server", str(port), json.dumps(keys or {})]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(int(seconds * 10)):
            if process.poll() is not None:
                raise RuntimeError(f"the local S3 server ended with {process.returncode}; is moto[s3,server] installed?")
            try:
                socket.create_connection((LOOPBACK, port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise RuntimeError(f"the local S3 server did not listen within {seconds:.0f} s")
        yield S3Server(f"http://{LOOPBACK}:{port}", process)
    finally:
        process.kill()
        process.wait()


def _serve(port: int, keys: dict[str, int]) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends
    from moto.server import main

    storage = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for bucket, count in keys.items():  # by http this would take minutes
        storage.create_bucket(bucket, "us-east-1")
        for number in range(count):
            storage.put_object(bucket, f"logs/2026/06/{number % DAYS + 1:02}/{number:07}.json", b"{}\n")
    main(["-H", LOOPBACK, "-p", str(port)])


if __name__ == "__main__":
    _serve(int(sys.argv[1]), json.loads(sys.argv[2]))
