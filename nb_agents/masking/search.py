"""Finds secrets in texts, in whole ones and at the ends of those that go on.

What is looked for is a text's *head*: its shortest beginning that is distinctive itself. Where a
head stands, all that follows it as in a text that it is the head of belongs to the match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from os.path import commonprefix
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from nb_agents.config.secret_names import MASK, MIN_SECRET_CHARS, is_distinctive, is_place
from nb_agents.config.secrets import Secret

__all__ = ["Match", "SecretSearch", "replaced"]

MAX_HEAD = 200
"""Characters that are enough to know a text by, whatever they are."""

MIN_HELD = 4
"""Characters at the end of a text that goes on, from which on they are held back as the beginning
of a secret. Fewer end every other word: a process that is killed would lose each time what it held.
"""

# What stands between a name and its value; JSON within JSON has its quotes escaped.
_BETWEEN = r"[\s\"'\\]{0,4}[:=][\s\"'\\]{0,4}(?i:(?:bearer|basic|token) )?"
_MAX_AFTER = 4 + len("bearer ")


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
        """Give the first match that begins at a place or behind it."""
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
        """Whether a value that is found under a name is hidden there."""
        return _folded(name) in self._under.get(value, ())

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
        """Give the searches that can find anything: most texts have no head and no name in them."""
        found = []
        # Thirty of these look-ups take a third of the time of one search for all thirty.
        if any(head in text for head in self._heads):
            found.append(_Search(lambda at: self._head.search(text, at)))
        lowered = _lower(text) if self._names else ""
        if any(name in lowered for name in self._names):
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
    """Give the texts that a value is hidden as wherever they stand; none for an ordinary one."""
    if not is_distinctive(value) or is_place(value):
        return []
    parts = [value, *filter(is_distinctive, map(str.strip, value.splitlines()))]
    return list(dict.fromkeys(form for part in parts for form in _recoded(part)))


def _recoded(value: str) -> Iterator[str]:
    """Give a value as it is, and as what writes it into JSON, Python's quotes or an address."""
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


def _folded(name: str) -> str:
    return re.sub("[-_ ]", "", name.lower())
