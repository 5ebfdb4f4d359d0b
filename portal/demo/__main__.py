"""Start the product in order, show a job on it, keep it running until told to stop, and stop it in reverse order."""

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from jobs import pump
from portal.demo.children import Children, Failed
from portal.demo.product import Product
from portal.demo.sample import Sample

console = Console(highlight=False)


class Stopped(BaseException):
    """Somebody wants the demo to end: Ctrl-C, SIGTERM, or the terminal is gone."""


def main() -> int:
    """0 when all went well, and after Ctrl-C once the sample job has been shown; 1 otherwise."""
    once = "--once" in sys.argv[1:]
    data = Path(os.environ.get("DATA_DIR") or Path.cwd() / "data" / "demo").resolve()
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    _let_signals_stop_us()
    try:
        with _alone(data), _children(data) as children:
            return _show(Product(data, children, console), once=once)
    except Failed as failure:
        console.print(f"\n[bold red]✗[/] {failure}", soft_wrap=True)
        return 1
    except Stopped:
        return 130


def _show(product: Product, *, once: bool) -> int:
    """The demo itself: product up, sample job through, and then, unless once, until somebody stops it."""
    try:
        product.start()
        product.print_welcome()
        verdict = Sample(product, console).run()
        if once:
            return 0 if verdict else 1
        console.print(f"\nDockyard goes on at [bold]{product.url}[/]. [dim]Ctrl-C stops it.[/]")
        product.stay()
    except Stopped:
        console.print("\nStopping…")
        return 130 if once else 0
    finally:
        _ignore_signals()
        product.stop()
    return 0


def _raise_stopped(*_: Any) -> None:
    _ignore_signals()  # one is enough: stopping takes a few seconds and must not be cut short
    raise Stopped


def _let_signals_stop_us() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_stopped)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[None]:
    """One demo at a time in one data folder: the lock goes with this process, however it ends."""
    with (data / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"The demo runs already with the data in {data}. Stop it first, or set DATA_DIR.") from None
        yield


@contextlib.contextmanager
def _children(data: Path) -> Iterator[Children]:
    logs = data / "output"
    logs.mkdir(exist_ok=True)
    children = Children(logs, lambda line: console.print(f"\n[yellow]![/] {escape(line)}", soft_wrap=True))
    try:
        yield children
    finally:
        children.stop()
        pump.end(data / "spool")


if __name__ == "__main__":
    raise SystemExit(main())
