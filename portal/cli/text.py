"""The reader's language, from the same catalogues as the pages, without Django."""

import gettext
import os
from pathlib import Path

_CATALOGUES = Path(__file__).resolve().parents[2] / "locale"
LANGUAGE_VARIABLE = "DOCKYARD_LANG"  # set by --lang, before anything is said


def printable(text: str) -> str:
    """Without the control characters that could drive the terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def catalogue_of(name: str) -> str:
    """The catalogue for a locale or language tag: "en", or "zh_Hans" for "zh", "zh-CN", "zh_CN.UTF-8"."""
    language = name.replace("-", "_").partition(".")[0].partition("_")[0].lower()
    return "zh_Hans" if language == "zh" else "en"


def _wanted() -> str:
    """The reader's language as its catalogue is called; the same is asked of the server, so that none mixes."""
    names = (LANGUAGE_VARIABLE, "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
    return catalogue_of(next((value for name in names if (value := os.environ.get(name, "").split(":")[0])), ""))


LANGUAGE = _wanted()
ACCEPT_LANGUAGE = LANGUAGE.replace("_", "-").lower()
_translations = gettext.translation("django", _CATALOGUES, [LANGUAGE], fallback=True)
_ = _translations.gettext
ngettext = _translations.ngettext
