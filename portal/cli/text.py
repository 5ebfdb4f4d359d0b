"""The reader's language, from the same catalogues as the pages, without Django."""

import gettext
import locale
import os
from pathlib import Path

_CATALOGUES = Path(__file__).resolve().parents[2] / "locale"
_DJANGO_NAMES = {"zh_CN": "zh_Hans", "zh_SG": "zh_Hans", "zh": "zh_Hans"}


def _wanted() -> str:
    """The locale's language as its catalogue is called: "en", "zh_Hans"."""
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name, "").split(":")[0]
        if value:
            short = (locale.normalize(value).partition(".")[0]).partition("@")[0]
            return _DJANGO_NAMES.get(short, short.partition("_")[0] if short not in ("C", "POSIX") else "en")
    return "en"


LANGUAGE = _wanted()
ACCEPT_LANGUAGE = LANGUAGE.replace("_", "-").lower()
_ = gettext.translation("django", _CATALOGUES, [LANGUAGE], fallback=True).gettext
