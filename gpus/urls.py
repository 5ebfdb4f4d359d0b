"""Addresses under /gpus/."""

from django.urls import path

from gpus import views

urlpatterns = [
    path("", views.page, name="gpus"),
    path("now.json", views.now, name="gpus_now"),
    path("recent.json", views.recent, name="gpus_recent"),
]
