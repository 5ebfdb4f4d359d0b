"""Every address of the product."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/django_rq/", include("django_rq.urls")),
    path("admin/", admin.site.urls),
    path("accounts/", include("allauth.account.urls")),
]
