from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.utils.translation import gettext_lazy as _


class PortalConfig(AppConfig):
    default = True
    name = "portal"
    verbose_name = _("People")

    def ready(self) -> None:
        from portal import checks  # noqa: F401 - registers them

        connection_created.connect(_read_moments)


def _read_moments(*, connection: Any, **_signal: Any) -> None:
    if connection.vendor == "postgresql":
        from portal import moments

        moments.register(connection)


class TaskQueuesConfig(AppConfig):
    """django_rq under a name that says what its pages show."""

    name = "django_rq"
    default_auto_field = "django.db.models.AutoField"
    verbose_name = _("Task queues")
