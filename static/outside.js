// RQ's pages call a jQuery plugin that Django's admin no longer has; its actions.js does the work by itself.
if (window.django?.jQuery) django.jQuery.fn.actions ??= function actions() { return this; };
