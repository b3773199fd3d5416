r"""The renderer of Markdown on cards: what a Markdown cell of JupyterLab takes, as static HTML.

Raw HTML is shown as text, and so is an image, which would be a request to somebody's server, unless
it is a file of the agent's own workspace: that one is embedded. Math stays as it was written,
delimiters included, for the page's MathJax; a dollar that begins none ("costs $5 here and $7
there") is shielded from it. Code is coloured with the page's own colours.
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
_MATH_STARTS = re.compile(r"\$|\\(?=[(\[]|begin\b)")
_ABSOLUTE = re.compile(r"https?://|mailto:", re.IGNORECASE)

IMAGES = "images"
"""In the renderer's environment: gives the data URI of an image's address, or ""."""


@cache
def renderer() -> MarkdownIt:
    """Return the renderer, which threads share: it keeps no state."""
    made = MarkdownIt("commonmark", {"html": False, "highlight": _highlight})
    made.enable(["table", "strikethrough"])
    dollarmath_plugin(
        made, allow_labels=False, allow_space=False, allow_digits=False, double_inline=True
    )
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
    r"""Take ``\(…\)`` and ``\[…\]``, as models write them, and ``\\(…\\)``, as Jupyter has it."""
    found = re.compile(r"(\\{1,2})([(\[])").match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    closer = found[1] + _BRACKETS[found[2]]
    end = state.src.find(closer, found.end(), state.posMax)
    if end < 0:
        return False
    if not silent:
        token = state.push("math_brackets", "math", 0)
        inside = state.src[found.end() : end]
        token.content = f"\\{found[2]}{inside}\\{_BRACKETS[found[2]]}"
    state.pos = end + len(closer)
    return True


_Rule = Callable[[RendererHTML, Sequence[Token], int, Any, Any], str]

_DELIMITERS = {
    "math_inline": ("$", "$"),
    "math_inline_double": ("$$", "$$"),
    "math_block": ("<p>$$", "$$</p>\n"),
    "math_brackets": ("", ""),
    "amsmath": ("<p>", "</p>\n"),
}


def _math(before: str, after: str) -> _Rule:
    def rule(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
        return f"{before}{escape(tokens[index].content)}{after}"

    return rule


def _text(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return shielded(tokens[index].content)


def shielded(words: str) -> str:
    """Escape words in which MathJax, which wants a formula in one text, is to find none."""
    return _MATH_STARTS.sub(r"<span>\g<0></span>", str(escape(words)))


def _image(_: RendererHTML, tokens: Sequence[Token], index: int, __: Any, env: Any) -> str:
    address, about = str(tokens[index].attrGet("src") or ""), tokens[index].content
    data = env[IMAGES](address) if IMAGES in env else ""
    if not data:
        return shielded(f"![{about}]({address})")
    named = f'alt="{escape(about)}" title="{escape(address)}"'
    return f'<img src="{data}" {named} style="max-width:100%;max-height:400px">'


def _link(made: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Open a link; one to a file leads nowhere in a page that does not have the workspace."""
    address = str(tokens[index].attrGet("href") or "")
    if not _ABSOLUTE.match(address):
        return f'<a title="{escape(address)}">'
    return made.renderToken(tokens, index, options, env)


def _table(made: RendererHTML, tokens: Sequence[Token], index: int, options: Any, _: Any) -> str:
    opened = made.renderToken(tokens, index, options, _)
    return f'<div style="overflow-x:auto;margin:8px 0">{opened}'


_RULES: dict[str, _Rule] = {
    "text": _text,
    "text_special": _text,
    "image": _image,
    "link_open": _link,
    "table_open": _table,
    "table_close": lambda *_: "</table></div>\n",
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
