"""What is kept out of the journal: keys, in what tools are given and in what they say."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nb_agents.config.secret_names import MASK, without_secrets
from nb_agents.events import (
    AgentCalled,
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ToolFinished,
    ToolStarted,
    ToolTold,
)
from nb_agents.tools.base import is_secret_argument, summarize

__all__ = ["Mask"]


class Mask:
    """Hides a team's keys in the events of tools and gates, and any argument called a secret.

    Args:
        secrets: The team's keys.

    Example:
        >>> Mask(["sk-12345678"]).hide(ToolTold(agent="a", text="sk-12345678!")).text
        '[key]!'
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)

    def hide(self, event: Event) -> Event:
        """Give the event as it may be written down."""
        match event:
            case ToolStarted(args=given):
                args = self._arguments(given)
                about = event.summary if args == given else summarize(event.tool, args)
                return replace(event, args=args, summary=self._text(about))
            case ToolFinished():
                return replace(event, result=self._text(event.result))
            case ToolTold():
                return replace(event, text=self._text(event.text))
            case ApprovalAsked():
                return replace(event, prompt=self._text(event.prompt))
            case ApprovalGiven():
                return replace(event, message=self._text(event.message))
            case AgentCalled():
                return replace(event, input=self._text(event.input))
        return event

    def _arguments(self, args: Any) -> Any:
        if not isinstance(args, str):
            return self._value(args)
        try:
            known = json.loads(args)
        except (ValueError, RecursionError):
            return self._text(args)
        hidden = self._value(known)
        # The model's own spelling stays when there is nothing to hide.
        return args if hidden == known else json.dumps(hidden, ensure_ascii=False)

    def _value(self, value: Any, name: str = "") -> Any:
        match value:
            case str() if value and is_secret_argument(name):
                return MASK
            case str():
                return self._text(value)
            case dict():
                return {key: self._value(each, str(key)) for key, each in value.items()}
            case list():
                return [self._value(each, name) for each in value]
        return value

    def _text(self, text: str) -> str:
        return without_secrets(text, self._secrets)
