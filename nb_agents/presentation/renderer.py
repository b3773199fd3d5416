r"""The renderer of Markdown on cards: what a Markdown cell of JupyterLab takes, as static HTML.

Raw HTML is shown as text, and images are disabled, as an image is a request to somebody's server.
Math stays as it was written, delimiters included, for the page's MathJax; a dollar that begins none
("costs $5 here and $7 there") is shielded from it. Code is coloured with the page's own colours.
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
"""Characters of a code block up to which it is coloured."""

_MARGINS = {
    "paragraph_open": "6px 0",
    "bullet_list_open": "6px 0",
    "ordered_list_open": "6px 0",
    "table_open": "0",
    "heading_open": "10px 0 4px",
}
_CELL = "word-break:normal;overflow-wrap:normal"

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
"""For kinds of tokens, JupyterLab's names of its editor's colours, and its light ones."""

_BRACKETS = {"(": ")", "[": "]"}
_DOLLAR = "<span>$</span>"
"""MathJax looks for the two ends of a formula in text without elements between."""


@cache
def renderer() -> MarkdownIt:
    """Return the renderer, which threads share: it keeps no state."""
    made = MarkdownIt("commonmark", {"html": False, "highlight": _highlight})
    made.enable(["table", "strikethrough"]).disable("image")
    dollarmath_plugin(made, allow_labels=False, allow_space=False, allow_digits=False)
    amsmath_plugin(made)
    tasklists_plugin(made)
    made.inline.ruler.before("escape", "math_brackets", _brackets)
    made.core.ruler.push("blocks", _set_blocks)
    for kind, (before, after) in _DELIMITERS.items():
        made.add_render_rule(kind, _math(before, after))
    for kind, rule in _RULES.items():
        made.add_render_rule(kind, rule)
    return made


def _set_blocks(state: StateCore) -> None:
    """Give blocks the card's margins, and the direction of their text.

    A page's own margins are meant for documents, and its direction is that of its menus.
    """
    for token in state.tokens:
        if margin := _MARGINS.get(token.type):
            token.attrSet("style", f"margin:{margin};text-align:start")
            token.attrSet("dir", "auto")
        elif token.type in ("th_open", "td_open"):
            aligned = token.attrGet("style")  # by the table's second line
            token.attrSet("style", f"{aligned};{_CELL}" if aligned else _CELL)
        # What has a style has no class.
        token.attrs.pop("class", None)


def _brackets(state: StateInline, silent: bool) -> bool:
    r"""Take ``\(…\)`` and ``\[…\]`` as they are written."""
    opener = state.src[state.pos : state.pos + 2]
    closer = f"\\{_BRACKETS.get(opener[1:], '')}"
    if opener[:1] != "\\" or len(closer) == 1:
        return False
    end = state.src.find(closer, state.pos + 2, state.posMax)
    if end < 0:
        return False
    if not silent:
        token = state.push("math_brackets", "math", 0)
        token.content = state.src[state.pos : end + 2]
    state.pos = end + 2
    return True


_Rule = Callable[[RendererHTML, Sequence[Token], int, Any, Any], str]

_DELIMITERS = {
    "math_inline": ("$", "$"),
    "math_block": ("<p>$$", "$$</p>\n"),
    "math_brackets": ("", ""),
    "amsmath": ("<p>", "</p>\n"),
}


def _math(before: str, after: str) -> _Rule:
    def rule(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
        return f"{before}{escape(tokens[index].content)}{after}"

    return rule


def _text(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return str(escape(tokens[index].content)).replace("$", _DOLLAR)


def _table(made: RendererHTML, tokens: Sequence[Token], index: int, options: Any, _: Any) -> str:
    opened = made.renderToken(tokens, index, options, _)
    return f'<div style="overflow-x:auto;margin:8px 0">{opened}'


def _table_end(*_: Any) -> str:
    return "</table></div>\n"


_RULES: dict[str, _Rule] = {
    "text": _text,
    "text_special": _text,
    "table_open": _table,
    "table_close": _table_end,
}


def _highlight(code: str, language: str, _: str) -> str:
    """Return code as HTML; "" where its language is unknown, for the renderer to escape it."""
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
