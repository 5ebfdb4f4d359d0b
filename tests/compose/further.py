"""A further GPU host by compose.yaml, as README says: an engine, a clone and an .env of its own."""

from pathlib import Path

from tests.compose.installation import IMAGE, Installation
from tests.compose.project import HOST, OVERRIDE, Project
from tests.rigs.engine import Engine

# Its logs lie in a folder that it shares with the first host; the portal's name is resolved by nobody here.
_OVERRIDE = (
    OVERRIDE
    + """
    extra_hosts: ["{host}:127.0.0.1"]
    volumes: ["{logs}:{logs}"]
"""
)
_CA = "/etc/dockyard/ca.crt"


class FurtherHost(Project):
    """`folder`: a copy of the checkout, where nobody has written an .env."""

    def __init__(self, engine: Engine, folder: Path, portal: Installation) -> None:
        self.portal = portal
        (folder / ".env").write_text("COMPOSE_PROFILES=node\n")
        super().__init__(
            engine, folder, name="dockyard-further", files=["compose.yaml"],
            override=_OVERRIDE.format(host=HOST, logs=portal.logs), settings={},
        )  # fmt: skip

    def bring_image(self) -> None:
        """In place of `docker compose build`: the image of the first host."""
        with self.portal.engine.client() as theirs, self.engine.client() as ours:
            theirs.api.timeout = ours.api.timeout = 600
            ours.images.load(theirs.images.get(IMAGE).save(named=True))

    def join(self, name: str) -> None:
        """By a token from the portal, whose certificate is of an authority of its own."""
        token = self.portal.run("scheduler", "python", "manage.py", "join_token", "--quiet").strip()
        (self.data / "host").mkdir(parents=True)
        (self.data / "host" / "ca.crt").write_text(self.portal.authority())
        site = f"https://{HOST}:{self.portal.port}"
        self.compose("run", "--rm", "node", "python", "manage.py", "node", "--join", site, token, "--ca", _CA,
                     "--name", name, "--no-start")  # fmt: skip
        written = self.data / "host" / "env"
        assert written.stat().st_mode & 0o077 == 0
        assert "SECRET_KEY=" not in written.read_text(), "what opens secrets is not what signs sessions"

    def up(self) -> None:
        self.compose("--profile", "node", "up", "--detach", "--no-build")

    def down(self) -> None:
        self.compose("--profile", "node", "down", "--volumes", "--timeout", "20")
