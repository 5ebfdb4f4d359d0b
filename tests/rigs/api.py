"""A program at the API."""

import json
from typing import Any

from django.test import Client

from portal.models import ApiToken, User

JOB = {"image": "dockyard-test/busybox", "script": "echo hello"}


class Api:
    """A program that speaks for a user."""

    def __init__(self, user: User, scope: str = "write") -> None:
        self.token, self.secret = ApiToken.issue(user, name="test", scope=scope, expires_at=None)
        self.client = Client(headers={"authorization": f"Bearer {self.secret}"})

    def get(self, path: str, **params: Any) -> Any:
        return self.client.get(f"/api{path}", params)

    def post(self, path: str, body: Any = None) -> Any:
        return self.client.post(f"/api{path}", json.dumps(body or {}), content_type="application/json")

    def submit(self, **fields: Any) -> Any:
        return self.post("/jobs", JOB | fields)


async def whole(answer: Any) -> bytes:
    """All of an answer that comes in pieces."""
    return b"".join([piece async for piece in answer.streaming_content])


def errors(answer: Any) -> list[tuple[str, str]]:
    """(field, code) of each error of a refusal."""
    return [(error["field"], error["code"]) for error in answer.json()["errors"]]
