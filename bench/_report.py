"""How a benchmark speaks: progress for people, and one line of JSON."""

import json
import sys
from typing import Any


def say(text: str) -> None:
    """Progress, for people: standard output is for the one JSON line."""
    print(text, file=sys.stderr, flush=True)


def report(bench: str, *, figure: float, reference: float, ratio: float, unit: str, detail: dict[str, Any]) -> None:
    """The one line of a benchmark."""
    row = {"bench": bench, "figure": figure, "reference": reference, "ratio": ratio, "unit": unit, "detail": detail}
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}))
