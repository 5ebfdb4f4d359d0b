"""`manage.py token USER`: a token of the API for somebody, without that person's password."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from portal.models import ApiToken, User


class Command(BaseCommand):
    help = "Issue an API token for a user, in place of those of the same name, and print its secret once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user")
        parser.add_argument("--name", default="manage.py token", help="what the user's list of tokens calls it")
        parser.add_argument("--read-only", action="store_true", help="a token that can look but not submit")
        parser.add_argument("--days", type=int, default=90, help="it expires after so many days")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["user"], is_active=True).first()
        if user is None:
            raise CommandError(f"there is no active user {options['user']}")
        if not 1 <= options["days"] <= 3650:
            raise CommandError("--days: from 1 to 3650")
        scope = ApiToken.Scope.READ if options["read_only"] else ApiToken.Scope.WRITE
        name, expires = options["name"][:80], timezone.now() + timedelta(days=options["days"])
        user.api_tokens.filter(name=name).delete()
        _token, secret = ApiToken.issue(user, name=name, scope=scope, expires_at=expires)
        self.stdout.write(secret)
