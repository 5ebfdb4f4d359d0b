"""Many people in one process: each looks at one page after the other, and sends a job now and then.

Told first: `port`, `people` (see `bench._many.people`), `kinds` of jobs, `stay`: the mean seconds on a page, `every`:
the mean seconds between two jobs of one person. Then, a line each: `seconds`, `people` (how many of
them) and `jobs` that last by who may see them; answered once they are over by all that was seen meanwhile. The end of
the lines ends it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from bench._browsers import cpu_seconds, run, tell, told
from bench._visits import SLOW_APART, Notes, Tab

Visit = Callable[[Tab, int, float], Awaitable[None]]
_START = 3.0  # seconds within which all sit down
VISITS: dict[str, tuple[int, Visit]] = {  # how often of a hundred
    "job": (34, lambda tab, job, stay: tab.job_page(job, stay)),
    "dashboard": (14, lambda tab, _job, stay: tab.list_page("dashboard", "/", stay)),
    "jobs": (12, lambda tab, _job, stay: tab.list_page("jobs", "/jobs/", stay)),
    "GPUs": (12, lambda tab, _job, stay: tab.gpus_page(stay)),
    "queue": (8, lambda tab, _job, stay: tab.list_page("queue", "/queue/", stay)),
    "history": (4, lambda tab, _job, stay: tab.list_page("history", "/history/", stay)),
    "hosts": (3, lambda tab, _job, stay: tab.list_page("hosts", "/hosts/", stay, SLOW_APART)),
    "fair share": (2, lambda tab, _job, stay: tab.list_page("fair share", "/fairshare/", stay, SLOW_APART)),
    "timeline": (3, lambda tab, _job, stay: _timeline(tab, stay)),
    "files": (5, lambda tab, job, _stay: tab.files(job)),
    "program": (3, lambda tab, job, _stay: tab.as_a_program(job)),
}


async def _timeline(tab: Tab, stay: float) -> None:
    await tab.ask("timeline", "/timeline/")
    await tab.ask("timeline, data", "/timeline/data.json")
    await asyncio.sleep(stay)


async def _sit(tab: Tab, asked: dict[str, Any], seconds: float) -> None:
    """One person, for so long."""
    loop, chance = asyncio.get_running_loop(), tab.chance
    end = loop.time() + seconds
    await asyncio.sleep(chance.uniform(0, min(_START, seconds)))
    sends_at = loop.time() + chance.uniform(0, asked["every"])
    names = list(VISITS)
    while (left := end - loop.time()) > 0:
        stay = min(chance.expovariate(1 / asked["stay"]), left)
        if asked["kinds"] and loop.time() >= sends_at:
            sends_at = loop.time() + chance.uniform(0.5, 1.5) * asked["every"]
            job = await tab.send(chance.choice(asked["kinds"]))
            if job is not None:
                await tab.job_page(job, max(stay, min(left, 15.0)))
        else:
            name = chance.choices(names, [VISITS[name][0] for name in names])[0]
            jobs = [*tab.person["jobs"], *tab.own[-5:]]
            await VISITS[name][1](tab, chance.choice(jobs), stay) if jobs else await tab.list_page("jobs", "/jobs/", 1)


async def main(asked: dict[str, Any]) -> None:
    logging.disable(logging.INFO)
    tabs = [Tab(person, asked["port"], Notes(), number) for number, person in enumerate(asked["people"])]
    tell({"ready": len(tabs)})
    while go := await told():
        before = cpu_seconds()
        notes = Notes()
        for tab in tabs:
            tab.notes, tab.person["jobs"] = notes, go["jobs"].get(tab.person["name"], [])
        await asyncio.gather(*(_sit(tab, asked, go["seconds"]) for tab in tabs[: go["people"]]))
        tell({"times": notes.times, "troubles": notes.troubles, "sent": notes.sent, "counts": notes.counts,
              "cpu_seconds": cpu_seconds() - before})  # fmt: skip
    for tab in tabs:
        await tab.close()


if __name__ == "__main__":
    run(main)
