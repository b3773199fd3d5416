"""Which names say that a value is a secret, and how secrets are kept out of texts."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["MASK", "MIN_SECRET_CHARS", "is_secret_name", "without_secrets"]

MASK = "[key]"
"""What stands for a key where it would be written down."""

MIN_SECRET_CHARS = 8
"""A shorter value is a placeholder, such as the "none" that local servers take."""

_SECRET_NAME = re.compile(
    r"(KEYS?|TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTHORIZATION)(_|$)|_(PAT|PWD)$",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or an argument of that name may hold a secret.

    Those with a name, or a word of it before an underscore, that ends in KEY, TOKEN, SECRET,
    PASSWORD, PASSWD, PASSPHRASE, CREDENTIAL or AUTHORIZATION (KEYS, SECRETS and CREDENTIALS too);
    those that end in _PAT or _PWD; in any case of letters. All that hold a model's key are.

    Args:
        name: The name.

    Example:
        >>> [is_secret_name(name) for name in ("GITHUB_TOKEN", "api_key", "PATH")]
        [True, True, False]
    """
    return _SECRET_NAME.search(name) is not None


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Take secrets out of a text.

    Args:
        text: What somebody wrote.
        secrets: Values that must not leak; those below `MIN_SECRET_CHARS` stay.

    Example:
        >>> without_secrets("key=sk-12345678!", ["sk-12345678"])
        'key=[key]!'
    """
    known = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
    # The longest first: one may be the beginning of another.
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text
