"""Untrusted Markdown: no renderer finds HTML in it, and code is not changed."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from nb_agents.presentation.markdown import as_html, without_html

READERS = {
    "commonmark": MarkdownIt("commonmark", {"html": True}),
    "with tables": MarkdownIt("commonmark", {"html": True}).enable("table"),
    "default": MarkdownIt("js-default", {"html": True}),
}

PIECES = (
    *("<script>alert(1)</script>", "<b>", "</div>", "<!-- ", " -->", "<?php", "<![CDATA[", "<a\n"),
    *("<img src=x onerror=alert(1)>", "![i](http://e)", "![", "](x)", "[f]: <a b>", "<http://e>"),
    *("`", "``", "```", "```html", "~~~", "\\`", "\\", "\\\\", "&lt;", "!", "|", "| - |", "<", ">"),
    *("\n", "\n\n", "\n    ", "\n\t", "\n> ", "\n- ", "\n1. ", "\n# ", "\n---\n", " ", "word"),
    *("\r\n", "\r", "\0", "\u2028", "\x0b", "$", "$$", "*", "_", "<pre>", "</pre>", "<style>"),
)
WORDS = st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text(max_size=60)


def found(markdown: str) -> set[str]:
    """Return the HTML and images that any parser accepting raw HTML finds."""
    tokens = [token for reader in READERS.values() for token in reader.parse(markdown)]
    every = [each for token in tokens for each in (token, *(token.children or ()))]
    return {each.type for each in every} & {"html_block", "html_inline", "image"}


@given(WORDS)
@example("`a\n<div>\nb`")
@example('<a href="`">`')
@example("[f]: <a b>\n    <script>")
@example("| a | b |\n|---|---|\n| ` | <b>` |")
@example("```\n<script>\n```\n```\n<!-- \n")
def test_no_parser_finds_html_or_an_image(words: str) -> None:
    assert found(without_html(words)) == set()


@given(st.lists(WORDS, max_size=4))
def test_no_parser_finds_html_in_several_joined_texts(texts: list[str]) -> None:
    assert found(without_html("\n\n".join(["### Task", *texts, "> a note"]))) == set()


_CODE_OR_LINKS = ("`", "~", "    ", "\t", "](", "]:")
_SIMPLE = [p for p in PIECES if not any(each in p for each in _CODE_OR_LINKS)]


@given(st.lists(st.sampled_from(_SIMPLE), max_size=25).map("".join))
def test_page_shows_the_same_text_as_before(words: str) -> None:
    page = MarkdownIt("commonmark", {"html": False}).disable("autolink")
    assert page.render(without_html(words)) == page.render(words)


@pytest.mark.parametrize(
    "code",
    [
        "```cpp\n#include <vector>\nstd::vector<int> x;\n```",
        "Take `List<int>` or ``a ` <b>``.",
        "    if a < b and c > d:\n        <indented>\n",
        "- first\n\n  ```html\n  <b>bold</b> ![i](x)\n  ```\n",
        "> ```\n> <quoted>\n> ```",
    ],
)
def test_code_is_not_changed(code: str) -> None:
    assert without_html(code) == code


def test_text_outside_of_code_reads_as_written() -> None:
    assert without_html("if a <b> c ![i](u)") == "if a &lt;b> c !\\[i](u)"
    shown = MarkdownIt("commonmark", {"html": True}).render(without_html("a <b> & `<c>`"))
    assert shown == "<p>a &lt;b&gt; &amp; <code>&lt;c&gt;</code></p>\n"


def test_text_without_html_and_images_is_not_changed() -> None:
    text = "# Title\n\n*a* & b > c [link](http://e) | x |\r\n`code`"
    assert without_html(text) == text.replace("\r\n", "\n")


def test_raw_html_is_shown_as_text() -> None:
    assert "<b>" not in as_html("<b>x</b> ![i](http://e)")
    assert "<img" not in as_html("![i](http://e)")
    assert "<strong>x</strong>" in as_html("**x**")


@pytest.mark.parametrize(
    "math",
    [
        r"$a\_b$",
        r"$c*d*e$",
        r"$\{x \mid x > 0\}$",
        r"$f(x)\,dx$",
        r"\(a_1*b_2*c\)",
        r"\[x_1 + *y*\]",
        "$$\n\\begin{matrix} 1 \\\\ 2 \\end{matrix}\n$$",
        "\\begin{align}\na_1 &= b \\\\\nc &= *d*\n\\end{align}",
    ],
)
def test_math_on_a_card_is_not_changed(math: str) -> None:
    assert math in unescape(as_html(f"So\n\n{math}\n\nholds."))


def test_dollars_of_a_price_are_not_math() -> None:
    html = as_html("It costs $5 here and $7 there.")
    # MathJax looks for both ends in one run of text.
    assert not re.search(r"\$[^<]*\$", html)
    assert re.sub("<[^>]*>", "", html) == "It costs $5 here and $7 there.\n"


def test_code_is_coloured_and_not_changed() -> None:
    code = "def f(x):\n    return '<b>' # no\n"
    html = as_html(f"```python\n{code}```")
    assert '<span style="color:var(--jp-mirror-editor-keyword-color,#008000)">def</span>' in html
    assert unescape(re.sub("<[^>]*>", "", html)) == f"{code}\n"


def test_wide_table_scrolls_without_breaking_words() -> None:
    html = as_html("| a | b |\n|---|--:|\n| 1 | 2 |")
    assert html.startswith('<div style="overflow-x:auto')
    assert "text-align:right;word-break:normal;overflow-wrap:normal" in html


def test_task_lists_and_strikethrough_are_rendered() -> None:
    html = as_html("- [x] done\n- [ ] open\n\n~~gone~~")
    assert html.count('type="checkbox"') == 2
    assert html.count('checked="checked"') == 1
    assert "<s>gone</s>" in html


def test_addresses_with_a_scheme_are_links() -> None:
    html = as_html("see https://example.org/a_b, setup.py, a.me, me@example.org and `http://e`")
    assert html.count("<a ") == 1
    assert '<a href="https://example.org/a_b">https://example.org/a_b</a>,' in html


def test_long_lines_of_code_and_formulas_scroll() -> None:
    for block in ("```py\nx = 1\n```", "    indented", "$$\nx\n$$", "\\begin{align}x\\end{align}"):
        assert "overflow-x:auto" in as_html(block)
