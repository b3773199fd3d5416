"""Answers are drawn as JupyterLab draws Markdown, and send no requests."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Canary, requests_of
from tests.browser.lab import Lab, NotebookPage, write_notebook
from tests.browser.story import Story, agent, server_team
from tests.browser.test_look import shoot
from tests.hostile import texts
from tests.model_server import ModelServer

GOOD = "It is **so**: $a < b$.\n\n```mermaid\nflowchart LR\n  A[first] --> B[second]\n```\n"


def wait_drawn(page: NotebookPage, count: int) -> None:
    """Wait until all cards are shown, and the harmless one is complete."""
    cards = page.page.locator(".nb-card")
    expect(cards).to_have_count(count)
    good = cards.filter(has_text="It is so")
    expect(good.locator(".nb-answer mjx-container")).to_have_count(1)
    expect(good.locator(".nb-answer .jp-RenderedMermaid img")).to_have_count(1)
    expect(page.page.locator(".nb-answer .jp-RenderedMarkdown")).to_have_count(count)


@pytest.mark.parametrize("view", ["lab/tree", "notebooks"])
def test_answer_sends_no_requests(
    lab: Lab, fresh_tab: NotebookPage, canary: Canary, tmp_path: Path, view: str
) -> None:
    page, name = fresh_tab, f"hostile_{view[:3]}.ipynb"
    everything = texts(canary.url)
    assert len(everything) >= 80
    # JupyterLab draws 50 outputs of a cell at first.
    show = "from IPython.display import display\nfrom tests.hostile import bundle, bundles\n"
    each = f"[*bundles({canary.url!r}), bundle(999, {GOOD!r})]"
    cells = [f"{show}for each in {each}[{nth}::3]: display(each, raw=True)" for nth in range(3)]
    write_notebook(lab.root / name, cells)
    asked = requests_of(page.page, lab.url)
    page.open_notebook(name, view=view)
    for nth in range(3):
        page.run_cell(nth)
    wait_drawn(page, len(everything) + 1)

    page.save()
    page.reload()
    wait_drawn(page, len(everything) + 1)

    page.page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    exported = tmp_path / "export.html"
    exported.write_text(HTMLExporter().from_filename(str(lab.root / name))[0], "utf-8")
    before = list(asked)
    with page.page.context.new_page() as export:
        # The export itself loads MathJax and others from other machines.
        export.route(re.compile("^https://"), lambda route: route.abort())
        export.goto(exported.as_uri(), wait_until="load")
        expect(export.locator(".nb-card")).to_have_count(len(everything) + 1)
    assert before == []
    assert canary.asked == []

    page.page.evaluate("url => fetch(url, {mode: 'no-cors'})", canary.url)
    assert len(canary.asked) == 1


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="120">'
    '<rect width="300" height="120" fill="teal"/></svg>'
)
CELL = '{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "Of an agent"}'
KERNEL = '{"kernelspec": {"name": "python3", "display_name": "Python 3"}}'
NOTEBOOK = f'{{"cells": [{CELL}], "metadata": {KERNEL}, "nbformat": 4, "nbformat_minor": 5}}'
FILES = {"plot.svg": SVG, "data.csv": "name,reads\nmmap,17\n", "run.ipynb": NOTEBOOK}
ANSWER = """The **memory-mapped** store wins, by $x^2$.

![the plot](plot.svg)

Read `data.csv`, [the notebook](run.ipynb) and [elsewhere](https://example.org/).
"""
GIF = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
WIDE = f"""See https://example.org/ and ![a dot](data:image/gif;base64,{GIF}).

```python
result = {" + ".join(f"measure_of_run_number({n})" for n in range(20))}
```

$${" + ".join(f"x_{{{n}}}" for n in range(60))}$$
"""


def complete(story: Story, server: ModelServer, answer: str, view: str = "lab/tree") -> int:
    """Run a team in which the first agent writes files and wins. Return the card's cell."""
    server.script("quick", agent(answer, "I have it. ", FILES))
    server.script("slow", agent("Redis is simplest."))
    story.open(view=view)
    i = story.start(
        "Compare three stores", story.team(server_team(server, ada="quick", ben="slow"))
    )
    story.wait_card(i, "complete")
    return i


def test_an_answer_shows_an_image_of_its_workspace_and_opens_its_files(
    story: Story, server: ModelServer
) -> None:
    i = complete(story, server, ANSWER)
    shown = story.card(i).locator(".nb-answer .jp-RenderedMarkdown")
    expect(shown.locator("mjx-container")).to_have_count(1)
    image = shown.get_by_alt_text("the plot")
    expect(image).to_have_js_property("naturalWidth", 300)
    page = story.page.page
    main = page.locator("#jp-main-dock-panel")
    shown.get_by_role("link", name="data.csv").click()
    expect(main.locator(".jp-CSVViewer")).to_be_visible()
    page.locator(".jp-NotebookPanel").wait_for(state="attached")
    story.page.show_notebook(story.page.notebook)
    shown.get_by_role("link", name="the notebook").click()
    expect(main.get_by_role("paragraph").filter(has_text="Of an agent")).to_be_visible()
    story.page.show_notebook(story.page.notebook)
    story.card(i).locator(".nb-path").click()
    listing = main.locator(".jp-FileBrowser .jp-DirListing-content")
    expect(listing.get_by_text("workspaces")).to_be_visible()


def test_code_and_formulas_of_an_answer_scroll_in_a_narrow_window(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    i = complete(story, server, WIDE)
    page = story.page.page
    page.set_viewport_size({"width": 720, "height": 900})
    shown = story.card(i).locator(".nb-answer .jp-RenderedMarkdown").first
    expect(shown.get_by_alt_text("a dot")).to_have_js_property("naturalWidth", 1)
    expect(shown.get_by_role("link", name="https://example.org/")).to_be_visible()
    for wide in (shown.locator("pre"), shown.locator('mjx-container[display="true"]')):
        exceeds = partial(wide.evaluate, "el => el.scrollWidth > el.clientWidth + 100")
        story.page.wait_until(exceeds)
        assert wide.evaluate("el => getComputedStyle(el).overflowX") == "auto"
        assert wide.evaluate("el => el.scrollHeight <= el.clientHeight + 1")
    shoot(story, artifacts, "wide-answer", i)


def test_long_answer_is_folded_until_opened(story: Story, server: ModelServer) -> None:
    i = complete(story, server, "\n\n".join(f"Paragraph {n} of it." for n in range(60)))
    card = story.card(i)
    # Until then the card is drawn again, which folds it again.
    drawn = card.locator(".nb-answer .jp-RenderedMarkdown").last
    expect(drawn.get_by_text("Paragraph 59 of it.")).to_be_attached()
    assert height(card) <= 600
    card.get_by_role("checkbox", name="Show all").check(force=True)
    story.page.wait_until(lambda: height(card) > 1500)


@pytest.mark.parametrize("kind", ["stopped_recipe", "complete_recipe", "sweep"])
def test_cards_of_recipes_and_sweeps_fold_and_look_like_markdown_cells(
    story: Story, kind: str, artifacts: Path
) -> None:
    story.open()
    story.harmless.append(r"404 \(Not Found\) .*/turn_1\?")  # a turn that was never on disk
    show = "from IPython.display import display\nfrom tests import long_cards"
    i = story.run(f"{show}\ndisplay(long_cards.{kind}(), raw=True)")
    card = story.card(i)
    first = card.locator(".nb-answer .jp-RenderedMarkdown").first
    expect(first.locator("strong")).to_have_text("so")
    expect(first.locator("mjx-container")).to_have_count(1)
    shoot(story, artifacts, f"long-{kind}", i)
    assert height(card) <= 600
    card.get_by_role("checkbox", name="Show all").check(force=True)
    story.page.wait_until(lambda: height(card) > 800)


def height(card: Locator) -> float:
    box = card.bounding_box()
    return box["height"] if box else 0.0
