"""The judge of a campaign of chaos finds each kind of violation, in evidence that is made up for it."""

import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpus.models import Node
from tests.chaos import victims
from tests.chaos.evidence import STOPPED, Container, Evidence, Limit, Order, Outage, Run, Told, assemble
from tests.chaos.faults import LOOK, disk_has_room, engine_works
from tests.chaos.judge import Verdict, judge
from tests.chaos.mix import KINDS, order, orders, printed
from tests.rigs.processes import wait_until

GPU = "GPU-0"
MARK = b"[some bytes not recorded]\n"  # how the portal shows a hole


def evidence(kind: str = "code", **found: Any) -> Evidence:
    """A job of this kind that ran from second 10 to 20 and came to the end that it must; `found` replaces parts."""
    asked = replace(order(1, kind, 0.0, random.Random(1)), owner="ann", team="red", gpus=1, moves=())
    states = {"cancelled": ("CANCELLED", "STOPPED_BY_USER"), "time limit": ("TIMED_OUT", "TIME_LIMIT"),
              "out of memory": ("FAILED", "OOM_KILLED")}  # fmt: skip
    own = ("FAILED", "EXIT_CODE") if asked.exit_code else ("SUCCEEDED", "COMPLETED")
    state, reason = states.get(kind, own)
    was_stopped = kind in ("cancelled", "time limit")
    code = STOPPED if was_stopped else asked.exit_code
    log = printed(asked, 5)[0] + b"t1 stopped\n" if was_stopped else b"".join(printed(asked))
    run = Run(
        number=1, host="alpha", state="ENDED", end_reason=reason, exit_code=code, has_started=True, placed_at=9.0,
        ended_at=21.0, log=log, noted=5 if was_stopped else asked.lines if asked.noted else None,
    )  # fmt: skip
    parts: dict[str, Any] = {
        "orders": [asked], "jobs": {1: 7}, "containers": [container(exit_code=code)],
        "told": [Told(job=7, name="t1", state=state, end_reason=reason, exit_code=code, runs=(run,))],
    }  # fmt: skip
    return Evidence(**{**parts, **found})


def container(**fields: Any) -> Container:
    values: dict[str, Any] = {
        "host": "alpha", "id": "c1", "job": 7, "attempt": 1, "gpus": (GPU,), "begun": 10.0, "ended": 20.0, "starts": 1,
    }  # fmt: skip
    return Container(**{**values, **fields})


def told(found: Evidence, **fields: Any) -> None:
    found.told[0] = replace(found.told[0], **fields)


def ran(found: Evidence, **fields: Any) -> None:
    told(found, runs=(replace(found.told[0].runs[0], **fields),))


def kinds_of(verdict: Verdict) -> set[str]:
    return {name for name, sentences in verdict.violations().items() if sentences}


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_each_kind_that_went_as_it_must_is_clean(kind: str) -> None:
    verdict = judge(evidence(kind))
    assert verdict.is_clean, verdict.violations()
    assert (verdict.bytes_missing, verdict.bytes_doubled) == (0, 0)


def _again(found: Evidence, **fields: Any) -> None:
    values = {"attempt": 2, "id": "c2", "begun": 30.0, "ended": 40.0, "exit_code": found.orders[0].exit_code}
    found.containers.append(container(**{**values, **fields}))


def _cut(found: Evidence, start: int, end: int) -> None:
    log = found.told[0].runs[0].log
    ran(found, log=log[:start] + log[end:])


def _double(found: Evidence) -> None:
    log = found.told[0].runs[0].log
    ran(found, log=log + log.splitlines(keepends=True)[-1])


def _swap(found: Evidence) -> None:
    lines = found.told[0].runs[0].log.splitlines(keepends=True)
    ran(found, log=b"".join([lines[1], lines[0], *lines[2:]]))


BROKEN: list[tuple[str, str, Callable[[Evidence], object]]] = [
    ("jobs_lost", "the portal knows nothing of it", lambda e: e.told.clear()),
    ("jobs_lost", "no submission was ever answered", lambda e: e.jobs.clear()),
    ("jobs_lost", "one submission became two jobs", lambda e: e.told.append(replace(e.told[0], job=8, runs=()))),
    ("jobs_lost", "it runs for ever", lambda e: told(e, state="RUNNING", end_reason="")),
    ("jobs_lost", "LOST", lambda e: told(e, state="LOST", end_reason="HOST_LOST")),
    ("jobs_lost", "it never ran", lambda e: told(e, state="FAILED", end_reason="START_TIMEOUT")),
    ("jobs_lost", "no engine was away", lambda e: told(e, state="FAILED", end_reason="HOST_DAEMON_RESTART")),
    ("jobs_lost", "nobody cancelled it", lambda e: told(e, state="CANCELLED", end_reason="STOPPED_BY_USER")),
    ("run_twice", "again after its own end", _again),
    ("run_twice", "beside itself", lambda e: _again(e, begun=15.0)),
    ("run_twice", "one container, started twice", lambda e: e.containers.append(container(id="c3", job=9, starts=2))),
    ("gpu_given_twice", "by two jobs", lambda e: e.containers.append(container(id="c3", job=9, begun=19.9, ended=25))),
    ("gpu_given_twice", "under a long one", lambda e: e.containers.extend(
        [container(id="c3", job=9, begun=1.0, ended=5.0), container(id="c4", job=8, begun=1.0, ended=2.0),
         container(id="c5", job=6, begun=4.0, ended=6.0)])),
    ("wrong_exit_codes", "not the program's", lambda e: told(e, exit_code=99)),
    ("wrong_exit_codes", "not what the engine said", lambda e: ran(e, exit_code=99)),
    ("log_bytes", "the first line is missing", lambda e: _cut(e, 0, 3)),
    ("log_bytes", "bytes in the middle", lambda e: _cut(e, 9, 13)),
    ("log_bytes", "the last byte", lambda e: ran(e, log=e.told[0].runs[0].log[:-1])),
    ("log_bytes", "nothing is there", lambda e: ran(e, log=b"")),
    ("log_bytes", "the last line twice", _double),
    ("log_bytes", "all of it twice", lambda e: ran(e, log=e.told[0].runs[0].log * 2)),
    ("log_bytes", "lines in another order", _swap),
    ("log_bytes", "another job's", lambda e: ran(e, log=b"t2\n1\n")),
    ("log_bytes", "cut off, and nobody saw the container's own code", lambda e: (
        e.containers.__setitem__(0, replace(e.containers[0], exit_code=None)),
        ran(e, log=b"".join(e.told[0].runs[0].log.splitlines(keepends=True)[:2])))),
    ("log_bytes", "it is not complete", lambda e: ran(e, log_complete=False)),
    ("log_bytes", "a hole, and no engine was away", lambda e: ran(e, log=e.told[0].runs[0].log + MARK, holes=1)),
    ("allocations_left", "held for ever", lambda e: setattr(e, "allocations_left", 2)),
    ("containers_left", "one is there", lambda e: e.containers_left.append("alpha: dockyard-1-1 exited")),
    ("quotas_passed", "GPUs", lambda e: e.limits.append(Limit(whose="owner", name="ann", gpus=0))),
    ("quotas_passed", "jobs of a team", lambda e: e.limits.append(Limit(whose="team", name="red", jobs=0))),
    ("unseen", "nobody saw its run", lambda e: e.containers.clear()),
    ("unseen", "nobody saw its end", lambda e: e.containers.__setitem__(0, replace(e.containers[0], ended=None))),
    ("unseen", "fewer GPUs than asked", lambda e: e.containers.__setitem__(0, replace(e.containers[0], gpus=()))),
    ("unseen", "nobody saw its GPUs", lambda e: e.containers.__setitem__(0, replace(e.containers[0], known=False))),
]  # fmt: skip


@pytest.mark.parametrize(("violation", "why", "spoil"), BROKEN, ids=[f"{kind}: {why}" for kind, why, _ in BROKEN])
def test_each_violation_is_found(violation: str, why: str, spoil: Callable[[Evidence], object]) -> None:
    found = evidence()
    spoil(found)
    assert violation in kinds_of(judge(found)), why


def test_missing_and_doubled_bytes_are_counted() -> None:
    found = evidence()
    size = len(found.told[0].runs[0].log)
    ran(found, log=found.told[0].runs[0].log.replace(b"\n2\n", b"\n", 1))
    assert (judge(found).bytes_missing, judge(found).bytes_doubled) == (2, 0)
    ran(found, log=b"".join(printed(found.orders[0])) * 2)
    assert (judge(found).bytes_missing, judge(found).bytes_doubled) == (0, size)


STOPS: list[tuple[str, dict[str, Any]]] = [
    ("a line that it had noted", {"log": b"t1 1\nt1 2\nt1 3\nt1 4\nt1 stopped\n"}),
    ("lines that it never noted", {"noted": 2}),
    ("its last word", {"log": b"t1 1\nt1 2\nt1 3\nt1 4\nt1 5\n"}),
    ("a line in the middle", {"log": b"t1 1\nt1 3\nt1 4\nt1 5\nt1 5\nt1 stopped\n"}),
]


@pytest.mark.parametrize(("why", "fields"), STOPS, ids=[why for why, _ in STOPS])
def test_the_log_of_a_stopped_job_is_held_against_its_own_notes(why: str, fields: dict[str, Any]) -> None:
    found = evidence("cancelled")
    ran(found, **fields)
    assert kinds_of(judge(found)) == {"log_bytes"}, why


def test_what_a_containers_init_says_of_a_signal_is_no_foreign_word() -> None:
    """krallin/tini: "Child was dead when forwarding signal", on the container's own stderr."""
    found = engine_away()
    ran(found, log=b"t1 1\n[WARN  tini (1)] Child was dead when forwarding signal\nt1 2\n")
    assert kinds_of(judge(found)) == set()


def engine_away(host: str = "alpha") -> Evidence:
    """As `evidence`, but the engine took the job with it at second 15."""
    found = evidence("slow", outages=[Outage(host=host, what="engine", begun=15.0, ended=18.0)])
    found.containers[0] = replace(found.containers[0], ended=18.0, exit_code=137)
    told(found, end_reason="HOST_DAEMON_RESTART", exit_code=137)
    ran(found, end_reason="HOST_DAEMON_RESTART", exit_code=137, log=b"t1 1\nt1 2\n", noted=2)
    return found


@pytest.mark.parametrize("kind", ["cancelled", "time limit"])
def test_no_run_comes_after_one_that_was_to_be_the_last(kind: str) -> None:
    found = evidence(kind)
    found.containers[0] = replace(found.containers[0], signals=(15,))
    assert judge(found).is_clean
    _again(found, exit_code=STOPPED)
    assert kinds_of(judge(found)) == {"run_twice"}
    del found.containers[1]
    told(found, runs=(*found.told[0].runs, replace(found.told[0].runs[0], number=2, has_started=False, log=b"")))
    assert kinds_of(judge(found)) == {"run_twice"}, "placed again, and never started"


def test_an_engine_that_went_away_excuses_what_it_took_with_it_and_no_more() -> None:
    assert judge(engine_away()).is_clean
    with_hole = engine_away()
    ran(with_hole, log=b"t1 1\n" + MARK + b"t1 3\n", holes=1, noted=3)
    assert (judge(with_hole).is_clean, len(judge(with_hole).told_missing)) == (True, 1)
    untold = engine_away()
    ran(untold, log=b"t1 1\n")
    assert (kinds_of(judge(untold)), judge(untold).bytes_missing) == ({"log_bytes"}, 5)
    assert "jobs_lost" in kinds_of(judge(engine_away("beta")))


COUNT, SEQ = "slow", "code"
HOLES: list[tuple[str, str, bytes, int, bool]] = [
    ("nothing but the hole", COUNT, b"t1 1\n" + MARK + b"t1 4\n", 1, True),
    ("its last word after it", COUNT, b"t1 1\n" + MARK + b"t1 stopped\n", 1, True),
    ("lines torn on both sides", COUNT, b"t1 1\nt1\n" + MARK + b"7\nt1 8\n", 1, True),
    ("torn lines that look like others", SEQ, b"t1\n9\n1\n" + MARK + b"7\n18\n", 1, True),
    ("one at each end", COUNT, MARK + b"1 3\nt1 4\nt1\n" + MARK, 2, True),
    ("one after another", COUNT, b"t1 1\n" + MARK + MARK + b"t1 4\n", 2, True),
    ("none but a last line that may have been ended", COUNT, b"t1 1\nt1 2", 1, True),
    ("two streams, torn within each other", "both", b"t1 1\nt1 t1 err\nor 1\n" + MARK + b"t1 4\n", 1, True),
    ("a line twice beside it", COUNT, b"t1 1\nt1 2\n" + MARK + b"t1 2\n", 1, False),
    ("a line twice before it", SEQ, b"t1\n4\n4\n" + MARK + b"7\n", 1, False),
    ("an earlier line after it", SEQ, b"t1\n5\n" + MARK + b"3\n4\n8\n", 1, False),
    ("a line twice at the end", SEQ, b"t1\n" + MARK + b"12\n1\n", 1, False),
    ("a line of another's", COUNT, b"t1 1\nt2 2\nt1 3\n" + MARK + b"t1 5\n", 1, False),
    ("half a line far from it", COUNT, b"t1 1\n 2\nt1 3\n" + MARK + b"t1 5\n", 1, False),
    ("more lines than it has", COUNT, b"t1 1\n" + MARK + b"t1 9999\n", 1, False),
    ("a mark that nobody told of", COUNT, b"t1 1\n" + MARK + b"t1 4\n" + MARK, 1, False),
    ("two streams, and more pieces than it tears", "both", b"t1 1\nt1\nt\n1 5\n" + MARK + b"t1 9\n", 1, False),
]


@pytest.mark.parametrize(("why", "kind", "log", "holes", "is_clean"), HOLES, ids=[why for why, *_ in HOLES])
def test_a_hole_explains_the_lines_that_it_has_torn_and_no_more(
    why: str, kind: str, log: bytes, holes: int, is_clean: bool
) -> None:
    found = engine_away()
    made = replace(order(1, kind, 0.0, random.Random(1)), noted=False, lines=30)
    found.orders[0] = replace(made, owner="ann", team="red", gpus=1, moves=())
    ran(found, log=log, holes=holes)
    assert kinds_of(judge(found)) == (set() if is_clean else {"log_bytes"}), why


def test_a_signal_of_the_engine_that_nobody_saw_is_excused_only_while_nobody_was_there() -> None:
    found = engine_away()
    found.containers[0] = replace(found.containers[0], exit_code=STOPPED)
    told(found, end_reason="EXIT_CODE", exit_code=STOPPED)
    ran(found, end_reason="EXIT_CODE", exit_code=STOPPED, log=b"t1 1\nt1 2\nt1 stopped\n")
    assert kinds_of(judge(found)) == {"jobs_lost"}
    found.outages.append(Outage(host="alpha", what="node", begun=15.0, ended=18.0))
    assert judge(found).is_clean


def test_two_streams_may_be_mixed_within_a_line_and_lose_nothing_by_it() -> None:
    found = evidence("both")
    out, err = printed(found.orders[0])
    ran(found, log=out[:7] + err[:9] + out[7:] + err[9:])
    assert judge(found).is_clean
    ran(found, log=out[:7] + err[:9] + out[8:] + err[9:])
    assert kinds_of(judge(found)) == {"log_bytes"}


def test_a_job_that_may_be_stopped_runs_again_after_it_was() -> None:
    found = evidence("preemptible")
    first = replace(found.containers[0], exit_code=STOPPED, signals=(15,))
    found.containers[:] = [first, replace(first, id="c2", attempt=2, begun=30.0, ended=40.0, exit_code=None)]
    (last,) = found.told[0].runs
    told(found, runs=(replace(last, end_reason="PREEMPTED", exit_code=STOPPED), replace(last, number=2)))
    assert judge(found).run_twice == []


def test_a_quota_is_not_passed_by_one_job_after_the_other() -> None:
    found = evidence(limits=[Limit(whose="owner", name="ann", gpus=1, jobs=1)])
    found.orders.append(replace(found.orders[0], number=2))
    found.jobs[2] = 8
    found.containers.append(container(id="c2", job=8, begun=20.0, ended=30.0))
    assert judge(found).quotas_passed == []
    found.containers[1] = replace(found.containers[1], begun=19.0)
    assert len(judge(found).quotas_passed) == 2


def test_the_earliest_that_was_seen_of_a_start_and_of_an_end_counts() -> None:
    records = [
        {"id": "c", "what": "create", "at": 1.0, "job": 7, "attempt": 1},
        {"id": "c", "what": "inspect", "at": 2.5, "job": 7, "attempt": 1, "gpus": ["G"], "started": 1.9, "ended": None},
        {"id": "c", "what": "start", "at": 2.0, "job": 7, "attempt": 1},
        {"id": "c", "what": "start", "at": 2.0, "job": 7, "attempt": 1},  # told again after a new connection
        {"id": "c", "what": "exit", "at": 5.0, "ended": 5.0},
        {"id": "c", "what": "die", "at": 5.2, "job": 7, "attempt": 1, "ended": 5.2, "exit_code": 3},
        {"id": "c", "what": "destroy", "at": 6.0, "job": 7, "attempt": 1, "ended": 6.0},
        {"id": "other", "what": "exit", "at": 5.0, "ended": 5.0},
    ]
    expected = Container(
        host="alpha", id="c", job=7, attempt=1, gpus=("G",), begun=1.9, ended=5.0, exit_code=3, starts=1
    )
    assert assemble("alpha", records) == [expected]


def test_a_seed_gives_the_same_jobs_of_every_kind() -> None:
    one, other = orders(40, 60, seed=3), orders(40, 60, seed=3)
    assert one == other != orders(40, 60, seed=4)
    assert {made.kind for made in one} == set(KINDS)
    assert len({made.body["submission"] for made in one}) == 40


def make(kind: str) -> Order:
    return order(1, kind, 0.0, random.Random(2))


def test_what_a_job_prints_is_known_to_the_byte() -> None:
    out, err = printed(replace(make("both"), lines=2))
    assert (out, err) == (b"t1 1\nt1 2\n", b"t1 error 1\nt1 error 2\n")
    assert printed(replace(make("flood"), lines=3)) == (b"t1\n1\n2\n3\n", b"")
    assert printed(make("cancelled"), 2) == (b"t1 1\nt1 2\n", b"")


def heard_of(at: float, **fields: Any) -> Node:
    return Node(name="alpha", last_seen=datetime.fromtimestamp(at, UTC), **fields)


def test_an_engine_works_again_once_the_node_has_looked_since_the_blow() -> None:
    assert engine_works(heard_of(100 + LOOK + 0.1), 100.0)
    assert not engine_works(heard_of(100 + LOOK - 0.1), 100.0), "it may have looked last before the blow"
    assert not engine_works(heard_of(200.0, engine_error="the Docker engine does not answer"), 100.0)
    assert not engine_works(Node(name="alpha"), 100.0)


def test_a_disk_is_good_again_once_its_node_is_heard_of_and_calls_none_full() -> None:
    full, free = ({"disks": [{"free_mib": 9000}, {"free_mib": mib}]} for mib in (0, 90))
    assert disk_has_room(heard_of(101.0, facts=free), 100.0)
    assert not disk_has_room(heard_of(101.0, facts=full), 100.0)
    assert not disk_has_room(heard_of(99.0, facts=free), 100.0)


def test_a_process_that_was_killed_is_dead_though_nobody_has_collected_it() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 300 & sleep 300 & exec sleep 300"]) as parent:  # collects nobody
        try:
            wait_until(lambda: len(victims.children(parent.pid)) == 2, "both children")
            one, other = victims.children(parent.pid)
            victims.kill(one)
            assert victims.children(parent.pid) == [other]
            assert victims.children(parent.pid, older=3600) == []
        finally:
            victims.kill(*victims.children(parent.pid), parent.pid)
