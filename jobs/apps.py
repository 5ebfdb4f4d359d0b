from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Jobs")

    def ready(self) -> None:
        from gpus.holders import register
        from jobs import audit, people, search  # noqa: F401 - people listens to signals
        from jobs.holders import holders, named_to

        audit.register()
        register(holders, named_to)
        post_migrate.connect(search.prepare, sender=self)
