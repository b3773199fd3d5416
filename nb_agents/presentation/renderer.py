r"""Renders Markdown on cards, with the syntax of JupyterLab's Markdown cells, as static HTML.

Raw HTML is shown as text. Images are shown as text as well, because they would cause requests to a
server. Only files in the agent's workspace and images within the text are embedded. Math keeps its
delimiters for the page's MathJax. A dollar sign that does not start math ("costs $5 here and $7
there") is hidden from MathJax. Code is coloured with the page's colours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import escape
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.tasklists import tasklists_plugin
from pygments import token as kinds
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

MAX_COLOURED = 20_000
"""Maximum length of a coloured code block, in characters."""

_MARGINS = {
    "paragraph_open": "6px 0",
    "bullet_list_open": "6px 0",
    "ordered_list_open": "6px 0",
    "table_open": "0",
    "heading_open": "10px 0 4px",
}
_CELL = "word-break:normal;overflow-wrap:normal"
_WIDE = "overflow-x:auto"
_CODE = f"{_WIDE};white-space:pre"

_COLOURS = {
    kinds.Comment: ("comment", "#408080"),
    kinds.Keyword: ("keyword", "#008000"),
    kinds.Operator.Word: ("keyword", "#008000"),
    kinds.String: ("string", "#ba2121"),
    kinds.Number: ("number", "#008800"),
    kinds.Name.Builtin: ("builtin", "#008000"),
    kinds.Name.Function: ("def", "#0000ff"),
    kinds.Name.Class: ("def", "#0000ff"),
    kinds.Name.Decorator: ("meta", "#aa22ff"),
}
"""JupyterLab's editor colour for each kind of token: its name, and its value in the light theme."""

_BRACKETS = {"(": ")", "[": "]"}
_MATH_STARTS = re.compile(r"\$|\\(?=[(\[]|begin\b)")
_ABSOLUTE = re.compile(r"https?://|mailto:", re.IGNORECASE)

IMAGES = "images"
"""Key in the renderer's environment: a function from an image's address to a data URI or ""."""


@cache
def renderer() -> MarkdownIt:
    """Return the renderer. It has no state, so threads can share it."""
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _highlight, "linkify": True})
    parser.enable(["table", "strikethrough", "linkify"])
    assert parser.linkify is not None  # a required dependency
    # Only addresses with a scheme, because "setup.py" and "a.me" would be links to servers.
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    dollarmath_plugin(
        parser, allow_labels=False, allow_space=False, allow_digits=False, double_inline=True
    )
    amsmath_plugin(parser)
    tasklists_plugin(parser)
    parser.inline.ruler.before("escape", "math_brackets", _brackets)
    parser.core.ruler.push("blocks", _set_blocks)
    for kind, (before, after) in _DELIMITERS.items():
        parser.add_render_rule(kind, _math(before, after))
    for kind, rule in _RULES.items():
        parser.add_render_rule(kind, rule)
    return parser


def _set_blocks(state: StateCore) -> None:
    """Set the card's margins and the text direction of blocks.

    A page's margins are meant for documents, and its text direction is that of its menus.
    """
    for token in state.tokens:
        if margin := _MARGINS.get(token.type):
            token.attrSet("style", f"margin:{margin};text-align:start")
            token.attrSet("dir", "auto")
        elif token.type in ("th_open", "td_open"):
            aligned = token.attrGet("style")  # the alignment from the table's second line
            token.attrSet("style", f"{aligned};{_CELL}" if aligned else _CELL)
        # `with_stylesheet` requires that an element with a style has no class.
        token.attrs.pop("class", None)


def _brackets(state: StateInline, silent: bool) -> bool:
    r"""Parse ``\(…\)`` and ``\[…\]``, which models write, and Jupyter's ``\\(…\\)``."""
    opener = re.compile(r"(\\{1,2})([(\[])").match(state.src, state.pos, state.posMax)
    if opener is None:
        return False
    closer = opener[1] + _BRACKETS[opener[2]]
    end = state.src.find(closer, opener.end(), state.posMax)
    if end < 0:
        return False
    if not silent:
        token = state.push("math_brackets", "math", 0)
        inside = state.src[opener.end() : end]
        token.content = f"\\{opener[2]}{inside}\\{_BRACKETS[opener[2]]}"
    state.pos = end + len(closer)
    return True


_Rule = Callable[[RendererHTML, Sequence[Token], int, Any, Any], str]

_DELIMITERS = {
    "math_inline": ("$", "$"),
    "math_inline_double": ("$$", "$$"),
    "math_block": (f'<p style="{_WIDE}">$$', "$$</p>\n"),
    "math_brackets": ("", ""),
    "amsmath": (f'<p style="{_WIDE}">', "</p>\n"),
}


def _math(before: str, after: str) -> _Rule:
    def rule(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
        return f"{before}{escape(tokens[index].content)}{after}"

    return rule


def _text(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return hide_from_mathjax(tokens[index].content)


def hide_from_mathjax(words: str) -> str:
    """Escape text and split it with spans so that MathJax finds no formula in it."""
    return _MATH_STARTS.sub(r"<span>\g<0></span>", str(escape(words)))


def _image(_: RendererHTML, tokens: Sequence[Token], index: int, __: Any, env: Any) -> str:
    address, about = str(tokens[index].attrGet("src") or ""), tokens[index].content
    data = env[IMAGES](address) if IMAGES in env else ""
    if not data:
        return hide_from_mathjax(f"![{about}]({address})")
    named = f'alt="{escape(about)}"'
    if data != address:  # the page finds an image of the workspace by its address
        named += f' title="{escape(address)}"'
    return f'<img src="{data}" {named} style="max-width:100%;max-height:400px">'


def _link(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    """Render the start of a link.

    Links to files get no address, because the page has no workspace.
    """
    address = str(tokens[index].attrGet("href") or "")
    if not _ABSOLUTE.match(address):
        return f'<a title="{escape(address)}">'
    return renderer.renderToken(tokens, index, options, env)


def _table(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, _: Any
) -> str:
    opened = renderer.renderToken(tokens, index, options, _)
    return f'<div style="overflow-x:auto;margin:8px 0">{opened}'


def _code(rule: str) -> _Rule:
    """Return a rule that renders a code block, whose long lines scroll."""

    def code(
        renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
    ) -> str:
        html: str = getattr(renderer, rule)(tokens, index, options, env)
        return html.replace("<pre>", f'<pre style="{_CODE}">', 1)

    return code


_RULES: dict[str, _Rule] = {
    "fence": _code("fence"),
    "code_block": _code("code_block"),
    "text": _text,
    "text_special": _text,
    "image": _image,
    "link_open": _link,
    "table_open": _table,
    "table_close": lambda *_: "</table></div>\n",
}


def _highlight(code: str, language: str, _: str) -> str:
    """Return code as coloured HTML, or "" to let the renderer show it without colours."""
    if not re.fullmatch(r"[\w+#.-]{1,30}", language) or len(code) > MAX_COLOURED:
        return ""
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return ""
    return "".join(_coloured(kind, str(escape(words))) for kind, words in lexer.get_tokens(code))


def _coloured(kind: Any, html: str) -> str:
    colour = next((_COLOURS[each] for each in reversed(kind.split()) if each in _COLOURS), None)
    if colour is None or not html.strip():
        return html
    name, light = colour
    return f'<span style="color:var(--jp-mirror-editor-{name}-color,{light})">{html}</span>'
