"""What the demo's people have done in the last two weeks, as plain data. Every job in it can be submitted again."""

from dataclasses import dataclass
from typing import NamedTuple


class Work(NamedTuple):
    """What a job runs, and what it had printed when it ended."""

    script: str
    log: str


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
    work: Work
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


def _train(epochs: int, pause: int, end: str, printed: str) -> Work:
    """A training script and the log of its whole run."""
    return Work(_TRAIN.format(epochs=epochs, pause=pause, end=end), _train_log(epochs, epochs, printed))


def _cut(epochs: int, pause: int, done: int) -> Work:
    """The same, ended from outside after `done` epochs."""
    return Work(_TRAIN.format(epochs=epochs, pause=pause, end="echo saved"), _train_log(done, epochs, ""))


_SAVED = ("echo 'saved to /workspace/model.pt'", "saved to /workspace/model.pt\n")
_NAN = (
    "echo 'ValueError: loss is NaN; lower the learning rate' >&2; exit 1",
    "ValueError: loss is NaN; lower the learning rate\n",
)
_TOKENISE = Work(
    "for part in $(seq 8); do sleep 350; echo part $part of 8; done\n", "".join(f"part {n} of 8\n" for n in range(1, 9))
)
_TYPO = Work("pyhton export.py\n", "/bin/sh: pyhton: not found\n")
_HOUR, _DAY = 60, 24 * 60

HISTORY: tuple[Past, ...] = (
    Past(key="baseline", owner="alice", name="resnet50 baseline", gpus=1, ago=12 * _DAY, waited=1, ran=3.4 * _HOUR,
         reason="COMPLETED", work=_train(30, 400, *_SAVED)),
    Past(key="tokenise", owner="bob", name="tokenise the corpus", gpus=0, ago=11.2 * _DAY, waited=0.1, ran=48,
         reason="COMPLETED", work=_TOKENISE),
    Past(key="nan", owner="alice", name="resnet50 lr 0.8", gpus=1, ago=10.1 * _DAY, waited=4, ran=31,
         reason="EXIT_CODE", exit_code=1, work=_train(5, 370, *_NAN)),
    Past(key="lr", owner="alice", name="resnet50 lr 0.05", gpus=1, ago=9.8 * _DAY, waited=2, ran=3.3 * _HOUR,
         reason="COMPLETED", work=_train(30, 395, *_SAVED)),
    Past(key="oom", owner="bob", name="finetune 7b, batch 64", gpus=2, ago=8.4 * _DAY, waited=12, ran=6,
         reason="OOM_KILLED", exit_code=137, memory_mib=1024, work=_cut(20, 300, 1)),
    Past(key="finetune", owner="bob", name="finetune 7b, batch 16", gpus=2, ago=8.2 * _DAY, waited=22, ran=7.1 * _HOUR,
         reason="COMPLETED", memory_mib=4096, work=_train(20, 1270, *_SAVED)),
    Past(key="sweep", owner="alice", name="sweep of augmentations", gpus=2, ago=6.5 * _DAY, waited=35, ran=4 * _HOUR,
         reason="TIME_LIMIT", exit_code=143, limit=4 * _HOUR, work=_cut(40, 480, 29)),
    Past(key="wrong", owner="bob", name="eval, wrong checkpoint", gpus=1, ago=5.1 * _DAY, waited=0.2, ran=9,
         reason="STOPPED_BY_USER", exit_code=143, stopped_by="bob", work=_cut(10, 120, 4)),
    Past(key="eval", owner="bob", name="eval", gpus=1, ago=5 * _DAY, waited=0.1, ran=26,
         reason="COMPLETED", work=_train(10, 150, "echo 'accuracy 0.874'", "accuracy 0.874\n")),
    Past(key="typo", owner="alice", name="export to onnx", gpus=0, ago=2.3 * _DAY, waited=0.1, ran=0.05,
         reason="COMMAND_NOT_FOUND", exit_code=127, work=_TYPO),
    Past(key="distill", owner="alice", name="distill", gpus=2, ago=1.2 * _DAY, waited=8, ran=5.2 * _HOUR, priority=2,
         reason="COMPLETED", work=_train(24, 770, *_SAVED)),
    Past(key="smoke", owner="alice", name="smoke test", gpus=1, ago=2.6 * _HOUR, waited=0.1, ran=14,
         reason="COMPLETED", work=_train(6, 140, *_SAVED)),
)  # fmt: skip
