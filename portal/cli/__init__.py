"""The `dockyard` command. It speaks only HTTP and WebSocket, and imports no Django, so that it starts at once."""


def main() -> None:
    """Entry point: run the command line and end with its status."""
    from portal.cli.app import run

    run()
