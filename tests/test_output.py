"""What a program tells of itself in its output: its progress, and the numbers that it prints."""

import time
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from jobs import gauge
from jobs.follow import Follower
from jobs.gauge import Gauge
from jobs.metrics import MOST_POINTS, MOST_SERIES, MetricsFinder, values
from jobs.models import Run, RunMetrics
from jobs.progress import ProgressFinder, counts
from tests import factories
from tests.rigs.engine import Engine
from tests.rigs.logs import Container
from tests.rigs.processes import wait_until


@pytest.mark.parametrize(
    ("line", "done", "total", "left", "why"),
    [
        (" 24%|██▍       | 120/500 [00:12<00:38,  9.87it/s, loss=0.31]", 120, 500, 38, "tqdm"),
        ("train:  24%|##4   | 1.20k/5.00k [1:00:12<03:00:38, 9.8it/s]", 1200, 5000, 10838, "tqdm, scaled, with a name"),
        ("  0%|          | 0/500 [00:00<?, ?it/s]", 0, 500, None, "tqdm before its first step"),
        ("120/500 [====>.....] - ETA: 12s - loss: 0.3100", 120, 500, None, "Keras"),
        ("step 120/500", 120, 500, None, "a word"),
        ("INFO Step: 120 / 500 loss=0.2", 120, 500, None, "a word with a colon, in a log line"),
        ("Iteration [7/90]", 7, 90, None, "brackets"),
        ("batch 7 of 90", 7, 90, None, "of"),
        ("Epoch 3/10", 3, 10, None, "epochs"),
        ("[ 45%] Building CXX object", 45, 100, None, "cmake: a percentage at the start"),
        ("Downloading: 45.5% of 3 GB", 45.5, 100, None, "a percentage behind a word"),
        ("45 % complete", 45, 100, None, "a percentage before a word"),
        ("::dockyard progress=120/500 loss=0.4", 120, 500, None, "the marker"),
        ("::dockyard progress=24%", 24, 100, None, "the marker in percent"),
        ("::dockyard progress=0.24", 0.24, 1, None, "the marker as a share"),
    ],
)
def test_progress_is_found(line: str, done: float, total: float, left: float | None, why: str) -> None:
    found = counts(line)
    assert [(count.done, count.total, count.left) for count in found] == [(done, total, left)], why


@pytest.mark.parametrize(
    "line",
    ["accuracy: 93%", "GPU 0 at 45% of its memory", "on 3/10 in 2024", "step 7/0", "step 8/7", "", "http://a/1/2",
     "::dockyard", "GET /step/3/4", "::dockyard progress=x"],
)  # fmt: skip
def test_what_only_looks_like_progress_is_none(line: str) -> None:
    assert counts(line) == []


def test_the_steps_of_an_epoch_move_the_whole_bar_and_tell_when_it_ends() -> None:
    finder = ProgressFinder()
    for epoch in range(1, 4):
        finder.feed(f"Epoch {epoch}/10", epoch * 100)
        for step in range(0, 100, 10):
            finder.feed(f"step {step}/100", epoch * 100 + step)
            finder.progress()
    found = finder.progress()
    assert found
    assert (round(found.fraction, 2), found.label, found.done) == (0.29, "epoch", 3)
    assert found.left == pytest.approx(710)


def test_steps_that_go_on_over_epochs_are_the_finer_measure() -> None:
    finder = ProgressFinder()
    for step in range(0, 500, 10):
        finder.feed(f"epoch {step // 100 + 1}/10 step {step}/1000", step)
    found = finder.progress()
    assert found
    assert (found.fraction, found.label) == (0.49, "step")
    assert found.left == pytest.approx(510)


def test_a_bar_within_a_bar_does_not_stand_for_the_whole() -> None:
    """An outer bar of files, and one anew for the bytes of each."""
    finder = ProgressFinder()
    for number in range(1, 6):
        finder.feed(f"files:  20%|██ | {number}/20 [00:10<02:30, 0.1it/s]", number * 10)
        for part in (0, 50, 100):
            finder.feed(
                f"a.bin: {part}%|█ | {part}/100 [00:01<00:0{(100 - part) // 50}, 9it/s]", number * 10 + part / 20
            )
    found = finder.progress()
    assert found
    assert (found.fraction, found.total) == (0.25, 20)


def test_a_download_that_stopped_half_way_gives_way_to_what_goes_on() -> None:
    finder = ProgressFinder()
    for at in range(10):
        finder.feed(f"Downloading: {at}%", at)
    for at in range(100, 200):
        finder.feed(f"step {at - 100}/1000", at)
    found = finder.progress()
    assert found
    assert found.label == "step"


@pytest.mark.parametrize(
    ("line", "expected", "why"),
    [
        ("step 3 loss=0.31, lr=2.5e-05", {"loss": 0.31, "lr": 2.5e-05}, "name=value"),
        ("val_loss: 0.44 - accuracy: 93% - eta: 3", {"val_loss": 0.44, "accuracy": 93}, "usual names with a colon"),
        ("{'loss': 0.31, 'learning_rate': 5e-05, 'epoch': 0.5}", {"loss": 0.31, "learning_rate": 5e-05, "epoch": 0.5},
         "a trainer's dict"),
        ('{"loss": 0.3, "name": "x", "ok": true, "step": 12}', {"loss": 0.3, "step": 12}, "a JSON line"),
        ("::dockyard score=7 fid: 3", {"score": 7}, "the marker"),
        ("listening on 0.0.0.0:8080, time: 12:04:33", {}, "no measures"),
        ("a/b=1x c==2 =3", {}, "no numbers"),
    ],
)  # fmt: skip
def test_numbers_are_found(line: str, expected: dict[str, float], why: str) -> None:
    assert dict(values(line)) == expected, why


def test_series_are_few_and_thinned_out_and_settings_are_none() -> None:
    finder = MetricsFinder()
    for number in range(10_000):
        finder.feed(f"step={number} loss={1 / (number + 1)} lr=0.1 pid={number}", number)
        finder.feed(" ".join(f"metric{name}={number}" for name in range(20)), number)
    found = finder.as_json()
    assert len(found) <= MOST_SERIES
    points = {row["name"]: row["points"] for row in found}
    assert "lr" not in points, "it never moves"
    assert "pid" not in points
    assert MOST_POINTS / 4 < len(points["loss"]) <= MOST_POINTS
    assert points["loss"][0][:2] == [0, 0]
    assert points["loss"][-1][0] == 9999, "the newest is always there"


@given(st.lists(st.text(max_size=300), max_size=20))
def test_no_line_does_harm(lines: list[str]) -> None:
    progress, metrics = ProgressFinder(), MetricsFinder()
    for at, line in enumerate(lines):
        progress.feed(line, at)
        metrics.feed(line, at)
    found = progress.progress()
    assert found is None or 0 <= found.fraction <= 1
    metrics.as_json()


@pytest.fixture
def run(db: Any) -> Run:
    owner = factories.make_user("alice", teams=(factories.make_team("vision"),))
    return factories.make_run(factories.make_job(owner, gpus=0), factories.make_node())


def test_a_bar_that_is_overwritten_in_place_and_coloured_is_read_wherever_it_is_cut(run: Run) -> None:
    reader = Gauge(run.pk)
    reader.resume()
    text = "".join(
        f"\x1b[32m\rtrain: {n}%|█ | {n}/100 [00:01<01:00, 9it/s, loss={1 / (n + 1):.3f}]\x1b[0m" for n in range(60)
    )
    data = text.encode() + b"\n"
    for at in range(0, len(data), 37):
        reader.take(data[at : at + 37])
    reader.write(last=True)
    run.refresh_from_db()
    assert run.output_progress
    assert (run.output_progress["done"], run.output_progress["total"], run.output_progress["left"]) == (59, 100, 60)
    assert [row["name"] for row in RunMetrics.objects.get(run=run).series] == ["loss"]


def test_a_number_whose_name_no_database_takes_is_kept_and_keeps_no_other_from_it(run: Run) -> None:
    reader = Gauge(run.pk)
    reader.resume()
    for number in range(2):
        reader.take(b'{"a\\u0000": %d, "\\ud800": %d, "loss": %d}\n' % (number, number, number))
    reader.write(last=True)
    assert [row["name"] for row in RunMetrics.objects.get(run=run).series] == ["a\ufffd", "\ufffd", "loss"]


def test_of_a_flood_only_the_end_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauge, "BYTES_A_SECOND", 1000)
    reader = Gauge(run.pk)
    reader.resume()
    reader.take(b"::dockyard progress=1/2\n" + b"nothing\n" * 100_000 + b"step 7/100\n")
    reader.write(last=True)
    run.refresh_from_db()
    assert run.output_progress
    assert (run.output_progress["label"], run.output_progress["done"]) == ("step", 7)


def test_the_next_agent_goes_on_with_the_series(run: Run) -> None:
    for first in (0, 50):
        reader = Gauge(run.pk)
        reader.resume()
        for number in range(first, first + 50):
            reader.take(b"::dockyard loss=%d\n" % number)
        reader.write(last=True)
    points = RunMetrics.objects.get(run=run).series[0]["points"]
    assert (points[0][2], points[-1][2], len(points)) == (0, 99, 100)


def test_pages_and_answers_show_the_progress_of_what_runs(run: Run) -> None:
    client = Client()
    client.force_login(run.job.owner)
    found = {"fraction": 0.24, "label": "step", "done": 120, "total": 500, "left": 90.0, "at": time.time()}
    Run.objects.filter(pk=run.pk).update(output_progress=found)
    RunMetrics.objects.create(run=run, series=[{"name": "loss", "points": [[1, 1, 2.0], [2, 2, 1.0]]}])
    said = client.get(f"/jobs/{run.job_id}/status.json").json()["output"]
    assert (said["percent"], said["text"]) == (24, "step 120 of 500")
    for page in (f"/jobs/{run.job_id}/", "/jobs/", "/"):
        body = client.get(page).content.decode()
        assert "step 120 of 500" in body, page
        assert "24 %" in body, page
    assert client.get(f"/jobs/{run.job_id}/metrics.json").json()["series"][0]["name"] == "loss"
    factories.make_user("mallory")
    stranger = Client()
    stranger.force_login(factories.User.objects.get(username="mallory"))
    assert stranger.get(f"/jobs/{run.job_id}/metrics.json").status_code == 404


def progress_of(container: Container) -> tuple[str, float, float]:
    """As its run's row has it: what is counted, done, and the total."""
    found = Run.objects.get(pk=container.run.pk).output_progress or {"label": "", "done": 0, "total": 0}
    return found["label"], found["done"], found["total"]


@pytest.mark.django_db(transaction=True)
def test_what_a_container_prints_is_written_to_its_run_while_it_runs(
    engine: Engine, follower: Follower, settings: Any
) -> None:
    settings.PROGRESS_PERIOD = settings.METRICS_PERIOD = 0.1
    steps = "for n in 1 2 3; do printf '\\rstep %s/4 loss=0.%s' $n $n; sleep 0.5; done; printf '\\n'"
    container = Container(engine, f"{steps}; sleep 60")
    assert container.attach()
    container.start()
    wait_until(lambda: progress_of(container)[1] == 3, "progress while it runs")
    container.api.kill(container.id)
    container.wait()
    follower.finish(container.run.pk, container.id, 20)
    assert progress_of(container) == ("step", 3, 4)
    assert [row["name"] for row in RunMetrics.objects.get(run=container.run).series] == ["loss"]
