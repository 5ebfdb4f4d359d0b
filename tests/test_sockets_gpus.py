"""The socket and the page of all GPUs: who sees what of whom."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.test import Client

from gpus import history
from gpus.models import GPU, Node
from jobs.models import AllocationSlot
from portal import live
from portal.hub import APART
from tests import factories
from tests.sockets import in_db, message, open_socket, publishing

pytestmark = pytest.mark.django_db(transaction=True)


def _reading(**fields: Any) -> dict[str, Any]:
    process = {"pid": 4711, "name": "secret-project", "user": "dave", "memory_mib": 2000, "kind": "foreign",
               "container": None, "job": None, "owner": None}  # fmt: skip
    gpu = {"uuid": "GPU-alpha-0000", "index": 0, "model": "NVIDIA A100", "memory_mib": 40960, "utilisation": 0,
           "memory_used_mib": None, "health": "ok", "processes": [process], "job": None, "owner": None,
           "busy_outside": True}  # fmt: skip
    return {"node": "alpha", "at": time.time(), "status": "ok", "message": "", "gpus": [gpu],
            "containers": [{"job": 1, "run": 1}], **fields}  # fmt: skip


@in_db
def _cast() -> dict[str, Any]:
    factories.make_node("alpha", gpus=2)
    return {"alice": factories.make_user("alice"), "admin": factories.make_admin()}


async def _told(socket: WebsocketCommunicator, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The next message of hosts whose first is as wanted: news of other kinds may come in between."""
    return await message(socket, lambda found: "nodes" in found and wanted(found["nodes"][0]))


async def test_every_node_is_told_at_once_and_its_readings_as_they_come() -> None:
    cast = await _cast()
    async with open_socket("/ws/gpus/", cast["alice"]) as socket:
        first = await message(socket, lambda found: "nodes" in found)
        assert [gpu["utilisation"] for gpu in first["nodes"][0]["gpus"]] == [None, None]
        async with publishing(live.gpus_topic("alpha"), _reading()):
            later = await _told(socket, lambda node: node["at"] is not None)
        assert later["nodes"][0]["gpus"][0]["utilisation"] == 0


@pytest.mark.parametrize(("who", "name"), [("alice", None), ("admin", "secret-project")])
async def test_process_names_are_for_admins(who: str, name: str | None) -> None:
    cast = await _cast()
    async with open_socket("/ws/gpus/", cast[who]) as socket:
        async with publishing(live.gpus_topic("alpha"), _reading()):
            told = await _told(socket, lambda node: node["at"] is not None)
        process = told["nodes"][0]["gpus"][0]["processes"][0]
        assert (process["name"], process["user"], process["memory_mib"]) == (name, "dave", 2000)


def test_the_json_hides_the_same_from_who_polls(client: Client) -> None:
    factories.make_node("alpha", gpus=2)
    live.connection().set(history.host_key("alpha"), json.dumps(_reading()))
    client.force_login(factories.make_user("alice"))
    found = client.get("/gpus/now.json").json()["nodes"][0]
    assert found["gpus"][0]["processes"][0]["name"] is None
    assert found["containers"] == []
    assert len(found["gpus"]) == 2, "a GPU that was not read is still shown"


async def test_a_hidden_gpu_is_shown_to_admins_only() -> None:
    cast = await _cast()
    await in_db(lambda: GPU.objects.filter(uuid="GPU-alpha-0000").update(hidden=True))()
    for who, shown in (("alice", ["GPU-alpha-0001"]), ("admin", ["GPU-alpha-0000", "GPU-alpha-0001"])):
        async with open_socket("/ws/gpus/", cast[who]) as socket:
            first = await message(socket, lambda found: "nodes" in found)
            assert [gpu["uuid"] for gpu in first["nodes"][0]["gpus"]] == shown
            async with publishing(live.gpus_topic("alpha"), _reading()):
                later = await _told(socket, lambda node: node["at"] is not None)
            assert [gpu["uuid"] for gpu in later["nodes"][0]["gpus"]] == shown[:-1]


async def test_a_job_that_comes_is_named_to_its_team_and_numbered_to_others() -> None:
    cast = await _cast()
    owner = await in_db(factories.make_user)("olga")
    job = await in_db(factories.make_job)(owner, name="secret plan")
    async with open_socket("/ws/gpus/", owner) as own, open_socket("/ws/gpus/", cast["alice"]) as other:
        for socket in (own, other):
            await message(socket, lambda found: "nodes" in found)
        await in_db(factories.make_run)(job, await in_db(Node.objects.get)(name="alpha"))
        reading = _reading()
        reading["gpus"][0] |= {"job": job.pk, "owner": "olga"}
        async with publishing(live.gpus_topic("alpha"), reading):
            for socket, name in ((own, "secret plan"), (other, None)):
                told = await _told(socket, lambda node: node["gpus"][0]["job"] is not None)
                gpu = told["nodes"][0]["gpus"][0]
                assert (gpu["job"], gpu["owner"], gpu["job_name"]) == (job.pk, "olga", name)


async def test_a_second_job_on_a_shared_gpu_is_named_at_once() -> None:
    await _cast()
    owner = await in_db(factories.make_user)("olga")
    node = await in_db(Node.objects.get)(name="alpha")
    gpu = await in_db(lambda: node.gpus.get(index=0))()
    first, second = [await in_db(factories.make_job)(owner, name=name) for name in ("one", "two")]
    await in_db(factories.make_run)(first, node, gpus=(gpu,))
    reading = _reading()
    async with open_socket("/ws/gpus/", owner) as socket:
        await message(socket, lambda found: "nodes" in found)
        run = await in_db(factories.make_run)(second, node, gpus=())
        await in_db(AllocationSlot.objects.create)(allocation=run.allocation, gpu=gpu, slot=1)
        reading["gpus"][0] |= {"job": first.pk, "owner": "olga", "jobs": [first.pk, second.pk]}
        async with publishing(live.gpus_topic("alpha"), reading):
            told = await _told(socket, lambda node: len(node["gpus"][0]["holders"]) == 2)
    assert [held["job_name"] for held in told["nodes"][0]["gpus"][0]["holders"]] == ["one", "two"]


async def test_who_may_see_the_same_is_sent_the_same_and_only_the_newest_of_many() -> None:
    """A slow browser loses samples, never memory."""
    cast = await _cast()
    bob = await in_db(factories.make_user)("bob")
    async with open_socket("/ws/gpus/", cast["alice"]) as one, open_socket("/ws/gpus/", bob) as other:
        for socket in (one, other):
            await message(socket, lambda found: "nodes" in found)
        began = time.monotonic()
        topic = live.gpus_topic("alpha")
        await in_db(lambda: [live.publish(topic, _reading(at=float(number))) for number in range(200)])()
        told = [await _until(socket, 199.0) for socket in (one, other)]
    assert told[0][-1] == told[1][-1]
    assert max(map(len, told)) < 20 + (time.monotonic() - began) / APART["gpus"]


async def _until(socket: Any, at: float) -> list[dict[str, Any]]:
    """What the socket says, to the reading of that time."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["nodes"][0]["at"] != at:
        found.append(await message(socket, lambda said: "nodes" in said))
    return found


def test_the_page_says_what_to_do_without_hosts(client: Client) -> None:
    client.force_login(factories.make_user("alice"))
    assert "manage.py node" in client.get("/gpus/").content.decode()


def test_the_page_needs_no_redis(client: Client, redis_server: Any) -> None:
    factories.make_node("alpha", gpus=1)
    client.force_login(factories.make_user("alice"))
    redis_server.stop()
    assert client.get("/gpus/").status_code == 200
    assert client.get("/gpus/recent.json").json()["gpus"] == {"GPU-alpha-0000": []}


@pytest.mark.parametrize("path", ["/gpus/", "/gpus/now.json", "/gpus/recent.json"])
def test_visitors_are_sent_to_the_log_in(client: Client, path: str) -> None:
    assert client.get(path).status_code == 302
