"""Every address of the product."""

from allauth.account import views as account_views
from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.views.decorators.http import require_safe
from django.views.generic import RedirectView

from portal import health_views, probes, views
from portal.accounts import by_mail
from portal.api import api, openapi

handler400 = "portal.views.bad_request"
handler500 = "portal.views.server_error"

urlpatterns = [
    path("", include("jobs.urls")),
    path("gpus/", include("gpus.urls")),
    path("health/", health_views.page, name="health"),
    path("account/tokens/", views.tokens, name="tokens"),
    path("account/tokens/<int:pk>/revoke/", views.revoke_token, name="token_revoke"),
    path("accounts/password/reset/", by_mail(account_views.password_reset), name="account_reset_password"),
    path("accounts/password/reset/done/", by_mail(account_views.password_reset_done)),
    path("accounts/", include("allauth.account.urls")),
    path("i18n/setlang/", views.set_language, name="set_language"),
    path("admin/django_rq/", include("django_rq.urls")),
    path("admin/", admin.site.urls),
    path("api/openapi.json", openapi),  # instead of the API's own, which makes it anew each time
    path("api/", api.urls),
    # The admin pages of other packages name no icon, and browsers look for one here.
    path("favicon.ico", require_safe(RedirectView.as_view(url=f"{settings.STATIC_URL}icons/favicon.svg"))),
    path("healthz", views.healthz, name="healthz"),
    path("readyz", probes.readyz, name="readyz"),
    path("metrics", probes.metrics, name="metrics"),
]
