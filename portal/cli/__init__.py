"""The `dockyard` command. It speaks only HTTP and WebSocket, and imports no Django, so that it starts at once."""

import os
import sys
from collections.abc import Sequence


def main() -> None:
    """Entry point: run the command line and end with its status."""
    _choose_language(sys.argv[1:])
    from portal.cli.app import run

    run()


def _choose_language(arguments: Sequence[str]) -> None:
    """Heed `--lang` before the first import, since even the help is made of translated text."""
    for at, word in enumerate(arguments):
        if not word.startswith("-"):
            return
        name, given, value = word.partition("=")
        if name == "--lang":
            os.environ["DOCKYARD_LANG"] = value if given else "".join(arguments[at + 1 : at + 2])
            return
