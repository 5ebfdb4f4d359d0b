"""People for admins. Logging in to the admin pages is logging in to the portal, with the same limits on guessing."""

from typing import Any

from allauth.account.decorators import secure_admin_login
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs import people
from jobs.models import Job
from portal.models import ApiToken, User

# What makes an account mightier: over the portal, and over the files of others on its hosts.
MIGHT = ("is_superuser", "is_staff", "groups", "user_permissions", "uid", "gid", "may_run_as_root")
MOST_NAMED = 20  # jobs that a message names

admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]
admin.site.site_header = admin.site.site_title = "Dockyard"
admin.site.index_title = _("Administration")
admin.site.unregister(Group)  # teams say who sees what; staff may do all


@admin.register(User)
class UserAdmin(DjangoUserAdmin):  # type: ignore[type-arg]
    list_display = ("username", "first_name", "last_name", "email", "is_active", "is_staff", "last_login")
    fieldsets = (
        *(DjangoUserAdmin.fieldsets or ()),
        (_("Jobs"), {"fields": ("uid", "gid", "may_run_as_root", "may_run_unlimited", "language")}),
    )
    filter_horizontal = ("user_permissions",)

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Who may change accounts, but is no superuser, makes nobody mightier: neither others nor themselves."""
        found = super().get_readonly_fields(request, obj)
        return found if request.user.is_superuser else (*found, *MIGHT)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """The account, and its password, of somebody who may more than a user are for superusers."""
        above = obj is not None and (obj.is_superuser or obj.is_staff or obj.may_run_as_root)
        return (request.user.is_superuser or not above) and super().has_change_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Who deactivates or reactivates somebody is told what that does to the person's jobs."""
        turned = change and "is_active" in form.changed_data
        held = people.held_with_account(obj) if turned and obj.is_active else []
        super().save_model(request, obj, form, change)
        if turned:
            said = _released(held) if obj.is_active else _left(obj)
            self.message_user(request, said, messages.WARNING)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """History names its people: deactivate them instead."""
        return False


def _left(user: User) -> str:
    """What becomes of the jobs of somebody who was deactivated."""
    held, running = people.held_with_account(user), people.running(user)
    said = [gettext("Their tokens are revoked.")]
    if running:
        text = ngettext("%(n)d job runs on: %(jobs)s.", "%(n)d jobs run on: %(jobs)s.", len(running))
        said.append(text % _named(running))
    if held:
        text = ngettext(
            "%(n)d waiting job is on hold until the account is active again: %(jobs)s.",
            "%(n)d waiting jobs are on hold until the account is active again: %(jobs)s.",
            len(held),
        )
        said.append(text % _named(held))
    return " ".join(said if held or running else [*said, gettext("They have no jobs that run or wait.")])


def _released(held: list[Job]) -> str:
    if not held:
        return gettext("No job was on hold for the account.")
    text = ngettext(
        "%(n)d job that was on hold with the account waits for its start again: %(jobs)s.",
        "%(n)d jobs that were on hold with the account wait for their start again: %(jobs)s.",
        len(held),
    )
    return text % _named(held)


def _named(jobs: list[Job]) -> dict[str, Any]:
    numbers = ", ".join(f"#{job.pk}" for job in jobs[:MOST_NAMED])
    return {"n": len(jobs), "jobs": numbers if len(jobs) <= MOST_NAMED else f"{numbers}, …"}


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Tokens can be seen by their hint and revoked; made only by the person they speak for."""

    list_display = ("name", "user", "hint", "scope", "created_at", "expires_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("name", "user__username")
    exclude = ("digest",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return False
