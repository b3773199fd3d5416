"""Writing a card's HTML small: its inline styles as one style element, and quotes where needed.

Half of a card would be styles that stand in it again and again. Each is written once, under a name
that is made of it: so cards on one page can't disturb each other, and a card made twice is the
same. Where a page drops style elements (GitHub; JupyterLab, of a notebook that is not trusted), the
card is plain: headings, lists, tables and parts that open. It stays plain beside a card that has
its own, whose styles would hide words that it can't show again.
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
    # As in panel.css: JupyterLab's own are too pale for words on white.
    "good": "color-mix(in srgb,var(--jp-success-color1,#2e7d32) 82%,var(--nb-ink))",
    "bad": "color-mix(in srgb,var(--jp-error-color1,#c62828) 88%,var(--nb-ink))",
    "warn": "color-mix(in srgb,var(--jp-warn-color1,#b26a00) 66%,var(--nb-ink))",
    "ink": "var(--jp-ui-font-color1,#1f2328)",
}
"""What templates call ``var(--nb-NAME)``."""

_RULES = {
    "nb-file": ".nb-file{padding:0;background:none;color:inherit}",
    "nb-path": ".nb-path{overflow-wrap:anywhere}",
    # The label lies below what is clipped, unless there is more of it.
    "nb-fold": (
        ".nb-fold{position:relative;max-height:var(--most);overflow:hidden}"
        ".nb-fold:has(>.nb-more>:checked){max-height:none}"
        ".nb-more{display:block;position:absolute;inset:calc(var(--most) - 34px) 0 auto;"
        "padding:9px 0 5px;text-align:center;font-size:12px;line-height:20px;cursor:pointer;"
        "color:var(--nb-brand);background:linear-gradient(transparent,var(--nb-paper) 40%)}"
        '.nb-more::after{content:"Show all"}'
        ".nb-more>input{position:absolute;opacity:0}"
        ".nb-more:focus-within{text-decoration:underline}"
        '.nb-more:has(:checked){position:static;&::after{content:"Show less"}}'
        "@media print{.nb-fold{max-height:none}.nb-more{display:none}}"
    ),
}
"""What is written for the class of an element that has one."""

# In HTML that Jinja2 and markdown-it have made: in all that is not theirs, quotes are escaped.
_STYLE = re.compile(r' style="([^"]*)"')
_QUOTED = re.compile(r'="([\w.%#:+-]+)"(?=[ />])(/?)')
_PICTURE = re.compile(r"<svg role=.*</svg>|<(table|ul)\b.*?</\1>", re.DOTALL)
# In code, elements are spans.
_ENDS = re.compile(r">\n+(?=</(?:div|details)>|\n<(?:div|details)\b)")
_COLOUR = re.compile(r"var\(--nb-(\w+)\)")
# MathJax has commands that write styles and links, which may name a server, or that make such a
# command. (js/src/harmless.ts has the same.)
_NO_MATH = re.compile(
    r"<[^>]*>|\\(?=(?:href|url|style|class|cssId|data|require|includegraphics|csname|mmlToken|bbox"
    r"|def|edef|gdef|xdef|let|(?:re)?newcommand|providecommand|(?:re)?newenvironment|setOptions"
    r"|Newextarrow|enclose|unicode)(?![A-Za-z]))"
)


def with_stylesheet(html: str) -> str:
    """Return HTML with its inline styles in one style element, which goes for nothing else.

    Args:
        html: HTML whose text and attributes are escaped, and in which what has a style has no
            class.
    """
    names: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        style = found[1]
        # It begins with a letter, and two styles on a page don't get one name.
        digest = urlsafe_b64encode(sha256(style.encode()).digest()[:3]).decode()
        names.setdefault(style, f"n{digest}")
        return f' class="{names[style]}"'

    body = _QUOTED.sub(_bare, _STYLE.sub(named, _NO_MATH.sub(_shield, html)))
    # A line of a card is a line of JSON in a notebook, and of its diff.
    body = _PICTURE.sub(lambda found: found[0].replace(">\n<", "><"), body)
    body = _ENDS.sub(">", body)
    # Twice the class, as a page's own rules for tables count more than one.
    rules = [f".{name}{{{style}}}" for style, name in sorted(names.items())]
    rules += [rule for name, rule in _RULES.items() if f"={name}" in body]
    used = {"ink", *(found[1] for rule in rules for found in _COLOUR.finditer(rule))}
    colours = "".join(f"--nb-{name}:{COLOURS[name]};" for name in sorted(used))
    sheet = f".nb-card.nb-card:has(>style){{{colours}{''.join(rules)}}}"
    return f"<div class=nb-card><style>{sheet}</style>\n{body}</div>"


def _shield(found: re.Match[str]) -> str:
    """Keep MathJax, which wants a formula in one text, from a command; tags stay as they are."""
    return "<span>\\</span>" if found[0] == "\\" else found[0]


def _bare(found: re.Match[str]) -> str:
    return f"={found[1]}{' /' if found[2] else ''}"
