"""Runs whose GPUs do nothing: what counts as idle, who is told, and when one is stopped."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import LazySettings
from django.core import mail
from django.test import Client

from gpus.models import GPU, GPUMinute
from jobs.idle import idleness, watch_idle
from jobs.mail import idle_message, run_idle
from jobs.models import Run
from jobs.queues import IDLE_MAIL, queue
from jobs.states import RunState, Wish
from portal.models import User
from tests import factories
from tests.rigs.processes import wait_until

NOW = datetime(2026, 11, 30, 12, 20, 30, tzinfo=UTC)
BEGAN = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)
Loads = Sequence[float | None]


def minutes(loads: Loads) -> list[tuple[datetime, float | None]]:
    """The minutes that end with the last whole one before NOW."""
    first = NOW.replace(second=0) - timedelta(minutes=len(loads))
    return [(first + timedelta(minutes=number), load) for number, load in enumerate(loads)]


@pytest.mark.parametrize(
    ("gpus", "state", "reason"),
    [
        ([[0] * 17], "idle", "nothing for all that time"),
        ([[0] * 17, [1.5] * 17], "idle", "a few percent are no work"),
        ([[0] * 16 + [40]], "works", "it works in the last minute"),
        ([[60] + [0] * 16, [0] * 17], "works", "one of two has worked within that time"),
        ([[None] * 17], "unknown", "a MIG instance tells no load"),
        ([[0] * 17, [None] * 17], "unknown", "one of two tells none"),
        ([[0] * 5], "unknown", "nothing was read for most of the time"),
        ([[]], "unknown", "nothing was read at all"),
    ],
)
def test_only_gpus_that_told_of_no_load_for_long_are_idle(gpus: list[Loads], state: str, reason: str) -> None:
    """roscisz/TensorHive#336: what a driver does not tell is no idleness."""
    assert idleness(map(minutes, gpus), BEGAN, 900).state == state, reason


def test_a_run_that_never_worked_is_idle_since_it_began() -> None:
    assert idleness([minutes([90, 0] + [0] * 18)], BEGAN, 900).since == BEGAN, "the first minute was another's"


@pytest.fixture
def idler(alice: User, settings: LazySettings) -> Run:
    settings.IDLE_AFTER = 120
    node = factories.make_node()
    return factories.make_run(factories.make_job(alice), node, state=RunState.RUNNING, started_at=BEGAN)


def keep(run: Run, loads: Loads) -> None:
    for gpu in GPU.objects.filter(uuid__in=run.gpu_uuids):
        GPUMinute.objects.filter(gpu=gpu).delete()
        GPUMinute.objects.bulk_create(GPUMinute(gpu=gpu, minute=at, utilisation=load) for at, load in minutes(loads))


def codes(run: Run) -> list[str]:
    return [warning["code"] for warning in Run.objects.get(pk=run.pk).warnings]


@pytest.mark.database
def test_owners_and_admins_see_since_when_a_job_is_idle_until_it_works_again(
    idler: Run, client: Client, root_admin: User
) -> None:
    """roscisz/TensorHive#336, microsoft/pai#912"""
    keep(idler, [0] * 4)
    for _ in range(2):
        watch_idle(idler.node.name, NOW)
    assert codes(idler) == ["GPUS_IDLE"]
    sentence = "Its GPUs have been idle since"
    for user in (idler.job.owner, root_admin):
        client.force_login(user)
        for path in (f"/jobs/{idler.job_id}/", "/jobs/?whose=all"):
            assert sentence in client.get(path).content.decode(), (user, path)
    keep(idler, [0, 0, 0, 50])
    watch_idle(idler.node.name, NOW)
    assert codes(idler) == []
    assert [event.kind for event in idler.events.filter(kind__in=("WARNED", "WORKS_AGAIN"))] == [
        "WARNED",
        "WORKS_AGAIN",
    ]


def test_an_idle_run_is_stopped_only_where_that_is_switched_on_and_after_notice(
    idler: Run, settings: LazySettings
) -> None:
    keep(idler, [0] * 4)
    watch_idle(idler.node.name, NOW)
    watch_idle(idler.node.name, NOW + timedelta(seconds=10))
    assert Run.objects.get(pk=idler.pk).wish == "", "nobody asked for that"
    settings.IDLE_STOP_AFTER = 60
    watch_idle(idler.node.name, NOW)  # the notice
    watch_idle(idler.node.name, NOW + timedelta(seconds=50))
    assert Run.objects.get(pk=idler.pk).wish == ""
    watch_idle(idler.node.name, NOW + timedelta(seconds=61))
    assert Run.objects.get(pk=idler.pk).wish == Wish.IDLE_RECLAIM


def test_the_owner_of_an_idle_job_is_told_by_e_mail_once(idler: Run, settings: LazySettings) -> None:
    """roscisz/TensorHive#336: idle again later, it is not told again; who switched it off, hears nothing."""
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    keep(idler, [0] * 4)
    watch_idle(idler.node.name, NOW)
    assert [queued.func_name for queued in queue("scheduler").jobs] == [IDLE_MAIL]
    settings.IDLE_MAIL = False
    run_idle(idler.pk)
    assert not idler.events.filter(kind="TOLD_IDLE").exists()
    settings.IDLE_MAIL = True
    run_idle(idler.pk)
    run_idle(idler.pk)
    assert idler.events.filter(kind="TOLD_IDLE").count() == 1
    letter = idle_message(Run.objects.get(pk=idler.pk))
    assert (letter.to, "GPUs idle" in letter.subject) == (["alice@example.org"], True)
    assert "Its GPUs have been idle since" in str(letter.body)
    wait_until(lambda: len(mail.outbox) == 1, "the e-mail")
    for use in ([0, 0, 0, 50], [0] * 4):
        keep(idler, use)
        watch_idle(idler.node.name, NOW)
        run_idle(idler.pk)
        assert idler.events.filter(kind="TOLD_IDLE").count() == 1, "idle again later"


def test_a_job_that_works_by_the_time_of_the_e_mail_is_not_told_of(idler: Run, settings: LazySettings) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    keep(idler, [0] * 4)
    watch_idle(idler.node.name, NOW)
    keep(idler, [0, 0, 0, 50])
    watch_idle(idler.node.name, NOW)
    run_idle(idler.pk)
    assert not idler.events.filter(kind="TOLD_IDLE").exists()
