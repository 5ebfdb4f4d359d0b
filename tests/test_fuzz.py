"""Every address, with what nobody means to send: never a server error, never a trace.

The addresses come from the resolver, the parameters from what the views look at, and forms are filled as their own
pages fill them before odd values take the place of some: what is added later is tried by itself. FUZZ=100 tries a
hundred times as much, and by chance; FUZZ_OUT names a file that what is found is written to at once.
"""

import os
import traceback
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import logstore
from jobs.models import Membership, Mount, Quota, WhatIf
from jobs.states import EndReason, JobState
from portal.middleware import ZONE_COOKIE
from portal.models import ApiToken, User
from tests import factories
from tests.rigs import odd
from tests.test_walk import browser, client_of, content, patterns, sample, undone

MORE = int(os.environ.get("FUZZ", "1"))
LIMITS: dict[str, Any] = {
    "deadline": None, "database": None, "derandomize": MORE == 1, "suppress_health_check": list(HealthCheck),
}  # fmt: skip
HEADERS = (
    "Accept", "Accept-Language", "Authorization", "Content-Type", "Cookie", "Host", "HX-Current-URL", "HX-Request",
    "If-Modified-Since", "If-None-Match", "Origin", "Range", "Referer", "X-Forwarded-For", "X-Request-ID",
)  # fmt: skip
OTHERS = ("admin/", "accounts/")  # pages of other people's code, of which there are many alike
COOKIES = ("sessionid", "csrftoken", "messages", "django_language", ZONE_COOKIE, "odd")
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


@dataclass
class Asked:
    """A request, as a report of what went wrong shows it."""

    who: str
    method: str
    address: str
    body: str = ""
    kind: str = FORM
    headers: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def world(alice: User, root_admin: User, settings: Any, tmp_path: Path) -> dict[str, Any]:
    """Jobs of alice that wait, run and ended, and one of each thing that an admin may change."""
    settings.WORKSPACE_ROOT = tmp_path
    Membership.objects.create(team=alice.teams.get(), user=root_admin)
    job = factories.make_job(alice, environment={"A": "b"}, least_gpus=1)
    run = factories.make_run(job, factories.make_node("alpha"))
    logstore.save(run.pk, 0, 0, b"one\nstep 1/2 loss=0.5\n").save()
    waiting = factories.make_job(alice, wait_reasons=[{"code": "PAUSED", "reason": "x"}])
    ended = factories.make_job(alice, state=JobState.FAILED, end_reason=EndReason.EXIT_CODE, exit_code=1)
    folder = tmp_path / str(alice.pk) / "jobs" / str(job.pk)
    folder.mkdir(parents=True)
    (folder / "asked-file").write_text("x")
    Quota.objects.create(user=alice, gpus=3)
    Mount.objects.create(name="data", source="/srv/data")
    return {
        "job": job, "run": run, "jobs": (job, waiting, ended), "what_if": WhatIf.objects.create(days=1),
        "token": ApiToken.issue(alice, name="t", scope="write", expires_at=None)[0],
        "cookies": {"owner": client_of(alice).cookies, "staff": client_of(root_admin).cookies},
    }  # fmt: skip


def send(world: dict[str, Any], asked: Asked) -> tuple[int, str]:
    """The status, and the page; of an error the end of its trace."""
    client = browser(world, asked.who)
    client.raise_request_exception = False
    headers = {name: odd.as_bytes(value).decode("latin-1") for name, value in asked.headers.items()}
    with undone():
        try:
            answer: Any = client.generic(
                asked.method, asked.address, asked.body, content_type=asked.kind, headers=headers
            )
            page = "" if answer.streaming else content(answer)  # threads that stream see no rows of this transaction
        except Exception:  # noqa: BLE001  # what the client lets through is what we look for
            return 599, traceback.format_exc()[-1500:]
    error = getattr(answer, "exc_info", None)
    if error and "transaction is aborted" in str(error[1]):
        return 404, ""  # it was refused after an error of the database, which ends this test's transaction alone
    return answer.status_code, "".join(traceback.format_exception(*error))[-1500:] if error else page


class Address:
    """One pattern: where it leads in this world, what it looks at in a request, and what its forms are filled with."""

    def __init__(self, pattern: str, world: dict[str, Any]) -> None:
        self.paths = sorted({sample(pattern, {**world, "job": job}) for job in world["jobs"]})
        with odd.noted() as self.names:
            self.fields = odd.Fields(send(world, Asked("staff", "GET", self.paths[0]))[1]).found
            send(world, Asked("staff", "POST", self.paths[0], "x=y"))
        self.names -= {"csrfmiddlewaretoken"}

    @st.composite
    @staticmethod
    def requests(draw: Any, self: "Address", words: tuple[str, ...]) -> Asked:
        """Of any kind, by anybody."""
        query = odd.urlencoded(draw(odd.pairs(self.names, *words)))
        asked = Asked(
            draw(st.sampled_from(["owner", "staff"])), draw(st.sampled_from(["GET", "POST"])),
            f"{draw(st.sampled_from(self.paths))}?{query}",
        )  # fmt: skip
        if draw(st.integers(0, 3)) == 0:
            asked.body, asked.kind = odd.dumped(draw(odd.jsons(*words))), JSON
        else:
            filled = self.fields.items() if draw(st.booleans()) else ()
            asked.body = odd.urlencoded([*filled, *draw(odd.pairs(self.names | self.fields.keys(), *words))])
        if draw(st.integers(0, 3)) == 0:
            name, value = draw(st.sampled_from(HEADERS)), draw(odd.words(*words))
            asked.headers = {name: f"{draw(st.sampled_from(COOKIES))}={quoted(value)}" if name == "Cookie" else value}
        return asked


def quoted(value: str) -> str:
    """As cookies quote it: what no header may hold too."""
    return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\{byte:03o}" for c in value
                         for byte in odd.as_bytes(c)[:1]) + '"'  # fmt: skip


def known(world: dict[str, Any]) -> tuple[str, ...]:
    """Words that lead somewhere in this world."""
    numbers = [*(job.pk for job in world["jobs"]), world["run"].pk, world["job"].team_id, world["job"].owner_id]
    return (*map(str, numbers), "alpha", "vision", "alice", "data")


def test_no_address_fails_whatever_it_is_asked(world: dict[str, Any]) -> None:
    words, wrong = known(world), []
    found = sorted(set(patterns()))
    address_of = cache(lambda pattern: Address(pattern, world))

    def check(asked: Asked) -> None:
        status, said = send(world, asked)
        if status >= 500 or "Traceback (most recent" in said:
            wrong.append(f"{status} {asked}\n{said}")
            if out := os.environ.get("FUZZ_OUT"):
                with Path(out).open("a") as told:
                    told.write(wrong[-1] + "\n\n")

    for examples, of in ((60, [p for p in found if not p.startswith(OTHERS)]),
                         (25, [p for p in found if p.startswith(OTHERS)])):  # fmt: skip
        asked = st.sampled_from(of).flatmap(lambda pattern: Address.requests(address_of(pattern), words))
        settings(max_examples=examples * MORE, **LIMITS)(given(asked)(check))()
    assert wrong == [], "\n\n".join(wrong[:5])
