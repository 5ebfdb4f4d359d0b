from django.apps import AppConfig


class GpusConfig(AppConfig):
    name = "gpus"

    def ready(self) -> None:
        from gpus import checks  # noqa: F401 - registers them
