"""What the demo's people have done in the last two weeks, as plain data. Every job in it can be submitted again."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Past:
    """One ended job. Times in minutes; `reason` is an EndReason; `stopped_by` is who asked for the stop, if anybody."""

    key: str
    owner: str
    name: str
    gpus: int
    ago: float
    waited: float
    ran: float
    reason: str
    script: str
    log: str
    exit_code: int = 0
    memory_mib: int = 2048
    limit: float = 24 * 60
    priority: int = 1
    stopped_by: str = ""


_TRAIN = """epochs={epochs} pause={pause}
for epoch in $(seq $epochs); do
    sleep $pause
    printf '\\033[33mepoch %2d/%d\\033[0m  loss 1.%03d\\n' $epoch $epochs $((900 / (epoch + 1)))
done
{end}
"""


def _train_log(done: int, epochs: int, end: str) -> str:
    lines = [f"\033[33mepoch {n:2d}/{epochs}\033[0m  loss 1.{900 // (n + 1):03d}\n" for n in range(1, done + 1)]
    return "".join(lines) + end


def _train(epochs: int, pause: int, end: str, printed: str) -> dict[str, str]:
    """A training script and the log of its whole run."""
    script = _TRAIN.format(epochs=epochs, pause=pause, end=end)
    return {"script": script, "log": _train_log(epochs, epochs, printed)}


def _cut(epochs: int, pause: int, done: int, printed: str = "") -> dict[str, str]:
    """The same, ended from outside after `done` epochs."""
    return {"script": _TRAIN.format(epochs=epochs, pause=pause, end="echo saved"), "log": _train_log(done, epochs, printed)}


_SAVED: tuple[str, str] = ("echo 'saved to /workspace/model.pt'", "saved to /workspace/model.pt\n")
_NAN: tuple[str, str] = (
    "echo 'ValueError: loss is NaN; lower the learning rate' >&2; exit 1",
    "ValueError: loss is NaN; lower the learning rate\n",
)
_hours: Callable[[float], float] = lambda n: 60 * n  # noqa: E731
_days: Callable[[float], float] = lambda n: 24 * 60 * n  # noqa: E731

HISTORY: tuple[Past, ...] = (
    Past(key="baseline", owner="alice", name="resnet50 baseline", gpus=1, ago=_days(12), waited=1, ran=_hours(3.4),
         reason="COMPLETED", **_train(30, 400, *_SAVED)),
    Past(key="tokenise", owner="bob", name="tokenise the corpus", gpus=0, ago=_days(11.2), waited=0.1, ran=48,
         reason="COMPLETED", script="for part in $(seq 8); do sleep 350; echo part $part of 8; done\n",
         log="".join(f"part {n} of 8\n" for n in range(1, 9))),
    Past(key="nan", owner="alice", name="resnet50 lr 0.8", gpus=1, ago=_days(10.1), waited=4, ran=31,
         reason="EXIT_CODE", exit_code=1, **_train(5, 370, *_NAN)),
    Past(key="lr", owner="alice", name="resnet50 lr 0.05", gpus=1, ago=_days(9.8), waited=2, ran=_hours(3.3),
         reason="COMPLETED", **_train(30, 395, *_SAVED)),
    Past(key="oom", owner="bob", name="finetune 7b, batch 64", gpus=2, ago=_days(8.4), waited=12, ran=6,
         reason="OOM_KILLED", exit_code=137, memory_mib=1024, **_cut(20, 300, 1)),
    Past(key="finetune", owner="bob", name="finetune 7b, batch 16", gpus=2, ago=_days(8.2), waited=22, ran=_hours(7.1),
         reason="COMPLETED", memory_mib=4096, **_train(20, 1270, *_SAVED)),
    Past(key="sweep", owner="alice", name="sweep of augmentations", gpus=2, ago=_days(6.5), waited=35, ran=_hours(4),
         reason="TIME_LIMIT", exit_code=143, limit=_hours(4), **_cut(40, 480, 29)),
    Past(key="wrong", owner="bob", name="eval, wrong checkpoint", gpus=1, ago=_days(5.1), waited=0.2, ran=9,
         reason="STOPPED_BY_USER", exit_code=143, stopped_by="bob", **_cut(10, 120, 4)),
    Past(key="eval", owner="bob", name="eval", gpus=1, ago=_days(5), waited=0.1, ran=26,
         reason="COMPLETED", **_train(10, 150, "echo 'accuracy 0.874'", "accuracy 0.874\n")),
    Past(key="typo", owner="alice", name="export to onnx", gpus=0, ago=_days(2.3), waited=0.1, ran=0.05,
         reason="COMMAND_NOT_FOUND", exit_code=127, script="pyhton export.py\n",
         log="/bin/sh: pyhton: not found\n"),
    Past(key="distill", owner="alice", name="distill", gpus=2, ago=_days(1.2), waited=8, ran=_hours(5.2), priority=2,
         reason="COMPLETED", **_train(24, 770, *_SAVED)),
    Past(key="smoke", owner="alice", name="smoke test", gpus=1, ago=_hours(2.6), waited=0.1, ran=14,
         reason="COMPLETED", **_train(6, 140, *_SAVED)),
)  # fmt: skip
