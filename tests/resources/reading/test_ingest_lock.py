"""One ingest at a time: a second process waits and says for whom; a killed one leaves no lock behind."""

import subprocess
import sys
import threading

from resources.lake.lake import LakeLayout
from resources.reading.ingestion import ingesting

HOLD = (
    "import sys, time; from resources.reading.ingestion import ingesting; from resources.lake.lake import LakeLayout\n"
    "with ingesting(LakeLayout.open(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)


def test_a_second_ingest_waits_for_the_first_and_a_killed_one_gives_way(tmp_path, caplog):
    lake = LakeLayout.open(tmp_path / "lake")
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(lake.root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    entered = threading.Event()

    def enter() -> None:
        with ingesting(lake):
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    assert not entered.wait(1)
    assert f"waiting: process {holder.pid} on " in caplog.text
    holder.kill()
    holder.wait()
    waiting.join(20)
    assert entered.is_set()
    with ingesting(lake):  # and again, at once
        pass
