"""Names that would turn or hide the text around them: refused where they come in, made visible where they are shown."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from jobs import workspace
from jobs.models import Team
from jobs.plain import INVISIBLE, is_visible, visible
from jobs.request import JobRequest
from portal.models import User
from tests import factories
from tests.rigs.api import Api

OVERRIDE = "photo\u202egnp.exe"
HEBREW, ARABIC, FAMILY = "שלום", "تدريب", "👨\u200d👩\u200d👧"


@pytest.mark.parametrize("text", ["train", "训练 7", HEBREW, ARABIC, FAMILY, "naïve – 50 %", ""])
def test_what_is_written_in_any_script_is_visible(text: str) -> None:
    assert is_visible(text)
    assert visible(text) == text


@pytest.mark.parametrize("code", [0, 9, 10, 27, 127, 0x85, 0x9B, 0x61C, 0x200E, 0x2028, 0x202A, 0x202E, 0x2066, 0x2069])
def test_what_drives_terminals_breaks_lines_or_sets_directions_is_not(code: int) -> None:
    text = f"a{chr(code)}b"
    assert visible(text) == "a\ufffdb"
    found = JobRequest(name=text, image="busybox", script="true").problems()
    assert [(problem.field, problem.code) for problem in found] == [("name", "NAME_CONTROL")]


@pytest.mark.parametrize(
    ("field", "value"), [("gpu_model", "A100\u202e"), ("node_labels", ("disk=\u202eemvn",)), ("name", OVERRIDE)]
)
def test_nothing_that_sentences_repeat_can_turn_them(field: str, value: Any) -> None:
    asked: dict[str, Any] = {"name": "n", "image": "busybox", "script": "true", "gpus": 1}
    found = JobRequest(**asked | {field: value}).problems()
    assert [problem.field for problem in found] == [field]


@pytest.mark.django_db
def test_the_api_refuses_such_a_name(alice: User) -> None:
    answer = Api(alice).submit(name=OVERRIDE)
    assert answer.status_code == 422
    assert "invisible control characters" in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/", "/jobs/", "/queue/", "/history/", "/jobs/{}/", "/jobs/{}/?part=files"])
def test_names_from_before_are_shown_in_a_direction_of_their_own(
    client: Client, alice: User, vision: Team, path: str, settings: Any, tmp_path: Path
) -> None:
    settings.WORKSPACE_ROOT = tmp_path
    job = factories.make_job(alice, vision, name=OVERRIDE)
    factories.make_run(factories.make_job(alice, vision, name=OVERRIDE), factories.make_node("alpha"))
    folder = workspace.of_user(alice.pk) / "jobs" / str(job.pk)
    folder.mkdir(parents=True)
    (folder / OVERRIDE).write_text("x")
    client.force_login(alice)
    page = client.get(path.format(job.pk)).content.decode()
    assert INVISIBLE.search("".join(page.split())) is None
    if path != "/history/":
        assert "<bdi>photo\ufffdgnp.exe</bdi>" in page
