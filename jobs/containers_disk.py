"""What containers write beside their mounts, through the engine's one door."""

import os
from dataclasses import dataclass

from jobs.containers import QUICK, Door, EngineRefused


@dataclass(frozen=True)
class Own:
    """Directories on this host that hold what only this container writes.

    `layer` is empty where it can't be seen: from within a container, and where containerd keeps it.
    """

    layer: str
    volumes: tuple[str, ...]  # anonymous ones


def own(container_id: str) -> Own | None:
    """None for a container that is gone. Raises EngineUnavailable, EngineRefused."""
    try:
        with Door(QUICK) as client:
            data = client.inspect_container(container_id)
    except EngineRefused as error:
        if error.status == 404:
            return None
        raise
    layer = ((data.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir") or ""
    volumes = [mount.get("Source") or "" for mount in data.get("Mounts") or () if mount.get("Type") == "volume"]
    return Own(layer if os.path.isdir(layer) else "", tuple(path for path in volumes if os.path.isdir(path)))


def layer_bytes(container_id: str) -> int:
    """What the engine itself counts in the container's layer, which takes it long where that has many files.

    0 for one that is gone. Raises EngineUnavailable, EngineRefused.
    """
    with Door() as client:
        rows = client.containers(all=True, size=True, filters={"id": container_id})
    return sum(row.get("SizeRw") or 0 for row in rows)
