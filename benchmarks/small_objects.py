"""Many small objects: 10,000 LiteLLM logs of one JSON object each, on a local S3 server and in a local directory.

    python -m benchmarks.small_objects            # 10,000 objects; then a listing of 100,000 keys; about four minutes
    python -m benchmarks.small_objects --quick    # 1,000 objects, 5,000 keys

ratio: objects per second of the whole ingest (listing, reading, rows, Delta commits, ledger) over those of a plain loop
(`for key in keys: json.loads(filesystem.cat_file(key))`) with s3fs as it comes, in one run against one server, in turns of
some hundred objects each so that both meet the same load. `requests_alone` is 32 requests in flight and nothing done with
what they bring: what the server (moto, Python) and the client (botocore) allow at all. peak: growth of this process's
resident memory.
"""

import argparse
import json
import os
import random
import tempfile
import threading
import time
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import psutil

from benchmarks.record import record
from benchmarks.s3_server import DAYS, s3_server
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources.ledger import prefetch
from resources.sources.sources import SourceSettings, objects_after
from resources.sources.unread_objects import new_objects

WORDS = ["bird", "bread", "sings", "while", "rain", "falls", "over", "the", "long", "road", "where", "people", "sell", "apples"]


def payload(number: int) -> bytes:
    """One StandardLoggingPayload of about 3 kB."""
    draw = random.Random(number)
    said = " ".join(draw.choices(WORDS, k=draw.randint(120, 360)))
    answer = " ".join(draw.choices(WORDS, k=draw.randint(120, 240)))
    start = 1_780_272_000 + number
    return json.dumps(
        {
            "id": f"chatcmpl-{number}",
            "trace_id": f"trace-{number // 3}",
            "call_type": "acompletion",
            "status": "success",
            "response_cost": 0.0004,
            "custom_llm_provider": "openai",
            "total_tokens": 500,
            "prompt_tokens": 300,
            "completion_tokens": 200,
            "startTime": start,
            "endTime": start + 2.5,
            "completionStartTime": start + 0.4,
            "model": "gpt-4o-mini",
            "model_group": "tutor",
            "api_base": "https://api.example.com",
            "cache_hit": False,
            "metadata": {"user_api_key_alias": "web", "requester_ip_address": None},
            "request_tags": ["prod"],
            "end_user": f"user-{number % 97}",
            "model_parameters": {"temperature": 0.2, "max_tokens": 512, "stream": True},
            "messages": [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": said}],
            "response": {
                "id": f"chatcmpl-{number}",
                "object": "chat.completion",
                "created": start,
                "model": "gpt-4o-mini",
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}],
                "usage": {"prompt_tokens": 300, "completion_tokens": 200, "total_tokens": 500},
            },
        }
    ).encode()


@contextmanager
def peak_growth(found: dict[str, float], name: str):
    """Notes how much this process's resident memory grew at most, in MiB."""
    process, stopped = psutil.Process(), threading.Event()
    before = most = process.memory_info().rss

    def watch() -> None:
        nonlocal most
        while not stopped.wait(0.02):
            most = max(most, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()
        found[name] = max(found.get(name, 0), round((most - before) / 2**20))


def on_s3(objects: int, home: Path, figures: dict[str, float]) -> None:
    import s3fs

    with s3_server() as server:
        os.environ.update(server.environment)
        filesystem = s3fs.S3FileSystem(use_listings_cache=False)
        filesystem.mkdir("logs")
        turns = [range(turn, objects, objects // 500) for turn in range(objects // 500)]
        for turn, numbers in enumerate(turns):
            filesystem.pipe({f"logs/{turn}/2026/06/01/{number:07}.json": payload(number) for number in numbers}, batch_size=32)
        ingest(
            Tables(LakeLayout.open(home / "warm")), "w", {"warm": SourceSettings(uri=first_key(filesystem))}
        )  # imports, DuckDB
        tables = Tables(LakeLayout.open(home / "s3"))
        plain = ours = alone = 0.0
        for turn, numbers in enumerate(turns):
            source = SourceSettings(uri=f"s3://logs/{turn}")
            began = time.perf_counter()
            answers = [json.loads(filesystem.cat_file(key)) for key in filesystem.find(f"logs/{turn}")]
            plain += time.perf_counter() - began
            assert len(answers) == len(numbers)

            began = time.perf_counter()
            with peak_growth(figures, "ingest_peak_growth_mib"):
                report = ingest(tables, "w", {f"turn-{turn}": source})
            ours += time.perf_counter() - began
            assert report.total.rows == report.total.read == len(numbers), report

            began = time.perf_counter()
            for _, opened in prefetch(objects_after("g", source)):
                opened().close()
            alone += time.perf_counter() - began
    figures["plain_objects_per_s"] = round(objects / plain, 1)
    figures["requests_alone_objects_per_s"] = round(objects / alone, 1)
    figures["objects_per_s"] = round(objects / ours, 1)
    figures["ratio"] = round(plain / ours, 2)


def first_key(filesystem) -> str:
    return "s3://" + filesystem.ls("logs/0/2026/06/01", detail=False)[0]


def on_disk(objects: int, home: Path, figures: dict[str, float]) -> None:
    folder = home / "files" / "2026" / "06" / "01"
    folder.mkdir(parents=True)
    for number in range(objects):
        (folder / f"{number:07}.json").write_bytes(payload(number))
    began = time.perf_counter()
    answers = [json.loads(path.read_bytes()) for path in sorted(folder.iterdir())]
    plain = time.perf_counter() - began
    began = time.perf_counter()
    report = ingest(Tables(LakeLayout.open(home / "local")), "w", {"files": SourceSettings(uri=str(home / "files"))})
    ours = time.perf_counter() - began
    assert report.total.rows == len(answers) == objects
    figures["local_objects_per_s"] = round(objects / ours)
    figures["local_plain_objects_per_s"] = round(objects / plain)


def listing(keys: int, home: Path, figures: dict[str, float]) -> None:
    with s3_server(keys={"many": keys}) as server:
        os.environ.update(server.environment)
        source = SourceSettings(uri="s3://many/logs/")
        tables = Tables(LakeLayout.open(home / "listing"))
        next(objects_after("many", source))
        began = time.perf_counter()
        with peak_growth(figures, "listing_peak_growth_mib"):
            assert sum(1 for _ in objects_after("many", source)) == keys
        figures["listing_keys"] = keys
        figures["listing_keys_per_s"] = round(keys / (time.perf_counter() - began))
        began = time.perf_counter()
        found = new_objects(tables, "w", {"many": source}, {}, min(5000, keys))
        figures["sensor_tick_s"] = round(time.perf_counter() - began, 2)
        assert found.objects == min(5000, keys) and min(found.days) == date(2026, 6, 1) and len(found.days) <= DAYS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    figures: dict[str, float] = {"ratio": 0.0, "objects": 1_000 if quick else 10_000}
    with tempfile.TemporaryDirectory(prefix="millrace-small-objects-") as folder:
        home = Path(folder)
        on_disk(figures["objects"], home, figures)
        print(f"local files: {figures['local_objects_per_s']:,} objects/s, plain loop {figures['local_plain_objects_per_s']:,}")
        on_s3(figures["objects"], home, figures)
        print(
            f"S3: {figures['objects_per_s']:,} objects/s, plain loop {figures['plain_objects_per_s']:,}, "
            f"requests alone {figures['requests_alone_objects_per_s']:,}"
        )
        listing(5_000 if quick else 100_000, home, figures)
        print(
            f"listing of {figures['listing_keys']:,} keys: {figures['listing_keys_per_s']:,}/s, "
            f"{figures['listing_peak_growth_mib']} MiB more memory; one tick {figures['sensor_tick_s']} s"
        )
    record("small_objects", figures, keep=not quick)


if __name__ == "__main__":
    main()
