"""Addresses of the form and the lists, and under each job its own."""

from django.urls import include, path

from jobs import host_views, queue_views, timeline_views, views, whatif_views

urlpatterns = [
    path("", views.dashboard, name="dashboard"),
    path("jobs/", views.job_list, name="job_list"),
    path("jobs/new/", views.new_job, name="job_new"),
    path("jobs/preview/", views.preview_job, name="job_preview"),
    path("jobs/<int:pk>/", include("jobs.job_urls")),
    path("queue/", queue_views.queue, name="queue"),
    path("fairshare/", queue_views.fair_share, name="fair_share"),
    path("timeline/", timeline_views.page, name="timeline"),
    path("timeline/data.json", timeline_views.data, name="timeline_data"),
    path("whatif/", whatif_views.what_if, name="what_if"),
    path("whatif/<int:pk>/", whatif_views.result, name="what_if_result"),
    path("estimates/", whatif_views.estimates_page, name="estimates"),
    path("history/", views.history, name="history"),
    path("hosts/", host_views.hosts, name="hosts"),
    path("hosts/join/", host_views.join, name="host_join"),
    path("hosts/token/", host_views.token, name="host_token"),
    path("hosts/<slug:name>/", host_views.host, name="host"),
    path("hosts/<slug:name>/cordon/", host_views.close, name="host_cordon"),
    path("hosts/<slug:name>/uncordon/", host_views.open_, name="host_uncordon"),
    path("hosts/<slug:name>/dead/", host_views.dead, name="host_dead"),
    path("hosts/<slug:name>/leave/", host_views.leave, name="host_leave"),
]
