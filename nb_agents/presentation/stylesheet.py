"""Shrinks a card's HTML: moves inline styles to a style element, and drops needless quotes.

Repeated styles would be half of a card. Each style is written once, as a class named after its
hash. So cards on the same page don't conflict, and the same card always has the same HTML. A page
that drops style elements (GitHub, or JupyterLab for an untrusted notebook) shows a plain card with
headings, lists, tables and expandable parts. The rules apply only to cards with their own style
element, because they would hide text in a plain card.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from hashlib import sha256

COLOURS = {
    "line": "var(--jp-border-color2,#8886)",
    "soft": "var(--jp-ui-font-color2,#656d76)",
    "faint": "var(--jp-ui-font-color3,#8c959f)",
    "paper": "var(--jp-layout-color1,#fff)",
    "brand": "var(--jp-brand-color1,#1976d2)",
    "amber": "var(--jp-warn-color1,#e08600)",
    # As in panel.css: JupyterLab's colours are too pale for text on white.
    "good": "color-mix(in srgb,var(--jp-success-color1,#2e7d32) 82%,var(--nb-ink))",
    "bad": "color-mix(in srgb,var(--jp-error-color1,#c62828) 88%,var(--nb-ink))",
    "warn": "color-mix(in srgb,var(--jp-warn-color1,#b26a00) 66%,var(--nb-ink))",
    "ink": "var(--jp-ui-font-color1,#1f2328)",
}
"""The values of ``var(--nb-NAME)`` in templates."""

_RULES = {
    "nb-file": ".nb-file{padding:0;background:none;color:inherit}",
    "nb-path": ".nb-path{overflow-wrap:anywhere}",
    # The label overlaps the end of clipped content.
    "nb-fold": (
        ".nb-fold{position:relative;max-height:var(--most);overflow:hidden}"
        ".nb-fold:has(>.nb-more>:checked,>details[open]){max-height:none}"
        ".nb-fold:has(>details[open])>.nb-more{display:none}"
        ".nb-more{display:block;position:absolute;inset:calc(var(--most) - 34px) 0 auto;"
        "padding:9px 0 5px;text-align:center;font-size:12px;line-height:20px;cursor:pointer;"
        "color:var(--nb-brand);background:linear-gradient(transparent,var(--nb-paper) 40%)}"
        '.nb-more::after{content:"Show all"}'
        ".nb-more>input{position:absolute;opacity:0}"
        ".nb-more:focus-within{text-decoration:underline}"
        '.nb-more:has(:checked){position:static;&::after{content:"Show less"}}'
        "@media print{.nb-fold{max-height:none}.nb-more{display:none}}"
    ),
    "nb-wide": (
        "&:has(.nb-spread>:checked) .nb-wide{width:400%}"
        ".nb-spread{order:-1;color:var(--nb-brand);cursor:pointer}"
        '.nb-spread::after{content:"Spread events"}'
        '.nb-spread:has(:checked)::after{content:"Fit to width"}'
        ".nb-spread>input{position:absolute;opacity:0}"
        ".nb-spread:focus-within{text-decoration:underline}"
    ),
}
"""The rules for elements that have a class, by class."""

# For HTML from Jinja2 and markdown-it, in which quotes in other text are escaped.
_STYLE = re.compile(r' style="([^"]*)"')
_QUOTED = re.compile(r'="([\w.%#:+-]+)"(?=[ />])(/?)')
_PICTURE = re.compile(r"<svg role=.*</svg>|<(table|ul)\b.*?</\1>", re.DOTALL)
# Only spans occur in code, so line breaks of code are not affected.
_ENDS = re.compile(r">\n+(?=</(?:div|details)>|\n<(?:div|details)\b)")
_COLOUR = re.compile(r"var\(--nb-(\w+)\)")
# MathJax commands that write styles and links, which may refer to a server, or that define such
# commands. js/src/sanitize.ts has the same list.
_NO_MATH = re.compile(
    r"<[^>]*>|\\(?=(?:href|url|style|class|cssId|data|require|includegraphics|csname|mmlToken|bbox"
    r"|def|edef|gdef|xdef|let|(?:re)?newcommand|providecommand|(?:re)?newenvironment|setOptions"
    r"|Newextarrow|enclose|unicode)(?![A-Za-z]))"
)


def with_stylesheet(html: str) -> str:
    """Return a card with its inline styles moved to a style element that affects only the card.

    Args:
        html: HTML with escaped text and attributes. Elements with a style must not have a class.
    """
    names: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        style = match[1]
        # A class must start with a letter. The digest is long enough to avoid collisions.
        digest = urlsafe_b64encode(sha256(style.encode()).digest()[:3]).decode()
        names.setdefault(style, f"n{digest}")
        return f' class="{names[style]}"'

    body = _QUOTED.sub(_bare, _STYLE.sub(named, _NO_MATH.sub(_shield, html)))
    # Fewer lines: each line of a card is a line of the notebook's JSON and its diff.
    body = _PICTURE.sub(lambda match: match[0].replace(">\n<", "><"), body)
    body = _ENDS.sub(">", body)
    # The doubled class overrides the page's rules for tables.
    rules = [f".{name}{{{style}}}" for style, name in sorted(names.items())]
    rules += [rule for name, rule in _RULES.items() if f"={name}" in body]
    used = {"ink", *(match[1] for rule in rules for match in _COLOUR.finditer(rule))}
    colours = "".join(f"--nb-{name}:{COLOURS[name]};" for name in sorted(used))
    sheet = f".nb-card.nb-card:has(>style){{{colours}{''.join(rules)}}}"
    return f"<div class=nb-card><style>{sheet}</style>\n{body}</div>"


def _shield(match: re.Match[str]) -> str:
    """Put the backslash of a LaTeX command into a span, which hides the command from MathJax.

    Tags are kept.
    """
    return "<span>\\</span>" if match[0] == "\\" else match[0]


def _bare(match: re.Match[str]) -> str:
    return f"={match[1]}{' /' if match[2] else ''}"
