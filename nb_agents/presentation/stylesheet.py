"""Writing a card's HTML small: its inline styles as one style element, and quotes where needed.

Half of a card would be styles that stand in it again and again. Each is written once, under a name
that is made of it: so cards on one page can't disturb each other, and a card made twice is the
same. Where a page drops style elements (GitHub; JupyterLab, of a notebook that is not trusted), the
card is plain: headings, lists, tables and parts that open.
"""

from __future__ import annotations

import re
from hashlib import sha256

COLOURS = {
    "line": "var(--jp-border-color2,#8886)",
    "soft": "var(--jp-ui-font-color2,#656d76)",
    "faint": "var(--jp-ui-font-color3,#8c959f)",
    "paper": "var(--jp-layout-color1,#fff)",
    "brand": "var(--jp-brand-color1,#1976d2)",
    "amber": "var(--jp-warn-color1,#e08600)",
    # As in panel.css: JupyterLab's own are too pale for words on white.
    "good": "color-mix(in srgb,var(--jp-success-color1,#2e7d32) 82%,var(--nb-ink))",
    "bad": "color-mix(in srgb,var(--jp-error-color1,#c62828) 88%,var(--nb-ink))",
    "warn": "color-mix(in srgb,var(--jp-warn-color1,#b26a00) 66%,var(--nb-ink))",
    "ink": "var(--jp-ui-font-color1,#1f2328)",
}
"""What templates call ``var(--nb-NAME)``."""

# In HTML that Jinja2 and markdown-it have made: in all that is not theirs, quotes are escaped.
_STYLE = re.compile(r' style="([^"]*)"')
_QUOTED = re.compile(r'="([\w.%#:+-]+)"(?=[ />])(/?)')
_PICTURE = re.compile(r"<svg role=.*</svg>|<(table|ul)\b.*?</\1>", re.DOTALL)
_COLOUR = re.compile(r"var\(--nb-(\w+)\)")


def with_stylesheet(html: str) -> str:
    """Return HTML with its inline styles in one style element, which goes for nothing else.

    Args:
        html: HTML whose text and attributes are escaped, and in which what has a style has no
            class.
    """
    names: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        style = found[1]
        # It begins with a letter, and two styles of a card don't get one name.
        names.setdefault(style, f"n{sha256(style.encode()).hexdigest()[:6]}")
        return f' class="{names[style]}"'

    body = _QUOTED.sub(_bare, _STYLE.sub(named, html))
    # A line of a card is a line of JSON in a notebook, and of its diff.
    body = _PICTURE.sub(lambda found: found[0].replace(">\n<", "><"), body)
    # Twice the class, as a page's own rules for tables count more than one.
    rules = [f".{name}{{{style}}}" for style, name in sorted(names.items())]
    used = {"ink", *(found[1] for rule in rules for found in _COLOUR.finditer(rule))}
    colours = "".join(f"--nb-{name}:{COLOURS[name]};" for name in sorted(used))
    sheet = f".nb-card.nb-card{{{colours}{''.join(rules)}}}"
    return f"<div class=nb-card><style>{sheet}</style>\n{body}</div>"


def _bare(found: re.Match[str]) -> str:
    return f"={found[1]}{' /' if found[2] else ''}"
