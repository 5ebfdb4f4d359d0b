from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"

    def ready(self) -> None:
        from jobs import audit, people  # noqa: F401 - people listens to signals

        audit.register()
