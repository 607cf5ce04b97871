"""A local S3 server (moto) in a process of its own, for tests and benchmarks.

    with s3_server() as server:                  # its keys and endpoint stand in server.environment
        server.put("logs", "a/b.json", b"...")
    with s3_server(keys={"many": 100_000}) as server: ...    # a bucket that begins with so many small objects
    server.fail("lose", "PUT", "/_delta_log/", times=1)      # what goes wrong from now on: Fault

It is stopped by its process id; the port is a free one of this machine's loopback. moto is Python: it answers some 300 to
500 requests a second on one core, which bounds whatever is measured against it.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

KEY, SECRET = "AKIDOFTHETESTS000000", "secret-of-the-tests-that-nobody-may-see"
DAYS, LOOPBACK = 30, "127.0.0.1"
CONTROL = "/__faults__"
REFUSALS = {"deny": ("403 Forbidden", "AccessDenied"), "busy": ("503 Slow Down", "SlowDown")}


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
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket(self, name: str) -> None:
        self.client.create_bucket(Bucket=name)

    def put(self, bucket: str, key: str, content: bytes) -> str:
        """Stores an object; returns its etag."""
        return self.client.put_object(Bucket=bucket, Key=key, Body=content)["ETag"].strip('"')

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """The keys of a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def fail(self, what: str, method: str = "", part: str = "", times: int = 1_000_000) -> None:
        """Lets requests go wrong whose path has this part. what: `deny` (403), `lose` (carried out, and the connection is
        closed instead of an answer), `unconditional` (conditions are ignored), `busy` (503)."""
        self._tell([{"what": what, "method": method, "part": part, "times": times}])

    def heal(self) -> None:
        self._tell([])

    def _tell(self, faults: list[dict[str, Any]]) -> None:
        request = urllib.request.Request(f"{self.endpoint}{CONTROL}", json.dumps(faults).encode(), method="PUT")
        urllib.request.urlopen(request).close()

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
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from moto.server import MotoRequestHandler
    from werkzeug.serving import run_simple

    storage = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for bucket, count in keys.items():  # by http this would take minutes
        storage.create_bucket(bucket, "us-east-1")
        for number in range(count):
            storage.put_object(bucket, f"logs/2026/06/{number % DAYS + 1:02}/{number:07}.json", b"{}\n")
    os.environ["MOTO_PORT"] = str(port)
    run_simple(
        LOOPBACK,
        port,
        _Faulty(DomainDispatcherApplication(create_backend_app)),
        threaded=True,
        request_handler=MotoRequestHandler,
    )


class _Faulty:
    """moto with faults. Writes are carried out one at a time: moto compares and writes in two steps."""

    def __init__(self, app: Any):
        self._app, self._faults, self._writing = app, [], threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == CONTROL:
            self._faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            start("200 OK", [("Content-Length", "0")])
            return [b""]
        what = self._fault(method, path)
        if what in REFUSALS:
            status, code = REFUSALS[what]
            body = f"<Error><Code>{code}</Code><Message>refused</Message></Error>".encode()
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]
        if what == "unconditional":
            environ.pop("HTTP_IF_MATCH", None)
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with self._writing if method in ("PUT", "POST", "DELETE") else nullcontext():
            answer = self._app(environ, start)
        if what == "lose":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer

    def _fault(self, method: str, path: str) -> str:
        for fault in self._faults:
            if fault["times"] > 0 and fault["method"] in ("", method) and fault["part"] in path:
                fault["times"] -= 1
                return fault["what"]
        return ""


if __name__ == "__main__":
    _serve(int(sys.argv[1]), json.loads(sys.argv[2]))
