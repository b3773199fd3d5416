"""An answer's Markdown on a static card and in JupyterLab, compared with a Markdown cell."""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser
from typing import Any, ClassVar

from nbformat.v4 import new_markdown_cell
from playwright.sync_api import expect

from tests.browser.lab import Lab, NotebookPage, write_notebook
from tests.kit.cards import as_html

SNIPPETS = (
    "plain words",
    "two\nlines",
    "two  \nlines",
    "one\n\ntwo",
    "# One\n\n## Two\n\n###### Six",
    "Set\n===\n\nUnder\n---",
    "**bold** *it* ***both*** __b__ _i_",
    "snake_case_word and 2*3*4",
    "~~gone~~",
    "`code` and ``a ` b``",
    "a\\*b\\_c",
    "- a\n- b\n  - c\n- d",
    "1. a\n2. b\n   1. c",
    "7. seven\n8. eight",
    "- a\n\n- b",
    "- [x] done\n- [ ] open",
    "> said\n> twice\n>\n> > again",
    "---\n\n***",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "| l | c | r |\n|:--|:-:|--:|\n| 1 | 2 | 3 |",
    "| a |\n|---|\n| `x` **y** |",
    "| a | b |\n|---|---|\n| $x$ | 2 |",
    "```\nplain\n  code\n```",
    "```python\ndef f(x):\n    return x + 1  # no\n```",
    "```js\nlet a = '<b>';\n```",
    "```nosuchlanguage\nx < y && z\n```",
    "~~~sql\nselect 1\n~~~",
    "    indented\n    code",
    "- a\n\n  ```python\n  x = 1\n  ```",
    "[text](https://example.org)",
    '[text](https://example.org "title")',
    "[text][r]\n\n[r]: https://example.org",
    "[mail](mailto:a@example.org)",
    "[**bold** link](https://example.org/a_b_c)",
    "# A `code` *title*",
    "&amp; &copy; &lt;b&gt;",
    "a & b > c",
    "“quotes” – dashes… 日本語 مرحبا 🎉",
    "$x$",
    "so $a_1*b_2*c$ holds",
    "$\\{x \\mid x > 0\\}$",
    "$a < b$ and $c > d$",
    "$f(x)\\,dx$",
    "$$\nx^2\n$$",
    "$$x$$",
    "text $$x$$ text",
    "$$\n\\begin{matrix} 1 & 2 \\\\ 3 & 4 \\end{matrix}\n$$",
    "\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}",
    "\\\\(x_1*y*\\\\)",
    "\\\\[x\\\\]",
    "`$x$` is code",
    "```\n$x$\n```",
    "**$x$** and *$y$*",
    "- $x$\n- $y$",
    "> $x$",
    "a\n\n\n\nb",
    "1) one\n2) two",
    "* a\n+ b\n- c",
    "**a**b **c**",
    "line\\\nbreak",
    "see https://example.org/ now",
    # Intended differences.
    "costs $5 here and $7 there",
    "$ x $ and 5 $ each",
    "\\(x_1*y*\\)",
    "\\[x\\]",
    "<b>raw</b>",
    "![a picture](https://example.org/a.png)",
    "[file](data.csv)",
)
MEANT = {
    "costs $5 here and $7 there": "JupyterLab takes two prices for a formula; readers do not",
    "$ x $ and 5 $ each": "so is a dollar beside a space a dollar",
    "\\(x_1*y*\\)": "models write it; JupyterLab wants two backslashes",
    "\\[x\\]": "the same",
    "<b>raw</b>": "raw HTML is shown as text",
    "![a picture](https://example.org/a.png)": "an image is a request",
    "[file](data.csv)": "it is the workspace's, and not beside the notebook",
}
MARKS = {"<b>raw</b>", "[file](data.csv)"}


ALIGN = re.compile("text-align:(left|right|center)")
BLOCKS = "p|li|ul|ol|table|thead|tbody|tr|t[hd]|h[1-6]|blockquote|pre|br|hr"
AROUND_BLOCKS = re.compile(rf"\s*(</?(?:{BLOCKS})\b[^>]*>)\s*")


class Tree(HTMLParser):
    """The elements and texts of HTML, without those for its look."""

    LOOKS = frozenset({"span", "div", "label", "svg", "path"})
    SAME: ClassVar = {"s": "del"}

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._math = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "mjx-container" or self._math:
            self._math += 1
            if self._math == 1:
                self.seen.append("[math]")
            return
        if tag in self.LOOKS:
            return
        by_style = ALIGN.findall(attributes.get("style") or "") or [""]
        kept = {
            "align": (attributes.get("align") or by_style[0]) if tag in ("td", "th") else None,
            "href": attributes.get("href") if tag == "a" else None,
            "start": attributes.get("start"),
            "checked": "yes" if "checked" in attributes else None,
        }
        said = "".join(f" {name}={value}" for name, value in kept.items() if value)
        self.seen.append(f"<{self.SAME.get(tag, tag)}{said}>")

    def handle_endtag(self, tag: str) -> None:
        if self._math:
            self._math -= 1
        elif tag not in self.LOOKS and tag not in ("br", "hr", "img", "input"):
            self.seen.append(f"</{self.SAME.get(tag, tag)}>")

    def handle_data(self, data: str) -> None:
        if not self._math:
            self.seen.append(escape(data, quote=False))


FORMULA = re.compile(
    r"\$\$.+?\$\$|\$[^$]+\$|\\\(.+?\\\)|\\\[.+?\\\]|\\begin\{(\w+)\}.+?\\end\{\1\}", re.DOTALL
)


def static(markdown: str) -> str:
    """Return the structure of the card's HTML, with each formula as one text."""
    html = re.sub(r"<span>(\$|\\)</span>", "\ue000", str(as_html(markdown)))
    parts = re.split(r"(<code.*?</code>)", html, flags=re.DOTALL)
    parts[::2] = [FORMULA.sub("<mjx-container></mjx-container>", part) for part in parts[::2]]
    return structure("".join(parts).replace("\ue000", "$"))


def structure(html: str) -> str:
    tree = Tree()
    tree.feed(html)
    words = re.sub(r"\s+", " ", "".join(tree.seen)).replace(" </code></pre>", "</code></pre>")
    words = re.sub(r"<p>(\[math\])</p>", r"\1", words)
    return AROUND_BLOCKS.sub(r"\1", words).strip()


HTML = """all => all.map(each => {
    const added = each.querySelectorAll('.jp-InternalAnchorLink, .nba-code-buttons');
    added.forEach(element => element.remove());
    return each.innerHTML;
})"""


def test_an_answer_has_the_structure_of_a_markdown_cell(lab: Lab, fresh_tab: NotebookPage) -> None:
    page, count = fresh_tab, len(SNIPPETS)
    assert count - len(MEANT) >= 60
    drawn = (
        "from IPython.display import display\nfrom tests.hostile import bundle\n"
        "for nth, each in enumerate({}): display(bundle(nth, each), raw=True)"
    )
    cells: list[Any] = [new_markdown_cell(each) for each in SNIPPETS]
    cells += [drawn.format(SNIPPETS[:40]), drawn.format(SNIPPETS[40:])]
    write_notebook(lab.root / "snippets.ipynb", cells)
    page.open_notebook("snippets.ipynb")
    page.run_cell(count)
    page.run_cell(count + 1)
    answers = page.page.locator(".nb-answer > .jp-RenderedMarkdown")
    expect(answers).to_have_count(count)
    shown = page.page.locator(".jp-MarkdownOutput")
    expect(shown).to_have_count(count)
    formulas = "document.querySelectorAll('mjx-container').length > 40"
    page.wait_until(lambda: page.page.evaluate(formulas))
    by_lab = [structure(each) for each in shown.evaluate_all(HTML)]
    by_card = [static(each) for each in SNIPPETS]
    by_us = [structure(each) for each in answers.evaluate_all(HTML)]
    of = {each: nth for nth, each in enumerate(SNIPPETS)}
    differ = {
        each: (by_lab[n], by_card[n], by_us[n])
        for each, n in of.items()
        if each not in MEANT and not by_lab[n] == by_card[n] == by_us[n]
    }
    assert not differ, "\n".join("\n  ".join([repr(each), *differ[each]]) for each in differ)
    for each, why in MEANT.items():
        assert by_lab[of[each]] != by_card[of[each]], why
        if each not in MARKS:
            assert by_us[of[each]] == by_card[of[each]], why
