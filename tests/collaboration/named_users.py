"""Two people on one Jupyter server, as on a hub: a cookie names the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jupyter_server.auth import IdentityProvider, User


class NamedUsers(IdentityProvider):  # type: ignore[misc]
    """Gives a signed-in user the name in the cookie `login`."""

    async def _get_user(self, handler: Any) -> User | None:
        user = await super()._get_user(handler)
        name = handler.get_cookie("login", "")
        return replace(user, username=name, name=name, display_name=name) if user and name else user
