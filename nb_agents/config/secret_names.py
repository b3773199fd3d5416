"""Recognizes names of secrets, and values that can't be ordinary text."""

from __future__ import annotations

import os
import re

MASK = "[key]"
"""The text that replaces a secret."""

MIN_SECRET_CHARS = 12
"""A shorter value may be part of ordinary text, such as the keys "none", "test" and "lm-studio"."""

_MIN_DIFFERENT = 6
"""A value with fewer distinct characters, such as a row of stars, may be decoration."""

_SECRET_NAME = re.compile(
    r"(KEYS?|TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTHORIZATION)(_|$)|_(PAT|PWD)$"
    r"|(^|_)(JWT|PASS)(_|$)",
    re.IGNORECASE,
)

# A word of at most 15 letters per part, in one case or camel case, with optional digits at its end.
_HUMPS = r"[A-Z]?[a-z]{1,15}(?:[A-Z][a-z]{2,15})*"
_ORDINARY = re.compile(rf"(?:{_HUMPS}|[A-Z]{{1,15}})?[0-9]{{0,5}}")
_MARKS = re.compile(r"[^A-Za-z0-9]+")
_LETTERS = re.compile(r"[A-Za-z]{3,}")


def is_secret_name(name: str) -> bool:
    """Return whether a variable or argument with this name may contain a secret.

    In any letter case, these names do: names in which a part before an underscore or the end ends
    in KEY, TOKEN, SECRET, PASSWORD, PASSWD, PASSPHRASE, CREDENTIAL, AUTHORIZATION, KEYS, SECRETS or
    CREDENTIALS; names with JWT or PASS as a part; names that end in _PAT or _PWD. They include the
    variables of all model providers.

    Example:
        >>> [is_secret_name(name) for name in ("GITHUB_TOKEN", "api_key", "PATH")]
        [True, True, False]
    """
    return _SECRET_NAME.search(name) is not None


def is_distinctive(value: str) -> bool:
    """Return whether a value is unlikely to occur in ordinary text by chance.

    Such a value has at least `MIN_SECRET_CHARS` characters, six of them distinct, and is not a
    sequence of words. Words have up to 15 letters, or several such parts in camel case, and up to
    five digits at their end. Words of at least three letters must make up half of a sequence of
    words.

    Args:
        value: A possible key.

    Example:
        >>> [is_distinctive(v) for v in ("sk-1f9Qz7LmX02p", "no-key-needed", "password12345", "x")]
        [True, False, False, False]
    """
    if len(value) < MIN_SECRET_CHARS or len(set(value)) < _MIN_DIFFERENT:
        return False
    is_words = all(_ORDINARY.fullmatch(piece) for piece in _MARKS.split(value))
    # Otherwise a random password with punctuation could be a sequence of very short words.
    return not is_words or 2 * sum(map(len, _LETTERS.findall(value))) < len(value)


def is_existing_path(value: str) -> bool:
    """Return whether a variable's value is an existing path, so that it is not a secret itself."""
    return os.path.isabs(value) and "\0" not in value and os.path.lexists(value)
