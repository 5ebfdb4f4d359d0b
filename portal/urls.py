"""Every address of the product."""

from django.contrib import admin
from django.urls import include, path

from portal import views
from portal.api import api

urlpatterns = [
    path("", include("jobs.urls")),
    path("gpus/", include("gpus.urls")),
    path("account/tokens/", views.tokens, name="tokens"),
    path("account/tokens/<int:pk>/revoke/", views.revoke_token, name="token_revoke"),
    path("accounts/", include("allauth.account.urls")),
    path("i18n/setlang/", views.set_language, name="set_language"),
    path("admin/django_rq/", include("django_rq.urls")),
    path("admin/", admin.site.urls),
    path("api/", api.urls),
    path("healthz", views.healthz, name="healthz"),
]
