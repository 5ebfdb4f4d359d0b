"""The kinds of jobs that people send: what each runs, and how it is to end. All small."""

from typing import NamedTuple


class Kind(NamedTuple):
    """`script` of a shell; `ends` as; `then`: what its owner does with it: "", "cancel" or "hold" and release."""

    script: str
    ends: str = "SUCCEEDED"
    then: str = ""


KINDS = {
    "prints": Kind('n=0; while [ $n -lt 10 ]; do n=$((n+1)); echo "step=$n loss=0.$n"; sleep 1; done'),
    "floods": Kind("head -c 1000000 /dev/zero | tr '\\0' x | fold -w 99; sleep 2"),
    "writes": Kind("mkdir -p out; n=0; while [ $n -lt 20 ]; do n=$((n+1)); echo $n >out/$n.txt; done; ls out; sleep 2"),
    "fails": Kind("echo sorry >&2; exit 3", ends="FAILED"),
    "is cancelled": Kind("echo waiting; sleep 3600", ends="CANCELLED", then="cancel"),
    "is held": Kind("echo released", then="hold"),
}
LASTING = 'n=0; while :; do n=$((n+1)); echo "step=$n loss=0.5"; sleep 5; done'
