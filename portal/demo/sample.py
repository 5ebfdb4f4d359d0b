"""The demo's sample job: what it runs, and every byte its log must have."""

import json
import subprocess
import sys
import time

from rich.console import Console

from portal.demo.children import Failed
from portal.demo.engine import IMAGE
from portal.demo.product import BASE_DIR, Product

DOCKYARD = (sys.executable, "-m", "portal.cli")
SUBMIT = (
    "submit", "--json", "--name", "sample training", "--image", f"{IMAGE}:latest", "--gpus", "1", "--cpus", "1",
    "--memory", "256MiB", "--shm", "64MiB", "--limit", "5m", "--script", "-",
)  # fmt: skip
EPOCHS = 4
STEPS = 20
PAUSE = 0.22  # seconds before each step: about 20 s in all

SCRIPT = rf"""# Prints colours and a progress bar that is redrawn in place, as training scripts do.
printf '\033[1;36mDockyard sample job\033[0m on GPU \033[1m%s\033[0m\n' "$NVIDIA_VISIBLE_DEVICES"
epoch=1
while [ $epoch -le {EPOCHS} ]; do
    printf '\033[33mepoch %d of {EPOCHS}\033[0m\n' $epoch
    step=0 bar=
    while [ $step -lt {STEPS} ]; do
        sleep {PAUSE}
        step=$((step + 1)) bar="$bar█"
        printf '\r  %3d%% \033[32m%s\033[0m' $((step * 100 / {STEPS})) "$bar"
    done
    printf '  loss 0.%d\n' $((90 - epoch * epoch * 5))
    epoch=$((epoch + 1))
done
printf '\033[1;32mdone\033[0m ✓\n'
"""


def expected_log(gpus: str) -> bytes:
    """The whole log of the job when it was given `gpus` (UUIDs, comma between them)."""
    parts = [f"\033[1;36mDockyard sample job\033[0m on GPU \033[1m{gpus}\033[0m\n"]
    for epoch in range(1, EPOCHS + 1):
        parts.append(f"\033[33mepoch {epoch} of {EPOCHS}\033[0m\n")
        parts += [f"\r  {n * 100 // STEPS:3d}% \033[32m{'█' * n}\033[0m" for n in range(1, STEPS + 1)]
        parts.append(f"  loss 0.{90 - epoch * epoch * 5}\n")
    return "".join([*parts, "\033[1;32mdone\033[0m ✓\n"]).encode()


class Sample:
    """alice submits the job with the real command line, follows it there, and gets its log back."""

    def __init__(self, product: Product, console: Console) -> None:
        self.product = product
        self.console = console
        self.env = {**product.env, "DOCKYARD_URL": product.url, "XDG_CONFIG_HOME": str(product.data / "alice"),
                    "PYTHONPATH": str(BASE_DIR)}  # fmt: skip

    def run(self) -> bool:
        """Whether it SUCCEEDED with a log that is complete to the byte."""
        self.env["DOCKYARD_TOKEN"] = self.product.manage(
            "token", "alice", "--name", "sample job", "--days", "1"
        ).strip()
        job = json.loads(self._dockyard(*SUBMIT, stdin=SCRIPT))["id"]
        self.console.print(
            f"\n[bold]alice[/] has submitted job #{job}: {self.product.url}/jobs/{job}/\n", soft_wrap=True
        )
        self._follow(job)
        return self._judge(job)

    def _follow(self, job: int) -> None:
        """`dockyard logs -f` in this terminal until the job has ended."""
        follower = subprocess.Popen(
            [*DOCKYARD, "logs", "-f", str(job)], env=self.env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while follower.poll() is None:
                self.product.children.check()
                time.sleep(0.1)
        finally:
            follower.kill()
            follower.wait()

    def _judge(self, job: int) -> bool:
        found = json.loads(self._dockyard("show", str(job), "--json"))
        log = self._dockyard("logs", str(job))
        wanted = expected_log(",".join(gpu["uuid"] for gpu in found["gpus_granted"]))
        if found["state"] != "SUCCEEDED":
            self.console.print(f"[bold red]✗[/] Job #{job} has not succeeded: {found['headline']}", soft_wrap=True)
        elif log != wanted or not found["log"]["complete"]:
            sizes = f"{len(log)} of {len(wanted)} bytes came back, or others"
            self.console.print(f"[bold red]✗[/] The log of job #{job} is not complete: {sizes}.", soft_wrap=True)
        else:
            self.console.print(
                f"[bold green]✓[/] Job #{job} succeeded; its log is complete: {len(log)} bytes, each as expected."
            )
            return True
        return False

    def _dockyard(self, *arguments: str, stdin: str = "") -> bytes:
        """What the command printed. Raises Failed with its own words."""
        self.product.wait_for_web()
        done = subprocess.run([*DOCKYARD, *arguments], env=self.env, input=stdin.encode(), capture_output=True,
                              check=False)  # fmt: skip
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip()
            raise Failed(f"dockyard {arguments[0]} failed with status {done.returncode}: {words}")
        return done.stdout
