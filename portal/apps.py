from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PortalConfig(AppConfig):
    default = True
    name = "portal"
    verbose_name = _("People")

    def ready(self) -> None:
        from portal import checks  # noqa: F401 - registers them


class TaskQueuesConfig(AppConfig):
    """django_rq under a name that says what its pages show."""

    name = "django_rq"
    default_auto_field = "django.db.models.AutoField"
    verbose_name = _("Task queues")
