"""What a job asks for, by the fields of `jobs.amend`."""

from typing import Any

from django.utils.translation import gettext as _

from jobs.wording import quantities as q


def amount(field: str, value: Any) -> str:
    """One field's value: "2 GPUs", "a time limit of 3 h", "any GPU model"."""
    return {
        "limit_seconds": lambda: _("a time limit of %(limit)s") % {"limit": q.duration(value)},
        "memory_mib": lambda: _("%(size)s of memory") % {"size": q.memory(value)},
        "gpus": lambda: q.gpus(value),
        "millicpus": lambda: q.cpus(value),
        "gpu_model": lambda: _("the GPU model %(model)s") % {"model": value} if value else _("any GPU model"),
        "node_labels": lambda: _("hosts with %(labels)s") % {"labels": q.names(value)} if value else _("any host"),
    }[field]()
