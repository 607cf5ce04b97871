"""The lake's Dagster instance: processes that open it first, all at once, all get it."""

import multiprocessing

from pipelines.running.instance import open_instance
from resources.lake import Lake

PROCESSES = 4


def opened(lake, begin, results):
    begin.wait()
    try:
        with open_instance(lake) as instance:
            results.put(f"{instance.get_runs_count()} runs, {len(instance.all_instigator_state())} sensors")
    except Exception as error:
        results.put(repr(error))


def test_several_processes_may_open_a_new_lakes_history_at_once(tmp_path):
    lake = Lake.open(tmp_path / "lake")
    context = multiprocessing.get_context("fork")
    begin, results = context.Barrier(PROCESSES), context.Queue()
    started = [context.Process(target=opened, args=(lake, begin, results)) for _ in range(PROCESSES)]
    for process in started:
        process.start()
    found = [results.get(timeout=120) for _ in started]
    for process in started:
        process.join()
    assert found == ["0 runs, 0 sensors"] * PROCESSES
