"""Removes secrets from text before it is written or shown.

A `Mask` has a list of secret values. A value that can't be confused with ordinary text
(`is_distinctive`) is hidden everywhere. So is a distinctive prefix of it, because a truncated key
must not be shown. An ordinary value ("lm-studio", "test") is hidden only next to its own name:
``NAME=test``, ``"api_key": "test"``, ``Authorization: Bearer test``. A value is found verbatim, as
quoted by JSON and Python, and percent-encoded. Each line of a multi-line value is also found.
Deliberately encoded values (base64, letters spelled out) are not found.

A `SecretSearch` looks for the *head* of a secret, its shortest distinctive prefix. A match is the
head and all following characters that agree with the secret. `MaskedStream` masks text that arrives
in chunks: it holds back text that may be the beginning of a secret until the next chunk. This
module reads no clock and no files, and emits no events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from functools import lru_cache, wraps
from os.path import commonprefix
from threading import Lock
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, quote_plus

from nb_agents.config.secret_names import MASK, MIN_SECRET_CHARS, is_distinctive, is_existing_path
from nb_agents.config.secrets import Secret, secrets_of_environment
from nb_agents.errors import NbAgentsError, UserError
from nb_agents.unicode import MAX_DEPTH, TOO_DEEP, field_names

MAX_HEAD = 200
"""Maximum length of a head, in characters."""

MIN_HELD = 4
"""Minimum number of characters to hold back at the end of a stream as the beginning of a secret.

Fewer characters match the end of many words. Text that is held back is lost if the process is
killed.
"""

# The characters between a name and its value. In JSON within JSON, quotes are escaped.
_BETWEEN = r"[\s\"'\\]{0,4}[:=][\s\"'\\]{0,4}(?i:(?:bearer|basic|token) )?"
_MAX_AFTER = 4 + len("bearer ")

MAX_CLEAN_CHARS, MAX_CLEAN = 100, 2_000
"""Maximum length, in characters, and number of cached strings that contain no secret."""

P = ParamSpec("P")
T = TypeVar("T")


class Match(NamedTuple):
    """A part of a string that must be hidden."""

    start: int
    end: int


class Scan(NamedTuple):
    """Result of searching a text.

    Attributes:
        found: The parts to hide, in order.
        decided: Position up to which further text can't change the result.
        shown: Position up to which the text can be shown. The rest may be a secret.
    """

    found: list[Match]
    decided: int
    shown: int


def mask_matches(text: str, matches: Iterable[Match], begin: int, end: int) -> str:
    """Return a part of a string with the mask instead of its matches.

    Args:
        text: The whole text.
        matches: Its matches, in order.
        begin: Start of the part. It may be inside a match.
        end: End of the part, outside any match. It is before ``begin`` if the part is empty.
    """
    parts: list[str] = []
    at = begin
    for match in matches:
        if match.end > begin:
            parts += text[at : match.start], MASK
            at = match.end
    return "".join([*parts, text[at:end]])


class _Search:
    """Searches a text from left to right, and remembers a match until it has been passed."""

    def __init__(self, find: Callable[[int], re.Match[str] | None]) -> None:
        self._find = find
        self._match = find(0)

    def next(self, at: int) -> re.Match[str] | None:
        """Return the first match that starts at or after a position."""
        if self._match is not None and self._match.start() < at:
            self._match = self._find(at)
        return self._match


class SecretSearch:
    """Finds secrets in text.

    Args:
        secrets: The secrets to find.
    """

    def __init__(self, secrets: Iterable[Secret]) -> None:
        self._forms: dict[str, list[str]] = {}
        self._plain: dict[str, set[str]] = {}
        for secret in secrets:
            texts = _texts(secret.value)
            for text in texts:
                self._forms.setdefault(_head(text), []).append(text)
            if not texts:
                self._plain.setdefault(secret.value, set()).update(secret.names)
        self._heads = sorted(self._forms, key=len, reverse=True)
        self._names = _spellings({name for names in self._plain.values() for name in names})
        self._under = {value: set(map(_folded, names)) for value, names in self._plain.items()}
        self._beginnings = {h[:n] for h in self._heads for n in range(1, len(h))}
        self._beginnings_of_names = {m[:n] for m in self._names for n in range(1, len(m))}
        self._reach = max(map(len, [*self._heads, *self._names]), default=0)
        self._head = _any_of(self._heads)
        self._name = _any_of(self._names)
        self._named = self._compiled_named()
        self._open_name, self._open_reach = self._compiled_open()
        # A cache of short strings without secrets. It may contain text from users.
        self._clean: set[str] = set()

    def _compiled_named(self) -> re.Pattern[str]:
        """Compile a pattern of names with their values. Its matching group is not hidden."""
        parts = []
        for value, names in self._plain.items():
            if names:
                named = "|".join(map(re.escape, _spellings(names)))
                parts.append(rf"((?i:{named}){_BETWEEN}){re.escape(value)}(?!\w)")
        return re.compile("|".join(parts), re.ASCII)

    def _compiled_open(self) -> tuple[re.Pattern[str] | None, int]:
        """Compile a pattern for a name at the end of a string.

        Returns it with its maximum length.
        """
        if not self._names:
            return None, 0
        longest = max(map(len, self._plain))
        named = "|".join(map(re.escape, self._names))
        after = rf"[\s\"'\\]{{0,4}}(?:[:=](?P<value>(?s:.{{0,{_MAX_AFTER + longest}}})))?\Z"
        pattern = re.compile(rf"(?i:{named}){after}", re.ASCII)
        return pattern, max(map(len, self._names)) + 5 + _MAX_AFTER + longest

    def is_beside(self, name: str, value: str) -> bool:
        """Return whether an ordinary value must be hidden next to this name."""
        return value in self._under and _folded(name) in self._under[value]

    def is_clean(self, text: str) -> bool:
        """Return whether a complete string contains no secret.

        Results for short strings are cached, because the names of fields, agents and models recur
        in all events.
        """
        if text in self._clean:
            return True
        is_clean = not self.scan(text, is_whole=True).found
        if is_clean and len(text) <= MAX_CLEAN_CHARS and len(self._clean) < MAX_CLEAN:
            self._clean.add(text)
        return is_clean

    def scan(self, text: str, *, is_whole: bool) -> Scan:
        """Find the parts of a string to hide.

        Args:
            is_whole: Whether the text is complete. If not, more of it may follow.
        """
        matches_found: list[Match] = []
        at, searches = 0, self._searches(text)
        if is_whole and not searches:
            return Scan(matches_found, len(text), len(text))
        while True:
            decided = visible_end = len(text)
            if not is_whole:
                decided, visible_end = self._open(text, at)
            matches = [match for search in searches if (match := search.next(at))]
            match = min(matches, key=lambda each: each.start(), default=None)
            if match is None or match.start() >= decided:
                return Scan(matches_found, decided, visible_end)
            if match.lastindex:  # a value next to its name, which is not hidden
                start, at = match.end(match.lastindex), match.end()
            else:
                start = match.start()
                at, is_open = self._end(text, start, match[0])
                if is_open and not is_whole:
                    return Scan(matches_found, start, start)
            matches_found.append(Match(start, at))

    def _searches(self, text: str) -> list[_Search]:
        """Return the pattern searches that could match in the text.

        For most text, there are none.
        """
        patterns = []
        # Thirty substring tests take a third of the time of one regular expression for all thirty.
        if any(map(text.__contains__, self._heads)):
            patterns.append(_Search(lambda at: self._head.search(text, at)))
        lowered = _lower(text) if self._names else ""
        if any(map(lowered.__contains__, self._names)):
            patterns.append(_Search(lambda at: self._next_named(text, lowered, at)))
        return patterns

    def _next_named(self, text: str, lowered: str, at: int) -> re.Match[str] | None:
        """Find the next value that follows its name.

        Searching for the name first is ten times faster.
        """
        while name := self._name.search(lowered, at):
            if match := self._named.match(text, name.start()):
                return match
            at = name.start() + 1
        return None

    def _end(self, text: str, start: int, head: str) -> tuple[int, bool]:
        """Return the end of a secret in text, and whether further text may extend it."""
        end, is_open = start, False
        for form in self._forms[head]:
            same = len(commonprefix([form, text[start : start + len(form)]]))
            end = max(end, start + same)
            is_open |= start + same == len(text) and same < len(form)
        return end, is_open

    def _open(self, text: str, at: int) -> tuple[int, int]:
        """Return `Scan.decided` and `Scan.shown` for the end of an incomplete text."""
        decided = visible_end = len(text)
        for start in range(max(at, len(text) - self._reach), len(text)):
            rest = text[start:]
            is_secret = rest in self._beginnings
            if is_secret or rest.lower() in self._beginnings_of_names:
                decided = min(decided, start)
            if is_secret and len(rest) >= MIN_HELD:
                visible_end = start
                break
        if self._open_name:
            match = self._open_name.search(text, max(at, len(text) - self._open_reach))
            if match:
                decided = min(decided, match.start())
                visible_end = min(
                    visible_end, match.start("value") if match["value"] else visible_end
                )
        return decided, visible_end


def _texts(value: str) -> list[str]:
    """Return the spellings of a value to hide everywhere. Empty for an ordinary value."""
    if not is_distinctive(value) or is_existing_path(value):
        return []
    parts = [value, *filter(is_distinctive, map(str.strip, value.splitlines()))]
    return list(dict.fromkeys(form for part in parts for form in _recoded(part)))


def _recoded(value: str) -> Iterator[str]:
    """Yield a value verbatim, and as escaped in JSON, Python literals and URLs."""
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    whole = value.encode("utf-8", "replace")
    for coded in (quote(whole), quote(whole, safe=""), quote_plus(whole)):
        yield coded
        yield re.sub("%..", lambda match: match[0].lower(), coded)


def _head(text: str) -> str:
    lengths = range(MIN_SECRET_CHARS, min(len(text), MAX_HEAD))
    return next((text[:n] for n in lengths if is_distinctive(text[:n])), text[:MAX_HEAD])


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)))


def _lower(text: str) -> str:
    """Convert a text to lower case without changing its length."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(each.lower() if each.isascii() else each for each in text)


def _spellings(names: Iterable[str]) -> list[str]:
    """Return names in lower case, with each possible separator between their words."""
    words = {tuple(re.split("[-_ ]", name.lower())) for name in names}
    spellings = {mark.join(each) for each in words for mark in ("_", "-", " ", "")}
    return sorted(spellings, key=len, reverse=True)


_search_for = lru_cache(maxsize=8)(SecretSearch)  # many runs have the same secrets


def _folded(name: str) -> str:
    return re.sub("[-_ ]", "", name.lower())


class Mask:
    """Hides the secrets of a run in text that is written or shown.

    Args:
        secrets: The initial secrets. `add` adds more.

    Example:
        >>> Mask([Secret("sk-1f9Qz7LmX02p", ("api_key",))]).text("its sk-1f9Qz7LmX02p!")
        'its [key]!'
    """

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._known: frozenset[Secret] = frozenset()
        self._search = _search_for(self._known)
        # Secrets may be added on the loop and, when backends are created, in other threads.
        self._adding = Lock()
        self.add(secrets)

    def add(self, secrets: Iterable[Secret]) -> None:
        """Hide further secrets from now on. Other threads may use the mask in the meantime.

        Args:
            secrets: The secrets. Those with an empty value are ignored.
        """
        with self._adding:
            all_secrets = self._known | {secret for secret in secrets if secret.value}
            if all_secrets != self._known:
                # The new search is complete before it replaces the old one.
                self._known, self._search = all_secrets, _search_for(all_secrets)

    def text(self, text: str) -> str:
        """Return a complete text with its secrets masked."""
        if self._search.is_clean(text):
            return text
        return mask_matches(text, self._search.scan(text, is_whole=True).found, 0, len(text))

    def value(self, value: T) -> T:
        """Mask the secrets in all strings of a value, including the keys of mappings.

        Args:
            value: Plain data, or dataclasses of plain data. Any other object becomes a string, as
                in the journal.

        Returns:
            A masked copy. A dataclass without secrets is returned unchanged.
        """
        hidden: T = self._value(value, "", 0)
        return hidden

    def error(self, error: Exception) -> Exception:
        """Mask secrets in the messages of an exception and its causes.

        Args:
            error: The exception, which is changed in place.

        Returns:
            The exception. If its message can't be changed, because ``__str__`` builds it, a new
            exception with the masked message. A cause with such a message is removed.
        """
        if not self._is_hidden_in(error):
            other = UserError if isinstance(error, UserError) else NbAgentsError
            return other(f"{type(error).__name__}: {self.text(str(error))}")
        each: BaseException | None = error
        seen_ids = {id(error)}
        while each is not None:
            cause = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
            if cause is not None and (id(cause) in seen_ids or not self._is_hidden_in(cause)):
                each.__cause__ = each.__context__ = cause = None
            seen_ids.add(id(cause))
            each = cause
        return error

    def _is_hidden_in(self, error: BaseException) -> bool:
        """Mask secrets in an exception. Returns whether its message now contains none."""
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
        if isinstance(value, list):
            return [self._value(each, name, depth + 1) for each in value]
        if isinstance(value, tuple):
            parts = [self._value(each, name, depth + 1) for each in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, depth)
        if isinstance(value, Mapping):  # last, because this check is slow for other types
            return {
                self._value(key, "", depth + 1): self._value(each, str(key), depth + 1)
                for key, each in value.items()
            }
        return self.text(str(value))

    def _dataclass(self, value: Any, depth: int) -> Any:
        changes = {}
        for name in field_names(value.__class__):
            before = getattr(value, name)
            after = self._value(before, name, depth + 1)
            if after != before:
                changes[name] = after
        return replace(value, **changes) if changes else value


def safe_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Mask the secret variables of this process in the errors that a function raises.

    Args:
        function: A function whose errors may quote a file after ``${VAR}`` was replaced in it.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except NbAgentsError as exc:
            hidden = Mask(secrets_of_environment()).error(exc)
            if hidden is exc:
                raise
            raise hidden from None

    return wrapper


class MaskedStream:
    """Masks text that arrives in chunks.

    The results of `push` and `flush`, joined, equal `Mask.text` of the whole text, with one
    exception: up to `MIN_HELD` - 1 characters of a secret may precede its mask, because they were
    shown before they could be recognized. A `flush` in the middle of a secret shows at most a
    prefix that is not distinctive. The rest of the secret is still hidden.

    Args:
        mask: The mask to apply.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._open = ""
        self._shown = 0

    def push(self, piece: str) -> str:
        """Add a chunk of text and return the masked text that can be shown now.

        The result may contain text that was held back earlier. It ends before anything that may be
        the beginning of a secret.

        Args:
            piece: The next piece of the text.
        """
        text, before = self._open + piece, self._shown
        matches, decided, visible_end = self._mask._search.scan(text, is_whole=False)
        now = max(before, visible_end)
        self._open, self._shown = text[decided:], max(0, now - decided)
        return mask_matches(text, matches, before, now)

    def flush(self) -> str:
        """Return the masked text that is still held back."""
        before, self._shown = self._shown, len(self._open)
        matches, _, end = self._mask._search.scan(self._open, is_whole=True)
        return mask_matches(self._open, matches, before, end)
