"""The images of the Docker engine, through its one door."""

from collections.abc import Callable
from dataclasses import dataclass

from jobs.containers import Door, ImageMissing, by_words


@dataclass(frozen=True)
class Image:
    id: str
    environment: dict[str, str]
    working_dir: str
    architecture: str


def image(reference: str) -> Image | None:
    """The image as it lies on this host; None when it does not."""
    try:
        with Door() as client:
            data = client.inspect_image(reference)  # type: ignore[no-untyped-call]
    except ImageMissing:
        return None
    config = data.get("Config") or {}
    pairs = (row.partition("=") for row in config.get("Env") or ())
    return Image(
        id=data["Id"], environment={name: value for name, _, value in pairs},
        working_dir=config.get("WorkingDir") or "", architecture=data.get("Architecture", ""),
    )  # fmt: skip


def images() -> list[str]:
    """The names of the images on this host, the newest first."""
    with Door() as client:
        rows = client.images()
    rows.sort(key=lambda row: row.get("Created") or 0, reverse=True)
    return [name for row in rows for name in row.get("RepoTags") or () if not name.startswith("<none>")]


def pull(reference: str, login: dict[str, str] | None, progress: Callable[[int, int], None]) -> None:
    """Bring an image here, telling `progress(done_bytes, total_bytes)` on the way. Waits as long as it takes.

    Raises ImageMissing, ImageForbidden, ImageRateLimited, EngineRefused or EngineUnavailable.
    """
    layers: dict[str, tuple[int, int]] = {}
    with Door() as client:
        for row in client.pull(reference, stream=True, decode=True, auth_config=login or {}):
            if "error" in row:
                raise by_words(500, str(row["error"])[:4000])
            detail = row.get("progressDetail") or {}
            if row.get("status") == "Downloading" and detail.get("total"):
                layers[row["id"]] = (detail["current"], detail["total"])
            elif row.get("status") in ("Download complete", "Pull complete") and row.get("id") in layers:
                layers[row["id"]] = (layers[row["id"]][1], layers[row["id"]][1])
            progress(sum(done for done, _ in layers.values()), sum(total for _, total in layers.values()))
