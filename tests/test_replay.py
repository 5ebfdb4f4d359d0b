"""Traces through the scheduler's own policy: waits, true lengths and limits, preemption, and files that are bad."""

import contextlib
import json
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import _synthetic as synthetic
from jobs.policy import Plan, Rules, Snapshot, Waiting, place
from jobs.policy import replay as engine
from jobs.policy.meters import Report
from jobs.policy.offer import offer
from jobs.policy.past import Past
from jobs.policy.replay import Setup, Task, replay
from jobs.policy.trace import EPOCH, BadTrace, host, read_nodes, read_trace
from jobs.quotas import Limits

MINUTE, HOUR = 60.0, 3600.0


def task(pk: int, *, at: float = 0.0, seconds: float | None = 100.0, **fields: Any) -> Task:
    mine = {
        name: fields.pop(name)
        for name in ("preemptible", "movable", "grace_seconds", "counts", "holds")
        if name in fields
    }
    defaults: dict[str, Any] = {
        "user": 1, "team": 1, "priority": 1, "gpus": 1, "millicpus": 0, "memory_mib": 0, "limit_seconds": 3600,
    }  # fmt: skip
    job = Waiting(id=pk, queued_at=EPOCH + timedelta(seconds=at), **{**defaults, **fields})
    return Task(job=job, seconds=seconds, **mine)


def hosts(count: int = 1, gpus: int = 1, **fields: Any) -> Snapshot:
    nodes = tuple(host(f"h{n}", gpus=gpus, millicpus=64_000, ram=64_000) for n in range(count))
    defaults: dict[str, Any] = {"user_limits": {}, "team_limits": {}, "user_usage": {}, "team_usage": {}}
    return Snapshot(now=EPOCH, nodes=nodes, waiting=(), **{**defaults, **fields})


def play(*tasks: Task, picture: Snapshot | None = None, **setup: Any) -> tuple[Report, dict[int, list[float]]]:
    """The report, and each job's starts in seconds since the begin."""
    starts: dict[int, list[float]] = {}

    def watch(snapshot: Snapshot, plan: Plan, new: frozenset[int]) -> None:
        for placement in plan.placements:
            starts.setdefault(placement.job, []).append((snapshot.now - EPOCH).total_seconds())

    return replay(tasks, Setup(picture=picture or hosts(), tick=0.0, watch=watch, **setup)), starts


def test_jobs_wait_for_each_other_by_their_true_lengths() -> None:
    report, starts = play(task(1), task(2, at=10.0), task(3, at=20.0))
    assert starts == {1: [0.0], 2: [100.0], 3: [200.0]}
    assert (report.makespan, report.utilisation, report.ended) == (300.0, 1.0, 3)
    assert (report.waits.mean, report.waits.p50) == (90.0, 90.0)


def test_a_limit_ends_a_job_that_would_run_longer() -> None:
    _report, starts = play(task(1, seconds=500.0, limit_seconds=50), task(2))
    assert starts[2] == [50.0]


def test_an_elastic_job_on_fewer_gpus_takes_longer_in_proportion() -> None:
    report, _starts = play(task(1, gpus=4, least_gpus=1, seconds=100.0), picture=hosts(gpus=2))
    assert report.makespan == 200.0


def test_a_short_job_slips_in_before_a_large_one_but_a_long_one_does_not() -> None:
    jobs = (
        task(1, gpus=3, seconds=100.0, limit_seconds=100), task(2, at=1.0, gpus=4, seconds=50.0),
        task(3, at=2.0, seconds=20.0, limit_seconds=20), task(4, at=3.0, seconds=500.0, limit_seconds=500),
    )  # fmt: skip
    _report, starts = play(*jobs, picture=hosts(gpus=4))
    assert (starts[3], starts[2], starts[4]) == ([2.0], [100.0], [150.0])


def test_a_preempted_job_has_its_grace_and_begins_anew_after_the_winner() -> None:
    rules = Rules(preempt_lower=True, protected_for=0.0)
    low = task(1, seconds=300.0, priority=0, preemptible=True, grace_seconds=5.0)
    report, starts = play(low, task(2, at=10.0, priority=2, seconds=50.0), picture=hosts(rules=rules))
    assert report.preemptions == 1
    assert starts == {1: [0.0, 65.0], 2: [15.0]}
    assert (report.ended, report.makespan) == (2, 365.0)


def test_a_moved_job_has_its_grace_and_goes_on_elsewhere_with_the_rest_of_its_time() -> None:
    """One GPU free on each of two hosts: a job is moved from one to the other, so that a job of two can start."""
    tasks = (
        task(1, seconds=100.0), task(2, seconds=1000.0, movable=True, grace_seconds=10.0), task(3, seconds=1000.0),
        task(4, seconds=100.0), task(5, at=500.0, gpus=2, seconds=50.0),
    )  # fmt: skip
    rules = Rules(defragment=True, protected_for=0.0)
    report, starts = play(*tasks, picture=hosts(2, gpus=2, rules=rules))
    assert (report.moves, report.preemptions, report.ended) == (1, 0, 5)
    assert starts[5] == [510.0]
    assert starts[2] == [0.0, 510.0]
    assert report.makespan == 1000.0, "it went on with what was left"


def test_a_job_on_hold_starts_when_it_is_released_and_that_is_no_wait() -> None:
    held = (EPOCH + timedelta(seconds=50), EPOCH + timedelta(seconds=300))
    report, starts = play(task(1), task(2, at=10.0, holds=(held,)), task(3, at=20.0))
    assert starts == {1: [0.0], 3: [100.0], 2: [300.0]}
    assert report.waits.mean == pytest.approx((0.0 + 40.0 + 80.0) / 3), "job 2 waited 40 s before it was put on hold"


def test_a_job_within_a_protected_run_s_time_waits_that_out() -> None:
    rules = Rules(preempt_lower=True, protected_for=60.0)
    low = task(1, seconds=300.0, priority=0, preemptible=True, grace_seconds=5.0)
    _report, starts = play(low, task(2, at=10.0, priority=2, seconds=50.0), picture=hosts(rules=rules))
    assert starts[2] == [65.0]


def test_a_quota_holds_jobs_back_although_gpus_are_free() -> None:
    limits = {1: Limits(scope="user", name="alice", gpus=1)}
    _report, starts = play(task(1), task(2), picture=hosts(gpus=2, user_limits=limits))
    assert starts[2] == [100.0]


def test_a_budget_holds_jobs_back_until_its_window_has_moved_on() -> None:
    limits = {1: Limits(scope="user", name="alice", gpu_seconds=3600, window_days=1)}
    jobs = (task(1, seconds=3600.0), task(2, at=10.0, seconds=60.0, limit_seconds=600))
    _report, starts = play(*jobs, picture=hosts(user_limits=limits))
    assert 86_400 < starts[2][0] <= 86_400 + 2 * HOUR


def test_what_can_never_start_ends_no_replay_late_and_is_counted() -> None:
    report, starts = play(task(1, gpus=9), task(2))
    assert (report.tasks, report.started, list(starts)) == (2, 1, [2])


def test_a_job_that_never_ends_holds_its_gpu() -> None:
    report, starts = play(task(1, seconds=None), task(2))
    assert (list(starts), report.ended) == ([1], 0)


def test_a_light_user_goes_first_as_usage_adds_up() -> None:
    shares = synthetic.picture(()).member_shares
    both = {
        "team_shares": {0: next(iter(shares.values()))},
        "member_shares": {(0, 1): shares[0, 0], (0, 2): shares[0, 0]},
    }
    jobs = [task(n, team=0, seconds=100.0) for n in range(1, 4)]
    jobs.append(task(9, at=50.0, team=0, user=2))
    _report, starts = play(*jobs, picture=hosts(**both))
    assert sorted(starts, key=lambda pk: starts[pk]) == [1, 9, 2, 3]


def test_events_within_a_tick_share_a_pass() -> None:
    jobs = [task(n, at=float(n), seconds=1000.0) for n in range(1, 10)]
    assert replay(jobs, Setup(picture=hosts(gpus=9), tick=0.0)).passes == 9
    assert replay(jobs, Setup(picture=hosts(gpus=9), tick=60.0)).passes == 1


def test_waits_that_do_not_count_are_left_out() -> None:
    report, _starts = play(task(1, counts=False), task(2))
    assert (report.started, report.waits.jobs, report.waits.mean) == (2, 1, 100.0)


def test_fragmentation_is_what_is_free_and_of_no_use() -> None:
    """Two hosts with one GPU free each are of no use to jobs of two."""
    jobs = [task(1, seconds=100.0), task(2, seconds=100.0), task(3, at=1.0, gpus=2, seconds=1.0)]
    report, _starts = play(*jobs, picture=hosts(count=2, gpus=2, rules=Rules(spread=frozenset({1}))))
    shares = dict(report.fragmentation)
    assert max(shares.values()) > 0


def test_the_scheduler_s_own_plan_and_place_are_what_decides() -> None:
    from jobs.policy import make_plan
    from jobs.policy import offer as offering

    assert engine.make_plan is make_plan
    assert offering.place is place


@settings(max_examples=8)
@given(st.integers(0, 1000), st.floats(0.5, 1.2))
def test_no_gpu_is_held_twice_and_the_same_trace_gives_the_same_report(seed: int, load: float) -> None:
    jobs = synthetic.tasks(25, seed=seed, gpus=8, load=load)
    picture = synthetic.picture(synthetic.hosts(2, 4))
    fitting = [replace(one, job=replace(one.job, gpus=min(one.job.gpus, 4))) for one in jobs]

    def watch(snapshot: Snapshot, plan: Plan, new: frozenset[int]) -> None:
        held = [uuid for run in snapshot.running for uuid in run.slots]
        held += [uuid for placement in plan.placements for uuid in placement.gpu_uuids]
        assert len(held) == len(set(held))

    first, again = (replay(fitting, Setup(picture=picture, watch=watch)) for _ in range(2))
    assert first == again
    assert first.ended == 25


def test_a_replay_with_a_past_tells_each_arrival_when_to_expect_its_start() -> None:
    told: dict[int, Any] = {}

    def watch(snapshot: Snapshot, plan: Plan, new: frozenset[int]) -> None:
        told.update({pk: plan.expected[pk] for pk in new & plan.expected.keys()})

    replay([task(1), task(2, at=10.0)], Setup(picture=hosts(), tick=0.0, past=Past(), watch=watch))
    assert list(told) == [2]
    assert told[2].latest == EPOCH + timedelta(seconds=3600)  # by the limit of the job before it


# --- placement alone ---


def test_offered_jobs_are_placed_or_dropped_and_never_end() -> None:
    jobs = [task(1, gpu_milli=500).job, task(2, gpu_milli=600).job, task(3, gpus=2).job, task(4, gpu_milli=500).job]
    found = offer(jobs, hosts(gpus=2))
    assert (found.placed, found.tasks) == (3, 4)
    assert (found.asked, found.allocated) == (1.8, 0.8)
    assert found.curve[-1] == (1.8, 0.8)
    assert found.dropped == (3,)
    assert [(job, reason["code"]) for job, reason in found.never] == [(3, "BUSY_GPUS")]


# --- files ---


def test_a_trace_s_columns_make_tasks() -> None:
    lines = [
        "submitted,seconds,limit,gpus,gpu_model,cpu_milli,memory_mib,user,team,priority,preemptible,name",
        "2026-11-30T10:00:00,60,120,2,A|B,4000,1024,alice,vision,2,1,train",
        "2026-11-30T10:00:05,,,0,,500,64,bob,vision,,,",
    ]
    trace = read_trace(lines)
    first, second = trace.tasks
    assert (first.seconds, first.preemptible, first.name) == (60.0, True, "train")
    assert (first.job.gpus, first.job.gpu_model, first.job.limit_seconds, first.job.priority) == (2, "A|B", 120, 2)
    assert (second.seconds, second.job.limit_seconds, second.job.gpus) == (None, None, 0)
    assert (trace.users, trace.teams) == ({1: "alice", 2: "bob"}, {1: "vision"})
    assert (second.job.queued_at - first.job.queued_at).total_seconds() == 5


def test_openb_s_columns_are_read_too() -> None:
    lines = [
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time",
        "p0,12000,16384,1,460,V100M16|V100M32,LS,Running,10,110,30",
        "p1,12000,16384,4,1000,,LS,Failed,20,50,",
    ]
    first, second = read_trace(lines).tasks
    assert (first.job.gpu_milli, first.job.gpu_model, first.seconds) == (460, "V100M16|V100M32", 80.0)
    assert (second.job.gpus, second.seconds) == (4, 30.0)
    (node,) = read_nodes(["sn,cpu_milli,memory_mib,gpu,model", "n0,64000,262144,2,P100"])
    assert (node.name, len(node.gpus), node.gpus[0].model, node.gpus[0].memory_mib) == ("n0", 2, "P100", None)


BAD = [
    ("", "EMPTY", 1, ""),
    ("gpus\n1", "NO_COLUMN", 1, "submitted"),
    ("submitted,gpus\n1,one", "NOT_A_NUMBER", 2, "gpus"),
    ("submitted,gpus\n1,1.5", "NOT_A_NUMBER", 2, "gpus"),
    ("submitted,gpus\n1,nan", "NOT_A_NUMBER", 2, "gpus"),
    ("submitted,gpus\n1,1\n2,-1", "TOO_SMALL", 3, "gpus"),
    ("submitted,gpus\nyesterday,1", "NOT_A_TIME", 2, "submitted"),
    ("submitted,gpus,seconds\n1,1,-5", "TOO_SMALL", 2, "seconds"),
    ("submitted,gpus,job\n1,1,7\n2,1,7", "TWICE", 3, "job"),
    ("submitted,gpus\n1,1,1", "TOO_MANY_CELLS", 2, ""),
    ('submitted,gpus\n1,"1', "NOT_TEXT", 2, ""),
]


@pytest.mark.parametrize(("text", "code", "line", "column"), BAD)
def test_a_bad_file_is_refused_with_line_and_column(text: str, code: str, line: int, column: str) -> None:
    with pytest.raises(BadTrace) as bad:
        read_trace(text.splitlines())
    assert (bad.value.code, bad.value.line, bad.value.column) == (code, line, column)


@given(st.text(max_size=60), st.text(max_size=40))
def test_no_text_makes_anything_but_tasks_or_a_refusal(cells: str, more: str) -> None:
    with contextlib.suppress(BadTrace):
        read_trace(["submitted,gpus,seconds,limit,priority", cells, more])


# --- the command ---

TRACE = "submitted,seconds,limit,gpus,user,team\n0,100,200,1,alice,vision\n0,300,400,8,bob,nlp\n"


def run(tmp_path: Path, *options: str, trace: str = TRACE) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(trace)
    out = StringIO()
    call_command("replay", str(path), "--hosts", "1x8", *options, stdout=out)
    return out.getvalue()


def test_the_command_prints_a_table_or_one_json_object(tmp_path: Path) -> None:
    table = run(tmp_path)
    assert "2: 2 started, 2 ended" in table
    assert "alice" in table
    said = json.loads(run(tmp_path, "--json"))
    assert (said["makespan"], said["gpus"], said["by_team"]["nlp"]["jobs"]) == (400.0, 8.0, 1)
    assert json.loads(run(tmp_path, "--json", "--placement-only"))["placed"] == 1


def test_placement_alone_names_what_it_dropped_and_why(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["job,gpus,name", "7,8,all", *(f"{n},1,late" for n in range(8, 15))]))
    table, values = StringIO(), StringIO()
    call_command("replay", str(trace), hosts="1x8", placement_only=True, stdout=table)
    call_command("replay", str(trace), hosts="1x8", placement_only=True, json=True, stdout=values)
    assert "#8 late: All 8 GPUs that would do are in use." in table.getvalue()
    assert "and 2 more" in table.getvalue()
    found = json.loads(values.getvalue())
    assert found["dropped"] == list(range(8, 15))
    assert found["never"][0]["message"] == "All 8 GPUs that would do are in use."


@pytest.mark.parametrize(
    ("options", "trace", "words"),
    [
        ((), "submitted,gpus\n0,x\n", "line 2, column gpus"),
        ((), "submitted,gpus\n", "holds no job"),
        (("--hosts", "8"), TRACE, "8x8"),
        (("--nodes", "/nonexistent"), TRACE, "cannot be read"),
    ],
)
def test_the_command_says_in_a_sentence_what_is_wrong(
    tmp_path: Path, options: tuple[str, ...], trace: str, words: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(trace)
    with pytest.raises(CommandError, match=words):
        call_command("replay", str(path), *(options or ("--hosts", "1x8")), stdout=StringIO())


@pytest.mark.django_db
def test_without_named_hosts_the_installation_s_own_are_used(tmp_path: Path) -> None:
    from tests import factories

    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    with pytest.raises(CommandError, match="no hosts"):
        call_command("replay", str(path), stdout=StringIO())
    factories.make_node(gpus=8, millicpus=64_000)
    out = StringIO()
    call_command("replay", str(path), "--json", stdout=out)
    assert json.loads(out.getvalue())["gpus"] == 8.0


@pytest.mark.django_db
def test_jobs_that_could_never_start_are_listed_with_why(tmp_path: Path) -> None:
    rows = [f"{n},0,60,9,big" for n in range(1, 9)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["job,submitted,seconds,gpus,name", "20,0,60,1,small", *rows]))
    table, values = StringIO(), StringIO()
    call_command("replay", str(trace), hosts="1x4", stdout=table)
    call_command("replay", str(trace), hosts="1x4", json=True, stdout=values)
    assert "#1 big: No host has 9 GPUs; the largest, host-00000, has 4 GPUs." in table.getvalue()
    assert "and 3 more" in table.getvalue()
    found = json.loads(values.getvalue())["never"]
    assert [row["job"] for row in found] == [1, 2, 3, 4, 5]
    assert {(row["name"], row["reason"]["code"]) for row in found} == {("big", "TOO_LARGE_GPUS")}
    assert found[0]["message"].startswith("No host has 9 GPUs")
