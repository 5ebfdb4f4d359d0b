"""An engine that answers late, never, or with an error: one container an attempt, and no GPU freed too early."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
from django.utils import timezone

from gpus.models import GPU, Node
from jobs.models import Job
from jobs.states import ENDED
from tests.rigs.engine import Engine
from tests.rigs.processes import wait_until
from tests.rigs.proxy import Proxy, Rule, running_proxy
from tests.rigs.stack import Stack
from tests.way.lab import Lab, gate

CREATE = r"^POST /containers/create"
START = r"^POST /containers/[^/]+/start"
KILL = r"^POST /containers/[^/]+/kill"
PERIODS = {"ENGINE_TIMEOUT": "3", "KILL_STUCK_AFTER": "1", "START_RESEND": "1"}


def gpus_of(lab: Lab, job: Job) -> list[str]:
    run = lab.run(job)
    return lab.call(lambda: run.gpu_uuids)


@pytest.fixture(scope="module")
def node(stack: Stack, engine: Engine) -> Iterator[Proxy]:
    """The node speaks to its engine through a proxy and waits a few seconds only."""
    with running_proxy(engine.socket) as proxy:
        stack.restart("node", DOCKER_HOST=proxy.url, **PERIODS)
        yield proxy
        stack.restart("node")


@pytest.fixture(scope="module")
def patient(stack: Stack, node: Proxy) -> Proxy:
    """The same, but the node waits for as long as it usually does: a slow machine is no engine that does not answer."""
    stack.restart("node", DOCKER_HOST=node.url)
    return node


@pytest.fixture(autouse=True)
def _no_quarantine(stack: Stack) -> Iterator[None]:
    yield
    stack.orm(lambda: GPU.objects.exclude(quarantine_reason="").update(quarantine_reason=""))


def is_alive(lab: Lab) -> bool:
    return lab.call(lambda: Node.objects.get(name="alpha").is_alive())


def running_containers(lab: Lab) -> list[str]:
    with lab.engine.client() as client:
        return [container.name for container in client.containers.list(ignore_removed=True)]


def met(rule: Rule) -> Callable[[], bool]:
    return lambda: rule.met > 0


Fault = Callable[[Proxy], AbstractContextManager[Rule]]
FAULTS: dict[str, Fault] = {
    "create comes late": lambda node: node.delays(CREATE, 5, times=1),
    "create is done and never answered": lambda node: node.holds_answer(CREATE, times=1),
    "create breaks off when it is done": lambda node: node.cuts_answer(CREATE, times=1),
    "start comes late": lambda node: node.delays(START, 5, times=1),
    "start is done and never answered": lambda node: node.holds_answer(START, times=1),
    "start breaks off": lambda node: node.cuts(START, times=1),
    "inspect fails": lambda node: node.answers(r"^GET /containers/[^/]+/json", 500, "something went wrong", times=2),
    "the image can't be looked at": lambda node: node.holds(r"^GET /images/", times=1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_start_that_is_disturbed_happens_once(lab: Lab, node: Proxy, fault: str) -> None:
    """docker/docker-py#2266, openzim/zimfarm#378: a call that timed out had worked, and a second container came."""
    with FAULTS[fault](node) as rule:
        job = lab.end(lab.submit("echo once; exit 7", gpus=1))
        assert rule.met
    assert (job.state, job.exit_code) == ("FAILED", 7)
    assert lab.log(job) == b"once\n"
    assert lab.call(lambda: job.runs.count()) == 1


def test_a_container_that_an_engine_left_half_made_is_made_anew(lab: Lab, node: Proxy) -> None:
    """An engine that dies as it makes one may leave what it can't start; the job can be started all the same."""
    with node.cuts_answer(CREATE, times=1), node.answers(START, 500, "layer does not exist", times=1) as refused:
        job = lab.end(lab.submit("echo once; exit 7", gpus=1))
        assert refused.met
    assert (job.state, job.end_reason, job.exit_code, lab.log(job)) == ("FAILED", "EXIT_CODE", 7, b"once\n")
    assert lab.call(lambda: job.runs.count()) == 1
    wait_until(lambda: lab.containers() == [], "nothing is left of it")


def test_a_container_made_after_its_job_was_cancelled_is_removed(lab: Lab, node: Proxy) -> None:
    """docker/docker-py#398: it stayed behind, with the GPU."""
    with node.delays(CREATE, 280, times=1) as rule:
        job = lab.submit("exec sleep 600", gpus=1)
        wait_until(met(rule), "the create call")
        lab.cancel(job)
        assert lab.end(job).state == "CANCELLED"
        assert lab.held_slots() == 0
        assert lab.containers() == []
    wait_until(lambda: rule.finished, "the engine has made it after all")
    wait_until(lambda: lab.containers() == [], "and it is gone")


@pytest.mark.parametrize("fault", ["start is done and never answered", "start comes late"])
def test_a_cancel_frees_no_gpu_whose_container_runs(lab: Lab, node: Proxy, fault: str) -> None:
    """NVIDIA/nvidia-docker#1553: freed on the wish alone, the GPU went to the next job while the old one ran."""
    with FAULTS[fault](node) as rule:
        job = lab.submit("trap '' TERM; while :; do sleep 0.1; done", gpus=1, grace_seconds=1)
        wait_until(met(rule), "the start call")
        lab.cancel(job)
        wait_until(lambda: ended_and_nothing_runs(lab, job), "its end", every=0.02)
    wait_until(lambda: rule.finished, "the engine has heard all of it")
    assert lab.fresh(job).end_reason == "STOPPED_BY_USER"
    assert running_containers(lab) == []


def ended_and_nothing_runs(lab: Lab, job: Job) -> bool:
    if lab.fresh(job).state not in ENDED:
        return False
    assert running_containers(lab) == [], "it was called ended while its container ran"
    return True


def test_a_start_that_never_happens_is_given_up_and_tried_again(lab: Lab, node: Proxy) -> None:
    """docker/docker-py#1374: "starting" for ever, with the GPU."""
    with node.holds(START) as rule:
        job = lab.submit("echo second", gpus=1)
        wait_until(met(rule), "the start call")
        first = lab.run(job)
        lab.call(lambda: job.runs.update(starting_at=timezone.now() - timedelta(hours=1)))
        wait_until(lambda: lab.call(lambda: job.runs.get(pk=first.pk).state) == "ENDED", "it is given up")
    job = lab.end(job)
    assert (job.state, lab.log(job)) == ("SUCCEEDED", b"second\n")
    ends = lab.call(lambda: list(job.runs.order_by("number").values_list("end_reason", flat=True)))
    assert ends == ["START_TIMEOUT", "COMPLETED"]


def test_a_container_that_can_t_be_killed_keeps_its_gpu_and_disturbs_nobody(lab: Lab, node: Proxy) -> None:
    """NVIDIA/nvidia-docker#1553, moby/moby#34213, #41827: the GPU was shown free, and the next job died on it."""
    with node.holds(KILL):
        job = lab.start("exec sleep 600", gpus=1, grace_seconds=1)
        stuck = gpus_of(lab, job)
        lab.cancel(job)
        wait_until(lambda: warned(lab, job, "KILL_STUCK"), "a warning")
        assert lab.fresh(job).state == "STOPPING"
        assert lab.held_slots() == 1
        assert lab.call(lambda: GPU.objects.get(uuid=stuck[0]).quarantine_reason) != ""
        others = [lab.submit("echo $NVIDIA_VISIBLE_DEVICES", gpus=1) for _ in range(3)]
        for other in others:
            assert lab.log(lab.end(other)).decode().strip() not in stuck
        limited = lab.submit("exec sleep 600", limit_seconds=1, grace_seconds=1)
        lab.wait(limited, "STOPPING")
        wait_until(lambda: is_alive(lab), "it shows signs of life all along")
        assert lab.fresh(job).state == "STOPPING"
    job = lab.end(job)
    assert (job.state, job.end_reason) == ("CANCELLED", "STOPPED_BY_USER")
    assert lab.end(limited).state == "TIMED_OUT"
    assert lab.held_slots() == 0
    assert lab.call(lambda: GPU.objects.get(uuid=stuck[0]).quarantine_reason) != "", "an admin looks first"


def warned(lab: Lab, job: Job, code: str) -> bool:
    run = lab.run(job)
    assert len([w for w in run.warnings if w["code"] == code]) <= 1
    return any(warning["code"] == code for warning in run.warnings)


def test_an_end_that_the_engine_never_tells_is_found(lab: Lab, node: Proxy) -> None:
    """moby/moby#33820, #43618, docker/docker-py#1966: waiting on one answer that never came."""
    with node.holds(r"^GET /events"):
        lab.stack.restart("node", DOCKER_HOST=node.url, **PERIODS)
        job = lab.end(lab.submit("echo unheard; exit 5", gpus=1))
        assert (job.state, job.exit_code) == ("FAILED", 5)
        assert lab.log(job) == b"unheard\n"


def test_an_engine_that_hangs_is_told_and_gets_no_job(lab: Lab, node: Proxy) -> None:
    """The host lives, its engine does not answer: what waits says so, and what runs goes on."""
    job = lab.start(f"{gate()}; echo through; exit 3", gpus=1)
    with node.holds(r"^(?!GET /events|POST /containers/[^/]+/attach)"):
        wait_until(lambda: lab.call(lambda: Node.objects.get(name="alpha").engine_error), "it is noticed")
        waiting = lab.submit("echo later", gpus=1)
        wait_until(lambda: "ENGINE" in reasons(lab, waiting), "the reason")
        wait_until(lambda: is_alive(lab), "a sign of life")
        assert lab.fresh(job).state == "RUNNING"
    lab.open(job)
    job = lab.end(job)
    assert (job.state, job.exit_code, lab.log(job)) == ("FAILED", 3, b"through\n")
    assert lab.log(lab.end(waiting)) == b"later\n"


def reasons(lab: Lab, job: Job) -> list[str]:
    return [reason["code"] for reason in lab.fresh(job).wait_reasons]


def test_a_crashed_engine_ends_its_jobs_and_resurrects_none(lab: Lab, node: Proxy) -> None:
    """microsoft/pai#2548, NVIDIA/nvidia-docker#526: a restart policy brought jobs back that nobody knew of."""
    job = lab.start("exec sleep 600", gpus=1)
    assert lab.inspect(job)["HostConfig"]["RestartPolicy"]["Name"] == "no"
    lab.engine.kill()
    assert lab.fresh(job).state == "RUNNING"
    assert lab.held_slots() == 1, "silence proves nothing"
    lab.engine.start()
    job = lab.end(job)
    assert (job.state, job.end_reason) == ("FAILED", "HOST_DAEMON_RESTART")
    assert running_containers(lab) == []
    assert lab.log(lab.end(lab.submit("echo again", gpus=1))) == b"again\n"


@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "crashed"])
def test_a_job_that_goes_down_with_node_and_engine_is_told_so(lab: Lab, node: Proxy, orderly: bool) -> None:
    """microsoft/pai#2548: with nobody there to see the engine go, its 137 read like a kill by hand."""
    lab.stack.restart("node")  # at the engine's own socket
    job = lab.start("exec sleep 600", gpus=1)
    lab.stack.kill_group("node")
    if orderly:
        lab.engine.stop()
    else:
        lab.engine.kill()
    lab.engine.start()
    lab.stack.restart("node")
    job = lab.end(job)
    assert (job.state, job.end_reason) == ("FAILED", "HOST_DAEMON_RESTART")
    assert lab.held_slots() == 0
    lab.stack.restart("node", DOCKER_HOST=node.url, **PERIODS)


def test_a_kill_while_only_the_node_was_down_is_no_restart(lab: Lab, node: Proxy) -> None:
    """The engine ran on: whoever killed the container, it was not the engine going down."""
    lab.stack.restart("node")
    job = lab.start("exec sleep 600", gpus=1)
    lab.stack.kill_group("node")
    with lab.engine.client() as client:
        client.api.kill(lab.run(job).container_id, "SIGKILL")
    lab.stack.restart("node")
    assert lab.end(job).end_reason == "KILLED_EXTERNALLY"


# From here on the node waits for its engine as long as it usually does.


def test_a_job_lives_through_the_restart_of_an_engine_that_can(lab: Lab, patient: Proxy) -> None:
    """moby/moby#23213: with live-restore the wait broke off, and the job was called failed."""
    lab.engine.configure(**{"live-restore": True})
    try:
        count = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo n=$i; sleep 0.1; done"
        job = lab.start(f"{count}; {gate()}; exit 7", gpus=1)
        lab.engine.restart()
        assert lab.fresh(job).state == "RUNNING"
        lab.open(job)
        job = lab.end(job)
    finally:
        lab.engine.configure()
    assert (job.state, job.end_reason, job.exit_code) == ("FAILED", "EXIT_CODE", 7)
    assert lab.log(job) == b"".join(b"n=%d\n" % n for n in range(1, 41))


def test_a_stop_signal_that_the_engine_is_slow_to_take_is_sent_once(lab: Lab, patient: Proxy) -> None:
    """dstackai/dstack#4285's kind: a second SIGTERM makes many a trainer drop the checkpoint that the first began."""
    job = lab.start(
        "n=0; trap 'n=$((n+1))' TERM; echo ready; while [ $n = 0 ]; do sleep 0.1; done;"
        " for i in 1 2 3 4 5 6 7 8; do sleep 0.5; done 2>/dev/null; echo heard $n",
        grace_seconds=120,
    )
    wait_until(lambda: b"ready" in lab.log(job), "the trap")
    with patient.delays(KILL, 2, times=1) as rule:
        lab.cancel(job)
        lab.end(job)
        assert rule.met == 1
    assert lab.log(job).splitlines()[-1] == b"heard 1"
