"""`manage.py join_token`: a token with which one host may join, and the command for it."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import translation

from jobs import joining, wording


class Command(BaseCommand):
    help = "Make a token with which one host may join soon, and print the command to run there."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", nargs="?", default="", help="for the host of this name alone, as when it rejoins")
        parser.add_argument("--quiet", action="store_true", help="print the token alone")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            _token, secret = joining.make_token(name=options["name"])
        except joining.Refused as refused:
            with translation.override("en"):
                raise CommandError(wording.host_refusal(refused.code, refused.params)) from refused
        if options["quiet"]:
            self.stdout.write(secret)
            return
        minutes = round(settings.JOIN_TOKEN_LIFE / 60)
        self.stdout.write(f"On the host, within {minutes} minutes, in its clone of Dockyard:\n")
        self.stdout.write(f"  .venv/bin/python manage.py node --join {settings.PUBLIC_URL} {secret}\n")
