"""A local S3 server (moto) in a process of its own, for tests and benchmarks.

    with s3_server() as server:                  # its keys and endpoint stand in server.environment
        server.put("logs", "a/b.json", b"...")

It is stopped by its process id; the port is a free one of this machine's loopback.
"""

from __future__ import annotations

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
        """The etag of what was put."""
        return self.client.put_object(Bucket=bucket, Key=key, Body=content)["ETag"].strip('"')

    def delete(self, bucket: str, key: str) -> None:
        self.client.delete_object(Bucket=bucket, Key=key)


@contextmanager
def s3_server(seconds: float = 60) -> Iterator[S3Server]:
    """Raises RuntimeError where the server does not come up in time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(int(seconds * 10)):
            if process.poll() is not None:
                raise RuntimeError(f"the local S3 server ended with {process.returncode}; is moto[s3,server] installed?")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise RuntimeError(f"the local S3 server did not listen within {seconds:.0f} s")
        yield S3Server(f"http://127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait()
