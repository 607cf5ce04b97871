"""`millrace scrape`: the metrics of a server that millrace did not start, until it is stopped."""

import time

from model_ops.jobs import counted
from resources.lake import LakeLayout
from resources.monitoring.metrics.scraper import Say, Scraper
from resources.monitoring.metrics.target import ScrapeError, Target


def scrape(
    lake: LakeLayout, workload: str, url: str, release: str | None, every_s: float, say: Say, api_key_env: str | None = None
) -> None:
    """Returns when it is interrupted. release: that the server serves; None: what its answers name.

    Raises ScrapeError for what is no address, a variable without a key, a workload without a release, and if another process
    reads this server into this lake.
    """
    known = sorted({path.parent.parent.name for path in lake.artefacts("release").glob("*/*/manifest.json")})
    if workload not in known:
        raise ScrapeError(f"{lake.place} has no release of {workload!r}; there are: {', '.join(known) or 'none yet'}")
    target = Target(url, api_key_env)
    with Scraper(lake, workload, target.url, every_s, say) as scraper:
        try:
            scraper.begins(target.url, release, target, asks=True)
            reported = ""
            while True:
                for served in scraper.releases().values():
                    if served != reported:
                        reported = served or ""
                        say(f"reads {target.url}/metrics every {every_s:g} s: windows of release {reported} of {workload}")
                time.sleep(scraper.next_s)
                scraper.tick()
        except KeyboardInterrupt:
            say("ends with the window that is open")
    if scraper.waiting:
        say(f"{counted(scraper.waiting, 'window')} could not be written yet: the next start of this command writes them")
