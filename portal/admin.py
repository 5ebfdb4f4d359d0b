"""People for admins. Logging in to the admin pages is logging in to the portal, with the same limits on guessing."""

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from portal.models import ApiToken, User

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

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """History names its people: deactivate them instead."""
        return False


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
