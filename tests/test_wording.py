"""Every code has a sentence of its own, in both languages, with the numbers that its contract names."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import translation

from gpus.models import Node
from jobs import wording
from jobs.models import Job, JobEvent, Run
from jobs.quotas import Limits, Refusal, Usage, admit, never
from jobs.request import JobRequest, Problem
from jobs.states import ENDED, EndReason, JobState, RunState, Wish
from jobs.wording.ends import ENDS, LABELS
from jobs.wording.events import EVENTS, PROGRESS, WARNINGS
from jobs.wording.refusals import NOTHING, PROBLEMS, QUOTAS
from jobs.wording.waits import WAITS

WAIT_PARAMS = {
    "PAUSED": {"reason": "new disks"},
    "HELD_BY_USER": {},
    "HELD_BY_ADMIN": {},
    "HELD_BY_IMAGE": {},
    "START_AFTER": {"at": "2026-11-30T20:00:00+00:00"},
    "NOT_LOOKED_AT": {},
    "NO_NODE": {},
    "NODES_SILENT": {"nodes": ["a", "b"]},
    "NODES_RETURNING": {"nodes": ["a"]},
    "NODES_CORDONED": {"nodes": ["a"]},
    "DRIVER": {"node": "a", "status": "driver_mismatch"},
    "ENGINE": {"node": "a", "message": "the Docker engine does not answer"},
    "DISK": {"node": "a", "path": "/var/lib/docker", "least_mib": 512},
    "NO_GPU_MODEL": {"model": "H100", "models": ["A100"]},
    "NO_SHARED_GPU": {"models": ["A100"]},
    "NO_GPU_MEMORY": {"asked_mib": 81920, "most_mib": 40960},
    "TOO_LARGE_GPUS": {"asked": 8, "most": 4, "node": "a"},
    "TOO_LARGE_CPUS": {"asked": 64000, "most": 1500, "node": "a"},
    "TOO_LARGE_MEMORY": {"asked": 65536, "most": 24576, "node": "a"},
    "TOO_LARGE_TOGETHER": {},
    "BUSY_GPUS": {"asked": 2, "free": 1, "total": 4, "node": "a"},
    "BUSY_CPUS": {"asked": 4000, "free": 1500, "node": "a"},
    "BUSY_MEMORY": {"asked": 8192, "free": 512, "node": "a"},
    "GPU_BUSY_OUTSIDE": {"count": 1, "node": "a", "by": ["mallory"]},
    "GPU_HIDDEN": {"count": 1, "node": "a"},
    "GPU_QUARANTINED": {"count": 1, "node": "a", "why": "ECC errors"},
    "GPU_UNHEALTHY": {"count": 2, "node": "a"},
    "GPU_UNSAMPLED": {"count": 1, "node": "a"},
    "KEPT_FOR": {"job": 12, "node": "a"},
    "AHEAD": {"count": 3, "first": 9},
    "FITS_WITH": {"gpus": 2},
    "FITS_WITH_CPUS": {"millicpus": 2500},
    "FITS_WITH_MEMORY": {"memory_mib": 2048},
    "BUSY_TOGETHER": {},
    "NO_LABELS": {"labels": ["disk=nvme"]},
    "NO_GPU_PROFILE": {"profile": "1g.10gb", "profiles": ["2g.20gb"]},
    "FITS_WITHIN": {"seconds": 10800},
    "FITS_ON": {"model": "A100"},
    "FITS_WITHOUT": {"labels": ["disk=nvme"]},
    "MAKING_WAY": {"node": "a", "count": 2},
    "WOULD_MAKE_WAY": {"node": "a", "count": 2},
    "RESERVED_FOR": {"job": 12, "node": "a", "at": "2026-11-30T20:00:00+00:00"},
    "PROTECTED": {"job": 12, "until": "2026-11-30T20:00:00+00:00"},
}
QUOTA_PARAMS = {
    "QUOTA_GPUS": {"field": "gpus", "asked": 1, "limit": 2, "used": 2},
    "QUOTA_CPUS": {"field": "millicpus", "asked": 1000, "limit": 1500, "used": 1000},
    "QUOTA_MEMORY": {"field": "memory_mib", "asked": 1024, "limit": 24576, "used": 24000},
    "QUOTA_MODEL": {"field": "gpus", "asked": 1, "limit": 2, "used": 2, "model": "A100"},
    "QUOTA_INTERACTIVE": {"field": "", "asked": 1, "limit": 3, "used": 3},
    "QUOTA_RUNNING": {"field": "", "asked": 1, "limit": 3, "used": 3},
    "QUOTA_QUEUED": {"field": "", "asked": 1, "limit": 5, "used": 5},
    "BUDGET_USED": {
        "field": "limit_seconds",
        "asked": 36000,
        "limit": 360000,
        "used": 350000,
        "nearest": 10000,
        "back_at": "2026-12-04T00:00:00+00:00",
    },
    "BUDGET_SIZE": {"field": "limit_seconds", "asked": 720000, "limit": 360000, "used": 0, "nearest": 360000},
    "LARGEST_JOB": {"field": "gpus", "asked": 4, "limit": 2, "used": 0, "nearest": 2},
    "LONGEST_LIMIT": {"field": "limit_seconds", "asked": 100000, "limit": 86400, "used": 0, "nearest": 86400},
    "HIGHEST_PRIORITY": {"field": "priority", "asked": 3, "limit": 1, "used": 0, "nearest": 1},
}
EVENT_PARAMS = {
    "SUBMITTED": {},
    "MOVED": {"old": "QUEUED", "new": "PLACED"},
    "PLACED": {"node": "a", "gpus": ["GPU-1", "GPU-2"]},
    "ENDED": {"reason": "OOM_KILLED"},
    "WISHED": {"wish": "CANCEL"},
    "HELD": {},
    "TOLD_IDLE": {},
    "RELEASED": {},
    "PINNED": {},
    "UNPINNED": {},
    "REPRIORITISED": {"old": 1, "new": 2},
    "REORDERED": {"up": True, "passed": 3},
    "WARNED": {"code": "KILL_STUCK"},
    "EXTENDED": {"seconds": 7200, "until": "2026-11-30T20:00:00+00:00", "delayed": 0},
    "AMENDED": {"after": {"gpus": 2, "limit_seconds": 3600}},
    "SIGNALLED": {"signal": "SIGTERM"},
    "WORKS_AGAIN": {},
}
PROGRESS_PARAMS = {
    "WAITING_FOR_NODE": {},
    "PULLING": {"image": "busybox", "done_bytes": 3 << 20, "total_bytes": 9 << 20},
    "PULL_RETRY": {"at": "2026-11-30T20:00:00+00:00"},
    "CREATING": {},
    "STARTING": {},
}
WARNING_PARAMS = {
    "DISK_LIMIT": {"what": "scratch", "counts": "bytes", "size": 3 << 30, "most": 2 << 30},
    "GPU_LOST": {"uuid": "GPU-12345678-9"},
    "GPU_SICK": {"uuid": "GPU-12345678-9", "why": "Xid 79"},
    "OUTSIDER": {"uuid": "GPU-12345678-9", "by": "mallory"},
    "GRANT_MISMATCH": {"got": ["GPU-1"]},
    "KILL_STUCK": {},
    "LOG_STUCK": {"why": "No space left on device"},
    "NOT_VERIFIED": {},
    "PROCESS_OOM": {"memory_mib": 2048},
    "GPUS_IDLE": {"since": "2026-11-30T20:00:00+00:00", "stops_at": None},
    "HOST_SILENT": {"node": "a", "since": "2026-11-30T20:00:00+00:00"},
}


@pytest.fixture(params=["en", "zh-hans"], autouse=True)
def language(request: pytest.FixtureRequest) -> Iterator[str]:
    with translation.override(request.param):
        yield request.param


def make_job(**changes: Any) -> Job:
    return Job(**{"id": 7, "name": "train", "image": "busybox", "millicpus": 1500, "memory_mib": 16384,
                  "shm_mib": 512, "gpus": 2, "limit_seconds": 3600, "script": "true", **changes})  # fmt: skip


def make_run(**changes: Any) -> Run:
    return Run(**{"id": 3, "number": 1, "node": Node(name="node-1"), "state": RunState.RUNNING, **changes})


def assert_distinct(sentences: dict[Any, str]) -> None:
    texts = list(sentences.values())
    assert all(text.strip() and text == text.strip() for text in texts)
    assert not any("%(" in text or "None" in text for text in texts)
    assert not [text for text in texts if text.startswith(("Code ", "代码"))]
    twice = {code: text for code, text in sentences.items() if texts.count(text) > 1}
    assert not twice


def test_every_reason_to_wait_has_its_own_sentence() -> None:
    assert set(WAIT_PARAMS) == set(WAITS)
    assert_distinct({code: wording.wait_reason({"code": code, **p}) for code, p in WAIT_PARAMS.items()})


@pytest.mark.parametrize("scope", ["user", "team"])
def test_every_quota_has_its_own_sentence_while_waiting_and_when_refused(scope: str) -> None:
    assert set(QUOTA_PARAMS) == set(QUOTAS)
    reasons = {code: {"code": code, "scope": scope, "name": "alice", "nearest": None, **p}
               for code, p in QUOTA_PARAMS.items()}  # fmt: skip
    assert_distinct({code: wording.wait_reason(reason) for code, reason in reasons.items()})
    assert_distinct({code: wording.refusal(Refusal(**reason)) for code, reason in reasons.items()})
    assert_distinct({code: wording.refusal(reason) for code, reason in reasons.items()})


def test_a_limit_of_nothing_is_said_so_and_not_by_what_would_pass(language: str) -> None:
    nothing = Limits(scope="user", name="alice", gpus=0, millicpus=0, memory_mib=0, job_gpus=0, limit_seconds=0,
                     gpu_seconds=0, gpus_by_model={"A100": 0}, running_jobs=0, queued_jobs=0)  # fmt: skip
    asked = JobRequest(name="a", image="a", script="true", gpus=2, gpu_model="A100")
    one_by_one = [
        refused
        for name in ("gpus", "job_gpus", "millicpus", "memory_mib", "limit_seconds", "gpu_seconds", "gpus_by_model")
        for refused in never(asked, Limits(scope="user", name="alice", **{name: getattr(nothing, name)}))
    ]
    found = [*one_by_one, *admit((nothing, Usage()))]
    assert {refused.code for refused in found} == set(NOTHING)
    for reader in ("alice", "bob"):
        said = [sentence for _refusal, sentence in wording.told(found, reader=reader)]
        assert len(set(said)) == len(found)
        assert not [text for text in said if re.search(r"(^|\D)0(\D|$)", text)]
        assert [wording.wait_reason(r.as_dict(), reader=reader) for r in found] == (
            [wording.refusal(r, reader=reader) for r in found]
        )


def test_of_two_limits_one_of_which_is_nothing_both_are_told_apart() -> None:
    refused = [r for limits in (Limits(scope="user", name="alice", millicpus=0),
                                Limits(scope="team", name="vision", millicpus=500))
               for r in never(JobRequest(name="a", image="a", script="true", millicpus=1000), limits)]  # fmt: skip
    assert len(wording.told(refused, reader="alice")) == 2


def test_a_quota_in_use_names_its_numbers(language: str) -> None:
    """zouharvi/last-translation-benchmark#118: who must wait for a quota is told which and how much of it is used."""
    reason = {"code": "QUOTA_GPUS", "field": "gpus", "scope": "user", "name": "alice", "asked": 1, "limit": 2,
              "used": 2, "nearest": None}  # fmt: skip
    said = wording.wait_reason(reason, reader="alice")
    assert "2" in said
    assert "1" in said
    if language == "en":
        assert said == "Your quota (2 GPUs) is in use: 2 used, 1 asked."
        assert wording.wait_reason(reason, reader="bob").startswith("The quota of alice")
        assert wording.wait_reason({**reason, "scope": "team"}).startswith("The quota of team alice")


def test_a_refusal_names_the_nearest_request_that_passes(language: str) -> None:
    refused = Refusal(code="LARGEST_JOB", field="gpus", scope="user", name="a", asked=4, limit=2, nearest=2)
    said = wording.refusal(refused)
    assert "4" in said
    assert "2" in said
    if language == "en":
        assert said.endswith("2 GPUs would pass.")


def every_problem() -> list[Problem]:
    bad = [
        JobRequest(name="", image=""),
        JobRequest(name="x" * 101, image="Bad Image", script="true\0"),
        JobRequest(name="a\x01", image="BUSYBOX", command_kind="x"),
        JobRequest(name="a", image="busybox", script="x" * 70000, gpus=-1, millicpus=1, memory_mib=1, shm_mib=0),
        JobRequest(name="a", image="busybox", script="x", shm_mib=2048, limit_seconds=0, grace_seconds=-1, priority=9),
        JobRequest(name="a", image="busybox", script="x", gpu_model="A100"),
        JobRequest(name="a", image="busybox", script="x", gpus=1, gpu_milli=0, gpu_profile="half", least_gpus=2),
        JobRequest(name="a", image="busybox", script="x", gpus=2, gpu_milli=500, gpu_profile="1g.10gb"),
        JobRequest(name="a", image="busybox", script="x", gpus=1, gpu_milli=500, gpu_profile="1g.10gb",
                   node_labels=("nvme",), stop_signal="SIGKILL"),
        JobRequest(name="a", image="b", script="x", environment=(
            ("1X", ""), ("CUDA_VISIBLE_DEVICES", ""), ("A", "x" * 70000), ("A", "\0"))),
    ]  # fmt: skip
    return [problem for request in bad for problem in request.problems()]


def test_every_problem_has_its_own_sentence() -> None:
    extra = [
        Problem(field="environment", code="SECRET_MISSING", params={"row": 2, "name": "KEY"}),
        Problem(field="start_after", code="START_OVER", params={"at": "2026-11-30T20:00:00+00:00"}),
        Problem(field="start_after", code="START_FAR"),
        *(Problem(field="memory", code=code, params={"text": "many"})
          for code in ("BAD_DURATION", "BAD_SIZE", "BAD_CPUS", "QUANTITY_LARGE")),
        Problem(field="arguments", code="BAD_QUOTES"),
        Problem(field="team", code="NOT_IN_TEAM", params={"team": "vision"}),
        Problem(field="image", code="IMAGE_NOT_ALLOWED", params={"image": "busybox"}),
        *(Problem(field="mounts", code=code)
          for code in ("NO_LIMIT_FORBIDDEN", "MOUNTS_AS_ROOT", "MOUNT_NOT_ALLOWED")),
        Problem(field="gpus", code="ONLY_LESS", params={"least": 1, "most": 4}),
        Problem(field="millicpus", code="ONLY_SMALLER", params={"field": "millicpus", "least": 100, "most": 4000}),
        Problem(field="limit", code="ONLY_SHORTER", params={"most": 3600}),
        Problem(field="node_labels", code="ONLY_FEWER_LABELS", params={"first": ["a=b"]}),
        Problem(field="gpus", code="SAME_SIZE", params={"gpus": 2}),
        Problem(field="gpus", code="NO_OTHER_PLACE", params={"reasons": [{"code": "NO_NODE"}]}),
        *(Problem(field="gpus", code=code)
          for code in ("NO_GPUS_TO_MOVE", "NOT_ELASTIC", "NOT_RUNNING", "NO_DEADLINE", "EXTENSION_RANGE")),
    ]  # fmt: skip
    found = {p.code: p for p in [*every_problem(), *extra]}
    assert set(found) == set(PROBLEMS)
    assert_distinct({code: wording.problem(p) for code, p in found.items()})


def test_every_end_has_its_own_sentence_and_label() -> None:
    assert set(ENDS) == set(LABELS) == set(EndReason)
    runs = {reason: make_run(end_reason=reason, exit_code=3, state=RunState.ENDED) for reason in EndReason}
    assert_distinct({reason: wording.end_sentence(make_job(), run) for reason, run in runs.items()})
    assert_distinct({reason: wording.end_label(reason) for reason in EndReason})


@pytest.mark.parametrize("reason", list(EndReason))
def test_an_end_is_told_without_run_exit_code_and_limit(reason: EndReason) -> None:
    job = make_job(end_reason=reason, limit_seconds=None)
    said = wording.end_sentence(job, None)
    assert said
    assert "None" not in said
    assert not said.startswith(("Code ", "代码"))
    wording.suggestion(job, None)


def test_out_of_memory_suggests_half_as_much_again(language: str) -> None:
    found = wording.suggestion(make_job(), make_run(end_reason=EndReason.OOM_KILLED))
    assert found.changes == {"memory": "24 GiB"}
    assert "24 GiB" in str(found)
    if language == "en":
        assert str(found) == "Raise memory to 24 GiB and resubmit."


def test_a_bus_error_is_blamed_on_shared_memory() -> None:
    """pytorch/pytorch#5040: a data loader that meets the end of /dev/shm dies of signal 7."""
    run = make_run(end_reason=EndReason.EXIT_CODE, exit_code=135)
    assert "SIGBUS" in wording.end_sentence(make_job(), run)
    assert wording.suggestion(make_job(), run).changes == {"shm": "1 GiB"}
    assert wording.suggestion(make_job(), make_run(end_reason=EndReason.EXIT_CODE, exit_code=1)) is None


def test_every_event_has_its_own_sentence() -> None:
    assert set(EVENT_PARAMS) == set(EVENTS)
    events = {kind: JobEvent(kind=kind, params=p) for kind, p in EVENT_PARAMS.items()}
    assert_distinct({kind: wording.event_sentence(event) for kind, event in events.items()})


@pytest.mark.parametrize("wish", list(Wish))
def test_every_wish_is_told_as_event_and_while_stopping(wish: Wish) -> None:
    assert wording.event_sentence(JobEvent(kind="WISHED", params={"wish": wish}))
    assert wording.headline(make_job(state=JobState.STOPPING), make_run(wish=wish, state=RunState.STOPPING))


def test_every_step_of_a_start_and_every_warning_has_its_own_sentence() -> None:
    assert set(PROGRESS_PARAMS) == set(PROGRESS)
    assert set(WARNING_PARAMS) == set(WARNINGS)
    steps = {code: make_run(progress={"code": code, **p}) for code, p in PROGRESS_PARAMS.items()}
    assert_distinct({code: wording.progress(run) for code, run in steps.items()})
    assert_distinct({code: wording.warning({"code": code, **p}) for code, p in WARNING_PARAMS.items()})


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_word_and_a_headline(state: JobState) -> None:
    ended = state in ENDED
    run = make_run(state=RunState.ENDED if ended else RunState.RUNNING, end_reason="EXIT_CODE" if ended else "",
                   exit_code=2 if ended else None)  # fmt: skip
    assert wording.state_label(state) != state
    assert wording.headline(make_job(state=state), run)
    assert_distinct({s: wording.state_label(s) for s in JobState})


def test_the_headline_of_a_waiting_job_is_its_telling_reason() -> None:
    reasons = [{"code": "AHEAD", "count": 1, "first": 3}, {"code": "BUSY_GPUS", **WAIT_PARAMS["BUSY_GPUS"]}]
    job = make_job(state=JobState.QUEUED, wait_reasons=reasons)
    assert wording.headline(job) == wording.wait_reason(reasons[1])
    assert wording.headline(make_job(state=JobState.QUEUED)) == wording.wait_reason({"code": "NOT_LOOKED_AT"})


def test_unknown_codes_and_missing_numbers_are_named_not_raised() -> None:
    assert "NEW_CODE" in wording.wait_reason({"code": "NEW_CODE"})
    assert "BUSY_GPUS" in wording.wait_reason({"code": "BUSY_GPUS"})
    assert "QUOTA_GPUS" in wording.wait_reason({"code": "QUOTA_GPUS"})
    assert "NEW" in wording.event_sentence(JobEvent(kind="NEW"))
    assert "NEW" in wording.end_label("NEW")


def test_quantities_read_as_people_say_them(language: str) -> None:
    assert wording.memory(24576) == "24 GiB"
    if language == "en":
        assert wording.cpus(1500) == "1.5 CPUs"
        assert wording.cpus(1000) == "1 CPU"
        assert wording.duration(100_000) == "1 d 3 h"
        assert wording.duration(0) == "0 s"
        assert wording.gpu_hours(1800) == "0.5 GPU-hours"
        assert wording.gpu_hours(17) == "0.0047 GPU-hours"
        assert [wording.place(n, 30) for n in (1, 2, 3, 11, 21)] == [
            "1st of 30", "2nd of 30", "3rd of 30", "11th of 30", "21st of 30"
        ]  # fmt: skip


@pytest.mark.parametrize(("changes", "words", "sentence"), [
    ({}, "/bin/sh: 1: pyhton: not found", "The shell did not find the command pyhton."),
    ({"command_kind": "image", "arguments": ["-c", "x"]}, "sh: x: not found", "The shell did not find the command x."),
    ({"command_kind": "image"}, "No command specified", "The image has no command of its own: give one."),
    ({"command_kind": "image"}, "", "The image has no command of its own: give one."),
    ({"command_kind": "image"}, 'exec: "train": executable file not found', "The image has no command train."),
    ({"command_kind": "image", "entrypoint": ["train"]}, "", "The image has no command train."),
    ({}, "[FATAL tini (7)] exec /bin/sh failed: No such file or directory", "The image has no command /bin/sh."),
])  # fmt: skip
def test_a_command_that_is_not_there_is_said_by_who_missed_it(
    changes: dict[str, Any], words: str, sentence: str, language: str
) -> None:
    run = make_run(end_reason=EndReason.COMMAND_NOT_FOUND, exit_code=127, engine_message=words)
    said, advice = wording.end_sentence(make_job(**changes), run), wording.suggestion(make_job(**changes), run)
    assert said != str(advice)
    assert "busybox" not in said
    if language == "en":
        assert said == sentence


@pytest.mark.parametrize("code", [126, 127])
def test_the_codes_of_shells_are_explained_also_where_they_printed_nothing(code: int, language: str) -> None:
    run = make_run(end_reason=EndReason.EXIT_CODE, exit_code=code)
    assert str(code) in wording.end_sentence(make_job(), run)
    assert str(wording.suggestion(make_job(), run))
    assert wording.end_sentence(make_job(), make_run(end_reason=EndReason.EXIT_CODE, exit_code=3)) != (
        wording.end_sentence(make_job(), run)
    )
