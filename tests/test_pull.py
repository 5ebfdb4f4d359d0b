"""Images that runs wait for: what becomes of those runs once one is there."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.utils import timezone

from jobs import containers_images, queues
from jobs.models import Run
from jobs.pull import Pulls
from jobs.states import RunState
from portal.models import User
from tests import factories
from tests.rigs.engine import Engine
from tests.rigs.registry import running_registry


@pytest.mark.django_db(transaction=True)
def test_an_image_that_has_come_is_not_asked_for_again_while_starts_wait(
    engine: Engine, settings: LazySettings, alice: User, spool: Path
) -> None:
    """All workers are at other starts, and the registry has ceased to answer: that is no failure of these."""
    node = factories.make_node(settings.NODE_NAME, gpus=0)
    pulls, now = Pulls(), timezone.now()

    def look(seconds: float) -> int:
        """How many starts wait after a look so much later."""
        pulls.look(now + timedelta(seconds=seconds))
        for thread in pulls._threads.values():
            thread.join(60)
        name = queues.node_queue(node.name)
        return queues.lengths([name])[name]

    with running_registry() as registry:
        image = registry.image("shared-by-two")
        for _ in range(2):
            job = factories.make_job(alice, gpus=0, image=image)
            factories.make_run(job, node, state=RunState.STARTING, progress={"code": "PULLING", "image": image})
        assert look(0) == 2
        assert containers_images.image(image)
        registry.refuses_all = (500, "UNKNOWN", "the disk of the registry is full")
        asked = len(registry.asked)
        assert look(1) == 2
        assert look(settings.START_RESEND + 60) == 4, "sent once more: the first may be lost"
        assert len(registry.asked) == asked
    assert set(Run.objects.values_list("state", flat=True)) == {RunState.STARTING}
