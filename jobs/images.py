"""Names of images, and which of them an admin allows. Pure."""

from fnmatch import fnmatchcase


class Allowed:
    """An admin's list: one shell pattern a line, by full names; an empty list allows all."""

    def __init__(self, patterns: str) -> None:
        self._patterns = [full_image_name(line.strip()) for line in patterns.splitlines() if line.strip()]
        self._known: dict[str, bool] = {}

    def __call__(self, image: str) -> bool:
        if not self._patterns:
            return True
        if image not in self._known:
            full = full_image_name(image)
            self._known[image] = any(fnmatchcase(full, pattern) for pattern in self._patterns)
        return self._known[image]


def full_image_name(image: str) -> str:
    """The name as the engine reads it: Docker Hub's `library/` and host, and the tag, are implied."""
    first, slash, _rest = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif not ("." in first or ":" in first or first in ("localhost", "*")):
        image = f"docker.io/{image}"
    last = image.rpartition("/")[2]
    return image if ":" in last or "@" in last or last.endswith("*") else f"{image}:latest"
