"""Takes secrets out of texts, wherever the texts came from and whatever becomes of them.

A `Mask` knows values, not places. A value that can be told from ordinary text (`is_distinctive`) is
hidden wherever it stands, and so is a beginning of it that can be told: a cut must not let most of
a key through. Another one ("lm-studio", "test") is hidden beside its own name alone: ``NAME=test``,
``"api_key": "test"``, ``Authorization: Bearer test``. Each is known as it is, as JSON and Python
write it in quotes, and percent-encoded; of one that has lines, each line is known too. What
somebody recodes on purpose (base64, letters spelled out) is not found.

`MaskedStream` does the same for a text that comes in pieces: what may be the beginning of a secret
waits for the next piece. A pure machine: no clock, no disk, no events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from nb_agents.config.secret_names import MASK
from nb_agents.config.secrets import Secret, secrets_of_environment
from nb_agents.errors import NbAgentsError, UserError
from nb_agents.masking.search import SecretSearch, replaced

__all__ = ["Mask", "MaskedStream", "safe_errors"]

MAX_DEPTH = 100
"""Levels of a value that are gone through; nobody nests deeper, and Python's stack has its end."""

TOO_DEEP = "[nested too deeply]"

P = ParamSpec("P")
T = TypeVar("T")


class Mask:
    """Hides the secrets of a run in all that is written down or shown.

    Args:
        secrets: Those that are known at its beginning; `add` takes more.

    Example:
        >>> Mask([Secret("sk-1f9Qz7LmX02p", ("api_key",))]).text("its sk-1f9Qz7LmX02p!")
        'its [key]!'
    """

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._known: frozenset[Secret] = frozenset()
        self._search = SecretSearch(())
        # Separates the loop from threads in which backends are made: none may lose the other's.
        self._adding = Lock()
        self.add(secrets)

    def add(self, secrets: Iterable[Secret]) -> None:
        """Hide these too from now on; other threads may be hiding meanwhile.

        Args:
            secrets: Empty ones are left out.
        """
        with self._adding:
            known = self._known | {secret for secret in secrets if secret.value}
            if known != self._known:
                # Made aside and put in its place at once.
                self._known, self._search = known, SecretSearch(known)

    def text(self, text: str) -> str:
        """Hide secrets in a whole text.

        Args:
            text: What somebody wrote.
        """
        found = self._search.scan(text, is_whole=True).found
        return replaced(text, found, 0, len(text)) if found else text

    def value(self, value: T) -> T:
        """Hide secrets in all texts of a value: of mappings, lists and dataclasses, names too.

        Args:
            value: Plain data, or dataclasses of it. What is neither becomes a text, as a journal
                would write it.

        Returns:
            The same with other texts; a dataclass itself when nothing had to be hidden in it.
        """
        hidden: T = self._value(value, "", 0)
        return hidden

    def error(self, error: Exception) -> Exception:
        """Hide secrets in what an exception and its causes say.

        Args:
            error: Its texts are replaced.

        Returns:
            The exception; in the place of one that makes its text anew each time, another. A cause
            that does is left out.
        """
        if not self._is_hidden_in(error):
            other = UserError if isinstance(error, UserError) else NbAgentsError
            return other(f"{type(error).__name__}: {self.text(str(error))}")
        each: BaseException | None = error
        known = {id(error)}
        while each is not None:
            cause = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
            if cause is not None and (id(cause) in known or not self._is_hidden_in(cause)):
                each.__cause__ = each.__context__ = cause = None
            known.add(id(cause))
            each = cause
        return error

    def _is_hidden_in(self, error: BaseException) -> bool:
        """Hide secrets in what an exception says, and tell whether that could be done."""
        self._hide_in_error(error)
        return self.text(str(error)) == str(error)

    def _hide_in_error(self, error: BaseException) -> None:
        error.args = tuple(self.text(a) if isinstance(a, str) else a for a in error.args)
        for name, value in vars(error).items():
            if isinstance(value, str):
                setattr(error, name, self.text(value))
            elif isinstance(value, tuple | list):
                for each in value:
                    if isinstance(each, BaseException):
                        self._hide_in_error(each)

    def _value(self, value: Any, name: str, depth: int) -> Any:
        if isinstance(value, str):
            hidden = self.text(value)
            return MASK if name and self._search.is_beside(name, hidden) else hidden
        if value is None or isinstance(value, bool | int | float):
            return value
        if depth > MAX_DEPTH:
            return TOO_DEEP
        if isinstance(value, Mapping):
            return {
                self._value(key, "", depth + 1): self._value(each, str(key), depth + 1)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self._value(each, name, depth + 1) for each in value]
        if isinstance(value, tuple):
            parts = [self._value(each, name, depth + 1) for each in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, depth)
        return self.text(str(value))

    def _dataclass(self, value: Any, depth: int) -> Any:
        changes = {}
        for each in fields(value):
            before = getattr(value, each.name)
            after = self._value(before, each.name, depth + 1)
            if after != before:
                changes[each.name] = after
        return replace(value, **changes) if changes else value


def safe_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function's own errors say nothing that a secret variable of this process holds.

    Args:
        function: May tell a person what is wrong with a file in which ``${VAR}`` was filled in.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except NbAgentsError as exc:
            hidden = Mask(secrets_of_environment()).error(exc)
            if hidden is exc:
                raise
            raise hidden from None

    return called


class MaskedStream:
    """One text that comes in pieces, without secrets.

    Whatever the pieces: what `push` and `flush` give, put together, is what `Mask.text` gives for
    the whole, but that the first `MIN_HELD` - 1 characters of a secret may stand before its mask:
    they were shown when they could be anything. A flush that was not the end lets the beginning of
    a secret through at the worst, and never one that can be told: what follows is hidden all the
    same.

    Args:
        mask: What to hide.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._open = ""
        self._shown = 0

    def push(self, piece: str) -> str:
        """Take a piece, and give what can be shown by now.

        Args:
            piece: What has come.

        Returns:
            What was held back and the piece, up to what looks like the beginning of a secret.
        """
        text, before = self._open + piece, self._shown
        found, decided, shown = self._mask._search.scan(text, is_whole=False)
        now = max(before, shown)
        self._open, self._shown = text[decided:], max(0, now - decided)
        return replaced(text, found, before, now)

    def flush(self) -> str:
        """Give what is held back: nothing more comes, as far as is known."""
        before, self._shown = self._shown, len(self._open)
        found, _, end = self._mask._search.scan(self._open, is_whole=True)
        return replaced(self._open, found, before, end)
