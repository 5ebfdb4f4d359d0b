"""Who may open a socket, and when it closes."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.test import Client
from django.utils import timezone

from gpus.models import Node
from jobs import control
from portal import live
from portal.hub import APART
from portal.models import User
from portal.sockets import GONE, SIGNED_OUT
from tests import factories
from tests.sockets import closed_with, connect, in_db, message, open_socket

pytestmark = pytest.mark.django_db(transaction=True)
SOCKETS = ("/ws/jobs/{job}/", "/ws/gpus/", "/ws/changes/")


@in_db
def _cast() -> dict[str, Any]:
    vision, speech = factories.make_team("vision"), factories.make_team("speech")
    alice = factories.make_user("alice", teams=(vision,))
    stranger = factories.make_user("mallory", teams=(speech,))
    return {"alice": alice, "mallory": stranger, "job": factories.make_job(alice, vision)}


@pytest.mark.parametrize("path", SOCKETS)
async def test_a_visitor_is_refused_before_accept(path: str) -> None:
    cast = await _cast()
    accepted, _code = await connect(path.format(job=cast["job"].pk), None)
    assert not accepted


async def test_a_stranger_is_refused_as_if_the_job_did_not_exist() -> None:
    """jonwiggins/optio#241, apache/dolphinscheduler#12916"""
    cast = await _cast()
    strangers = await connect(f"/ws/jobs/{cast['job'].pk}/", cast["mallory"])
    nobodys = await connect("/ws/jobs/999999/", cast["mallory"])
    assert strangers == nobodys
    assert not strangers[0]


@pytest.mark.parametrize("path", ["/ws/jobs/99999999999999999999999999/", "/ws/nothing/", "/ws/jobs/x/"])
async def test_an_address_that_leads_nowhere_is_refused(path: str) -> None:
    cast = await _cast()
    accepted, _code = await connect(path, cast["alice"])
    assert not accepted


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        ("https://evil.example", "another site"),
        ("http://testserver.evil.example", "a host that begins like ours"),
        ("http://testserver:81", "another port is another origin"),
        ("null", "a sandboxed page"),
        ("", "no browser of ours"),
        ("http://[", "no address at all"),
    ],
)
async def test_a_page_of_another_origin_is_refused(origin: str, why: str) -> None:
    """django/channels: cross-site WebSocket hijacking"""
    cast = await _cast()
    accepted, _code = await connect(f"/ws/jobs/{cast['job'].pk}/", cast["alice"], origin=origin)
    assert not accepted, why


async def test_a_trusted_origin_is_let_in(settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://*.example.org"]
    cast = await _cast()
    accepted, _code = await connect("/ws/gpus/", cast["alice"], origin="https://gpus.example.org")
    assert accepted


@pytest.mark.parametrize("path", SOCKETS)
async def test_deactivation_closes_at_once(path: str, settings: Any) -> None:
    settings.SOCKET_RECHECK = 60
    cast = await _cast()
    async with open_socket(path.format(job=cast["job"].pk), cast["alice"]) as socket:
        await message(socket, lambda found: True)
        await in_db(lambda: User.objects.filter(pk=cast["alice"].pk).update(is_active=False))()
        await in_db(lambda: live.publish(live.user_topic(cast["alice"].pk), {"user": cast["alice"].pk}))()
        assert await closed_with(socket) == SIGNED_OUT


async def test_log_out_closes_even_when_its_news_is_lost(settings: Any) -> None:
    settings.SOCKET_RECHECK = 0.2
    cast = await _cast()
    client = Client()
    await in_db(client.force_login)(cast["alice"])
    async with open_socket("/ws/changes/", cast["alice"], client=client) as socket:
        await in_db(client.logout)()
        assert await closed_with(socket) == SIGNED_OUT


async def test_log_out_closes_at_once(settings: Any) -> None:
    settings.SOCKET_RECHECK = 60
    cast = await _cast()
    client = Client()
    await in_db(client.force_login)(cast["alice"])
    async with (
        open_socket("/ws/changes/", cast["alice"], client=client) as socket,
        open_socket("/ws/changes/", cast["alice"]) as elsewhere,
    ):
        for found in (socket, elsewhere):
            await message(found, lambda found: "jobs" in found)
        await in_db(client.post)("/accounts/logout/")
        assert await closed_with(socket) == SIGNED_OUT
        assert await elsewhere.receive_nothing(timeout=0.5), "another browser's session goes on"


async def test_a_silent_host_is_named_on_every_page(settings: Any) -> None:
    cast = await _cast()
    node = await in_db(factories.make_node)("alpha", gpus=0)
    async with open_socket("/ws/changes/", cast["alice"]) as socket:
        await message(socket, lambda found: "jobs" in found)
        old = timezone.now() - timedelta(seconds=settings.NODE_SILENT_AFTER + 1)
        await in_db(lambda: Node.objects.filter(pk=node.pk).update(last_seen=old))()
        assert await message(socket, lambda found: found.get("silent") == ["alpha"])
        await in_db(lambda: Node.objects.filter(pk=node.pk).update(last_seen=timezone.now()))()
        assert await message(socket, lambda found: found.get("silent") == [])


async def test_leaving_the_team_closes_the_jobs_socket(settings: Any) -> None:
    settings.SOCKET_RECHECK = 0.2
    cast = await _cast()
    bob = await in_db(lambda: factories.make_user("bob", teams=(cast["job"].team,)))()
    async with open_socket(f"/ws/jobs/{cast['job'].pk}/", bob) as socket:
        await in_db(lambda: bob.memberships.all().delete())()
        assert await closed_with(socket) == GONE


async def test_an_idle_socket_is_pinged(settings: Any) -> None:
    """sevdokimov/log-viewer#163: proxies close silent sockets"""
    settings.SOCKET_PING = 0.2
    cast = await _cast()
    async with open_socket("/ws/gpus/", cast["alice"]) as socket:
        found = await message(socket, lambda found: "ping" in found)
        assert abs(found["ping"] - time.time()) < 60


def _nonsense(run: int) -> Iterator[str]:
    """What no page of ours sends: no JSON, none of ours, and values of all kinds where numbers belong."""
    yield from (" ", "[", "7", "null", "9" * 5000, "[" * 100_000, '{"follow":' * 100_000, '{"follow": 1}')
    for odd in ("true", "null", "-1", "1.0", "1e400", "NaN", str(2**63), '"\\ud800"', "[]", "{}"):
        yield f'{{"ack": {odd}, "pong": {odd}, "\\udfff": {odd}}}'
        for name in ("run", "generation", "offset"):
            place = {"run": str(run), "generation": "0", "offset": "0", name: odd}
            yield '{"follow": {' + ", ".join(f'"{key}": {value}' for key, value in place.items()) + "}}"
    yield f'{{"follow": {{"run": {run}, "generation": 65535, "offset": {2**61}}}}}'


async def test_nonsense_from_a_client_is_passed_over() -> None:
    cast = await _cast()
    run = await in_db(lambda: factories.make_run(cast["job"], factories.make_node("alpha"), gpus=()))()
    async with open_socket(f"/ws/jobs/{cast['job'].pk}/", cast["alice"]) as socket:
        for text in _nonsense(run.pk):
            await socket.send_to(text_data=text)
            await socket.send_to(bytes_data=text.encode())
        await in_db(lambda: control.cancel(cast["job"], cast["alice"]))()
        found = await message(socket, lambda found: found.get("job", {}).get("wish") == "CANCEL")
        assert found["job"]["id"] == cast["job"].pk


async def test_many_changes_become_few_messages() -> None:
    """django/channels_redis#181: news is coalesced, never queued without bound"""
    cast = await _cast()
    async with open_socket("/ws/changes/", cast["alice"]) as socket:
        await message(socket, lambda found: "jobs" in found)
        began = time.monotonic()
        await in_db(lambda: [live.publish(live.JOBS, {"job": number}) for number in range(500)])()
        await message(socket, lambda found: "jobs" in found)
        await asyncio.sleep(0.3)
        assert await _pending(socket) <= 2 + (time.monotonic() - began) / APART["jobs"]


async def _pending(socket: WebsocketCommunicator) -> int:
    count = 0
    while not await socket.receive_nothing(timeout=0.05):
        await socket.receive_output()
        count += 1
    return count
