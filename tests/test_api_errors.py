"""Every error of the API has one shape, names one field, and takes nothing for what it is not."""

from importlib import import_module
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from pydantic import ValidationError

from jobs.models import Job, Quota
from portal.apikit import Strict
from portal.models import User
from tests import factories
from tests.rigs.api import Api, errors

pytestmark = pytest.mark.django_db

NO_NUMBER: list[Any] = [True, False, "2", [], {}, 1.5]


@pytest.mark.parametrize("field", ["gpus", "least_gpus", "grace_seconds"])
@pytest.mark.parametrize("value", NO_NUMBER)
def test_what_is_no_whole_number_is_not_taken_for_one(field: str, value: Any, alice: User) -> None:
    answer = Api(alice).submit(**{field: value})
    assert answer.status_code == 422
    assert [found for found, _code in errors(answer)] == [field]
    assert not Job.objects.exists()


@pytest.mark.parametrize(("field", "value"), [
    ("cpus", True), ("memory_gib", "3"), ("gpu_percent", True), ("preemptible", 1), ("movable", "yes"),
    ("interactive", "true"),
])  # fmt: skip
def test_numbers_and_flags_are_what_they_say(field: str, value: Any, alice: User) -> None:
    assert [found for found, _code in errors(Api(alice).submit(**{field: value}))] == [field]


@pytest.mark.parametrize("value", [3.5, True, [], {}, "x" * 100])
def test_a_field_of_several_types_is_refused_once(value: Any, alice: User) -> None:
    api = Api(alice)
    assert errors(api.submit(limit=value)) == [("limit", "DURATION_TYPE")]
    job = factories.make_job(alice)
    assert errors(api.post(f"/jobs/{job.pk}/extend", {"extension": value})) == [("extension", "DURATION_TYPE")]
    assert errors(api.post(f"/jobs/{job.pk}/amend", {"limit": value})) == [("limit", "DURATION_TYPE")]
    assert errors(api.post(f"/jobs/{job.pk}/reorder", {"to": 1.5})) == [("to", "PLACE_TYPE")]


def test_no_body_names_its_insides_in_a_refusal() -> None:
    """A field is said by its name, with an item's number or key behind it where it holds several."""
    import_module("portal.api")  # loads every route
    for body in Strict.__subclasses__():
        for name in body.model_fields:
            for value in (3.5, True, object()):
                assert refused(body, {name: value}, name) <= {(name,)}


def refused(body: type[Strict], sent: dict[str, Any], name: str) -> set[tuple[int | str, ...]]:
    """Where in the field this body is refused."""
    try:
        body.model_validate(sent)
    except ValidationError as error:
        return {found["loc"] for found in error.errors() if found["loc"][0] == name}
    return set()


@pytest.mark.parametrize(("method", "path", "status", "code"), [
    ("get", "/api/nope", 404, "NOT_FOUND"), ("get", "/api/", 404, "NOT_FOUND"), ("get", "/api/jobs/", 404, "NOT_FOUND"),
    ("post", "/api/nope", 404, "NOT_FOUND"), ("get", "/api/jobs/seven", 404, "NOT_FOUND"),
    ("delete", "/api/jobs", 405, "METHOD_NOT_ALLOWED"), ("put", "/api/jobs/1", 405, "METHOD_NOT_ALLOWED"),
    ("post", "/api/docs", 405, "METHOD_NOT_ALLOWED"),
])  # fmt: skip
def test_an_address_or_method_that_is_none_is_answered_in_json(
    method: str, path: str, status: int, code: str, alice: User
) -> None:
    answer = getattr(Api(alice).client, method)(path)
    assert (answer.status_code, errors(answer)) == (status, [("", code)])
    assert answer.json()["errors"][0]["message"]
    if status == 405:
        assert answer.headers["Allow"]


FAILURES = [(RuntimeError, 500, "SERVER_ERROR"), (OperationalError, 503, "DATABASE_AWAY")]


@pytest.mark.parametrize(("kind", "status", "code"), FAILURES)
def test_a_failure_of_the_server_is_told_in_json(
    alice: User, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], status: int, code: str
) -> None:
    """A database that is restarted or fails over is no fault of the program, which only has to ask again."""

    def broken(*_args: Any, **_named: Any) -> None:
        raise kind("a secret detail")

    monkeypatch.setattr("jobs.api.board", broken)
    api = Api(alice)
    api.client.raise_request_exception = False
    answer = api.get("/queue")
    assert (answer.status_code, errors(answer)) == (status, [("", code)])
    assert ("Retry-After" in answer.headers) == (status == 503)
    assert b"secret detail" not in answer.content


def test_pages_keep_their_own_errors(client: Client, alice: User) -> None:
    client.force_login(alice)
    assert client.get("/nope").headers["Content-Type"].startswith("text/html")


def test_refusals_count_in_the_units_of_the_field(alice: User) -> None:
    Quota.objects.create(user=alice, millicpus=1500, memory_mib=1536)
    found = {e["field"]: e["params"] for e in Api(alice).submit(cpus=2, memory_gib=4).json()["errors"]}
    assert [found["cpus"][name] for name in ("asked", "limit", "nearest")] == [2, 1.5, 1.5]
    assert [found["memory_gib"][name] for name in ("asked", "limit", "nearest")] == [4, 1.5, 1.5]


def test_an_answer_has_what_was_asked_by_the_same_names(alice: User) -> None:
    asked = {"cpus": 0.5, "memory_gib": 1.5, "shm_gib": 0.25, "gpu_memory_gib": 24, "gpus": 1, "grace_seconds": 60}
    made = Api(alice).submit(**asked).json()
    assert {name: made[name] for name in asked} == asked
    (entry,) = Api(alice).get("/queue").json()["queued"]
    assert (entry["cpus"], entry["memory_gib"]) == (0.5, 1.5)
