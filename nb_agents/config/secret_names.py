"""Recognize names of secrets, and values that can be distinguished from ordinary text."""

from __future__ import annotations

import os
import re

MASK = "[key]"
"""What stands for a key where it would be written down."""

MIN_SECRET_CHARS = 12
"""A shorter value may be part of any word: "none", "test" and "lm-studio" are keys somewhere."""

_MIN_DIFFERENT = 6
"""A value of fewer different characters, such as a row of stars, may be part of any drawing."""

_SECRET_NAME = re.compile(
    r"(KEYS?|TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTHORIZATION)(_|$)|_(PAT|PWD)$"
    r"|(^|_)(JWT|PASS)(_|$)",
    re.IGNORECASE,
)

# Words of at most 15 letters: in one case, or humped; with a number behind. Or a number.
_HUMPS = r"[A-Z]?[a-z]{1,15}(?:[A-Z][a-z]{2,15})*"
_ORDINARY = re.compile(rf"(?:{_HUMPS}|[A-Z]{{1,15}})?[0-9]{{0,5}}")
_MARKS = re.compile(r"[^A-Za-z0-9]+")
_LETTERS = re.compile(r"[A-Za-z]{3,}")


def is_secret_name(name: str) -> bool:
    """Return whether a variable or an argument of that name may hold a secret.

    Those with a name, or a word of it before an underscore, that ends in KEY, TOKEN, SECRET,
    PASSWORD, PASSWD, PASSPHRASE, CREDENTIAL or AUTHORIZATION (KEYS, SECRETS and CREDENTIALS too);
    those with the word JWT or PASS; those that end in _PAT or _PWD; in any case of letters. All
    that hold a model's key are.

    Args:
        name: The name.

    Example:
        >>> [is_secret_name(name) for name in ("GITHUB_TOKEN", "api_key", "PATH")]
        [True, True, False]
    """
    return _SECRET_NAME.search(name) is not None


def is_distinctive(value: str) -> bool:
    """Return whether a value can't occur in ordinary text by chance.

    It has at least `MIN_SECRET_CHARS` characters, six of them different, and is not made of words
    alone. Words have one to fifteen letters and up to five digits behind them, and are joined by
    anything but letters and digits, or humped; those of three letters and more are half of it.

    Args:
        value: A key, or what stands for one.

    Example:
        >>> [is_distinctive(v) for v in ("sk-1f9Qz7LmX02p", "no-key-needed", "password12345", "x")]
        [True, False, False, False]
    """
    if len(value) < MIN_SECRET_CHARS or len(set(value)) < _MIN_DIFFERENT:
        return False
    is_words = all(_ORDINARY.fullmatch(piece) for piece in _MARKS.split(value))
    # Else each random password with marks in it would be words of one or two letters.
    return not is_words or 2 * sum(map(len, _LETTERS.findall(value))) < len(value)


def is_place(value: str) -> bool:
    """Return whether a value is an existing path: where a secret is kept, not the secret.

    Args:
        value: A variable's value.
    """
    return os.path.isabs(value) and "\0" not in value and os.path.lexists(value)
