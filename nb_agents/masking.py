"""Takes secrets out of texts, wherever the texts came from and whatever becomes of them.

A `Mask` knows values, not places. A value that can be told from ordinary text (`is_distinctive`) is
hidden wherever it stands, and so is a beginning of it that can be told: a cut must not let most of
a key through. Another one ("lm-studio", "test") is hidden beside its own name alone: ``NAME=test``,
``"api_key": "test"``, ``Authorization: Bearer test``. Each is known as it is, as JSON and Python
write it in quotes, and percent-encoded; of one that has lines, each line is known too. What
somebody recodes on purpose (base64, letters spelled out) is not found.

A `SecretSearch` looks for a secret's *head*: its shortest beginning that is distinctive itself.
Where one stands, all that follows it as in the secret belongs to the match. `MaskedStream` does the
same for a text that comes in pieces: what may be the beginning of a secret waits for the next one.
Pure: no clock, no disk, no events.
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

from nb_agents.config.secret_names import MASK, MIN_SECRET_CHARS, is_distinctive, is_place
from nb_agents.config.secrets import Secret, secrets_of_environment
from nb_agents.errors import NbAgentsError, UserError
from nb_agents.unicode import field_names

MAX_HEAD = 200
"""Characters that are enough to know a text by, whatever they are."""

MIN_HELD = 4
"""Characters at the end of a text that goes on, from which on they are held back as the beginning
of a secret. Fewer end every other word: a process that is killed would lose each time what it held.
"""

# What stands between a name and its value; JSON within JSON has its quotes escaped.
_BETWEEN = r"[\s\"'\\]{0,4}[:=][\s\"'\\]{0,4}(?i:(?:bearer|basic|token) )?"
_MAX_AFTER = 4 + len("bearer ")

MAX_CLEAN_CHARS, MAX_CLEAN = 100, 2_000
"""Characters of a text in which nothing is hidden for it to be known again, and how many are."""

MAX_DEPTH = 100
"""Levels of a value that are gone through; nobody nests deeper, and Python's stack has its end."""

TOO_DEEP = "[nested too deeply]"

P = ParamSpec("P")
T = TypeVar("T")


class Match(NamedTuple):
    """A stretch of a text that is to be hidden."""

    start: int
    end: int


class Scan(NamedTuple):
    """What is known of a text.

    Attributes:
        found: What is to be hidden, in order.
        decided: How far more text changes nothing.
        shown: How far it can be shown: behind that it looks like a secret by now.
    """

    found: list[Match]
    decided: int
    shown: int


def replaced(text: str, found: Iterable[Match], begin: int, end: int) -> str:
    """Write a stretch of a text with its matches replaced.

    Args:
        text: The text.
        found: Its matches, in order; those that end before the stretch are left out.
        begin: Where the stretch begins; it may be within a match.
        end: Where it ends, in no match; before its beginning when all is shown by now.
    """
    parts: list[str] = []
    at = begin
    for match in found:
        if match.end > begin:
            parts += text[at : match.start], MASK
            at = match.end
    return "".join([*parts, text[at:end]])


class _Search:
    """A search from left to right that is made again only where its last match does not hold."""

    def __init__(self, find: Callable[[int], re.Match[str] | None]) -> None:
        self._find = find
        self._found = find(0)

    def next(self, at: int) -> re.Match[str] | None:
        """Return the first match that begins at or after a position."""
        if self._found is not None and self._found.start() < at:
            self._found = self._find(at)
        return self._found


class SecretSearch:
    """Finds secrets in texts.

    Args:
        secrets: What to look for.
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
        # Texts of people too, which stay: but none in which there is anything to hide.
        self._clean: set[str] = set()

    def _compiled_named(self) -> re.Pattern[str]:
        """Compile each value beside its name; the one group that is found is what stays."""
        parts = []
        for value, names in self._plain.items():
            if names:
                named = "|".join(map(re.escape, _spellings(names)))
                parts.append(rf"((?i:{named}){_BETWEEN}){re.escape(value)}(?!\w)")
        return re.compile("|".join(parts), re.ASCII)

    def _compiled_open(self) -> tuple[re.Pattern[str] | None, int]:
        """Compile what finds a name, at the end of a text, that its value may still follow."""
        if not self._names:
            return None, 0
        longest = max(map(len, self._plain))
        named = "|".join(map(re.escape, self._names))
        after = rf"[\s\"'\\]{{0,4}}(?:[:=](?P<value>(?s:.{{0,{_MAX_AFTER + longest}}})))?\Z"
        pattern = re.compile(rf"(?i:{named}){after}", re.ASCII)
        return pattern, max(map(len, self._names)) + 5 + _MAX_AFTER + longest

    def is_beside(self, name: str, value: str) -> bool:
        """Return whether a value is hidden where it stands beside this name."""
        return value in self._under and _folded(name) in self._under[value]

    def is_clean(self, text: str) -> bool:
        """Return whether a whole text holds nothing to hide; results for short texts are cached.

        What is written down is full of the same words: names of fields, of agents and of models.
        """
        if text in self._clean:
            return True
        is_clean = not self.scan(text, is_whole=True).found
        if is_clean and len(text) <= MAX_CLEAN_CHARS and len(self._clean) < MAX_CLEAN:
            self._clean.add(text)
        return is_clean

    def scan(self, text: str, *, is_whole: bool) -> Scan:
        """Find what is to be hidden.

        Args:
            text: The text.
            is_whole: Whether it ends there; else more of it may come.
        """
        found: list[Match] = []
        at, searches = 0, self._searches(text)
        if is_whole and not searches:
            return Scan(found, len(text), len(text))
        while True:
            decided = shown = len(text)
            if not is_whole:
                decided, shown = self._open(text, at)
            matches = [match for search in searches if (match := search.next(at))]
            match = min(matches, key=lambda each: each.start(), default=None)
            if match is None or match.start() >= decided:
                return Scan(found, decided, shown)
            if match.lastindex:  # beside its name, which stays
                start, at = match.end(match.lastindex), match.end()
            else:
                start = match.start()
                at, is_open = self._end(text, start, match[0])
                if is_open and not is_whole:
                    return Scan(found, start, start)
            found.append(Match(start, at))

    def _searches(self, text: str) -> list[_Search]:
        """Return the searches whose literal prefix occurs in a text; most texts have none."""
        found = []
        # Thirty of these look-ups take a third of the time of one search for all thirty.
        if any(map(text.__contains__, self._heads)):
            found.append(_Search(lambda at: self._head.search(text, at)))
        lowered = _lower(text) if self._names else ""
        if any(map(lowered.__contains__, self._names)):
            found.append(_Search(lambda at: self._next_named(text, lowered, at)))
        return found

    def _next_named(self, text: str, lowered: str, at: int) -> re.Match[str] | None:
        """Find the next value beside its name; the name alone is found in a tenth of the time."""
        while name := self._name.search(lowered, at):
            if found := self._named.match(text, name.start()):
                return found
            at = name.start() + 1
        return None

    def _end(self, text: str, start: int, head: str) -> tuple[int, bool]:
        """Find how far a text goes on as what a head begins, and whether more of it may come."""
        end, is_open = start, False
        for form in self._forms[head]:
            same = len(commonprefix([form, text[start : start + len(form)]]))
            end = max(end, start + same)
            is_open |= start + same == len(text) and same < len(form)
        return end, is_open

    def _open(self, text: str, at: int) -> tuple[int, int]:
        """Find where that begins, at a text's end, which may go on as a secret, and looks so."""
        decided = shown = len(text)
        for start in range(max(at, len(text) - self._reach), len(text)):
            rest = text[start:]
            is_secret = rest in self._beginnings
            if is_secret or rest.lower() in self._beginnings_of_names:
                decided = min(decided, start)
            if is_secret and len(rest) >= MIN_HELD:
                shown = start
                break
        if self._open_name:
            found = self._open_name.search(text, max(at, len(text) - self._open_reach))
            if found:
                decided = min(decided, found.start())
                shown = min(shown, found.start("value") if found["value"] else shown)
        return decided, shown


def _texts(value: str) -> list[str]:
    """Return the texts under which a value is hidden everywhere; none for an ordinary value."""
    if not is_distinctive(value) or is_place(value):
        return []
    parts = [value, *filter(is_distinctive, map(str.strip, value.splitlines()))]
    return list(dict.fromkeys(form for part in parts for form in _recoded(part)))


def _recoded(value: str) -> Iterator[str]:
    """Yield a value as it is, and as escaped in JSON, Python literals and URLs."""
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    whole = value.encode("utf-8", "replace")
    for coded in (quote(whole), quote(whole, safe=""), quote_plus(whole)):
        yield coded
        yield re.sub("%..", lambda found: found[0].lower(), coded)


def _head(text: str) -> str:
    lengths = range(MIN_SECRET_CHARS, min(len(text), MAX_HEAD))
    return next((text[:n] for n in lengths if is_distinctive(text[:n])), text[:MAX_HEAD])


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)))


def _lower(text: str) -> str:
    """Write a text in lower case, each character in its place: a few become two in Unicode's."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(each.lower() if each.isascii() else each for each in text)


def _spellings(names: Iterable[str]) -> list[str]:
    """Write names in lower case with each mark that may stand between their words."""
    words = {tuple(re.split("[-_ ]", name.lower())) for name in names}
    found = {mark.join(each) for each in words for mark in ("_", "-", " ", "")}
    return sorted(found, key=len, reverse=True)


_search_for = lru_cache(maxsize=8)(SecretSearch)  # many runs have the same secrets


def _folded(name: str) -> str:
    return re.sub("[-_ ]", "", name.lower())


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
        self._search = _search_for(self._known)
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
                self._known, self._search = known, _search_for(known)

    def text(self, text: str) -> str:
        """Hide secrets in a whole text.

        Args:
            text: What somebody wrote.
        """
        if self._search.is_clean(text):
            return text
        return replaced(text, self._search.scan(text, is_whole=True).found, 0, len(text))

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
        if isinstance(value, list):
            return [self._value(each, name, depth + 1) for each in value]
        if isinstance(value, tuple):
            parts = [self._value(each, name, depth + 1) for each in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, depth)
        if isinstance(value, Mapping):  # after what is no dict: it takes long to say so
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
    """Masks a text that arrives in pieces.

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
        """Add a piece; return what can be shown so far.

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
        """Return what was held back, as no more is expected."""
        before, self._shown = self._shown, len(self._open)
        found, _, end = self._mask._search.scan(self._open, is_whole=True)
        return replaced(self._open, found, before, end)
