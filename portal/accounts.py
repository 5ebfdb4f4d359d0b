"""Who may make an account: an admin, never a visitor."""

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest


class ClosedSignup(DefaultAccountAdapter):
    """allauth without its sign-up page."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False
