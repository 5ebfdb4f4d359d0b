"""People: who may log in, as whom their jobs run, and the tokens their programs use."""

import hashlib
import secrets
from datetime import datetime

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

TOKEN_PREFIX = "dky_"


class User(AbstractUser):
    """A person. `uid` and `gid` are the identity of the processes in this person's containers."""

    uid = models.PositiveIntegerField(
        _("user id in containers"),
        null=True,
        blank=True,
        help_text=_("Jobs run as this user id. Empty: 20000 plus the number of the account."),
    )
    gid = models.PositiveIntegerField(
        _("group id in containers"),
        null=True,
        blank=True,
        help_text=_("Jobs run as this group id. Empty: the same as the user id."),
    )
    may_run_as_root = models.BooleanField(
        _("may run jobs as root"),
        default=False,
        help_text=_("Jobs of this person run as root inside the container, and then without shared mounts."),
    )
    may_run_unlimited = models.BooleanField(
        _("may run jobs without a time limit"),
        default=False,
    )
    language = models.CharField(_("language"), max_length=16, blank=True, default="")

    @property
    def run_uid(self) -> int:
        """The numeric user id of this person's container processes."""
        if self.may_run_as_root:
            return 0
        return self.uid if self.uid is not None else 20000 + self.pk

    @property
    def run_gid(self) -> int:
        """The numeric group id of this person's container processes."""
        if self.may_run_as_root:
            return 0
        return self.gid if self.gid is not None else self.run_uid


class ApiToken(models.Model):
    """A bearer token of the API: only its SHA-256 is kept, so it can be shown once and never again."""

    class Scope(models.TextChoices):
        READ = "read", _("read")
        WRITE = "write", _("read and submit")

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens", verbose_name=_("user"))
    name = models.CharField(_("name"), max_length=80)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(_("hint"), max_length=12, editable=False)
    scope = models.CharField(_("scope"), max_length=8, choices=Scope.choices, default=Scope.WRITE)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")

    def __str__(self) -> str:
        return f"{self.name} ({self.hint}…)"

    @staticmethod
    def digest_of(secret: str) -> str:
        """The stored form of a token. A plain hash is enough: the secret has 256 random bits."""
        return hashlib.sha256(secret.encode()).hexdigest()

    @classmethod
    def issue(cls, user: User, *, name: str, scope: str, expires_at: datetime | None) -> tuple["ApiToken", str]:
        """Create a token and return it with its secret, which is not stored."""
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
        token = cls.objects.create(
            user=user, name=name, scope=scope, expires_at=expires_at,
            digest=cls.digest_of(secret), hint=secret[:8],
        )  # fmt: skip
        return token, secret

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()
