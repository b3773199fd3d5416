"""Untrusted text outside of cards drawn by the plugin: open rows and untrusted notebooks."""

from __future__ import annotations

import json

from nbformat import v4
from playwright.sync_api import expect

from tests.browser.conftest import Canary, requests_of
from tests.browser.lab import Lab, NotebookPage, write_notebook
from tests.browser.story import Story, server_team
from tests.browser.test_answers import GOOD
from tests.hostile import bundle, bundles, recipes_and_sweeps, texts
from tests.model_server import ModelServer, Reply, ToolCall

AGENTS = 3
OPEN_FENCE = "```html\n"
DRAW = """everything => {
  const host = document.querySelector('.nba .transcript');
  for (const markdown of everything) {
    const part = host.appendChild(document.createElement('div'));
    part.className = 'asked';
    const detail = {markdown, agent: 'a0'};
    part.dispatchEvent(new CustomEvent('nb-agents-draw', {bubbles: true, detail}));
  }
}"""


def test_open_row_sends_no_requests(
    lab: Lab, story: Story, server: ModelServer, canary: Canary
) -> None:
    # A workspace image is requested from the Jupyter server, which doesn't have it.
    story.harmless.append(r"404 .*/workspaces/a\d/\w+\.png")
    everything = sorted(texts(canary.url), key=lambda each: each.startswith(OPEN_FENCE))
    for nth in range(AGENTS):
        mine = everything[nth::AGENTS]
        # An unclosed code block comes last, because it extends to the end of the answer.
        answer = "\n\n".join([GOOD, *mine])
        file = ToolCall("write_file", {"path": "a.md", "content": answer})
        first = Reply(text=answer, thoughts=answer, tool_calls=(file,))
        then = Reply(text=mine[0], tool_calls=(ToolCall("new_answer", {"content": answer}),))
        server.script(f"m{nth}", first, then, Reply(text="I look. " * 9, hang_after=4))
    asked = requests_of(story.page.page, lab.url)
    story.open()
    team = story.team(server_team(server, **{f"a{n}": f"m{n}" for n in range(AGENTS)}))
    i = story.start(f"Compare ![x]({canary.url}) <img src={canary.url}>", team)
    panel = story.panel(i)
    for nth in range(AGENTS):
        story.row(i, f"a{nth}").locator("button.open").click()
        shown = panel.get_by_role("log", name=f"Transcript of a{nth}")
        drawn = shown.locator(".answer .jp-RenderedMarkdown")
        expect(drawn.locator("mjx-container").first).to_be_visible()
        expect(drawn.locator(".jp-RenderedMermaid img").first).to_be_visible()
    for part in panel.locator(".transcript details").all():
        part.evaluate("part => part.open = true")

    story.page.page.evaluate(DRAW, everything)
    # The row's own parts are still drawn meanwhile.
    expect(panel.locator(".asked .jp-RenderedMarkdown")).to_have_count(len(everything))
    assert asked == []
    assert canary.asked == []
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped")
    assert canary.asked == []


def test_untrusted_notebook_sends_no_requests(
    lab: Lab, fresh_tab: NotebookPage, canary: Canary
) -> None:
    every = [*bundles(canary.url), bundle(999, GOOD), *recipes_and_sweeps(canary.url)]
    outputs = [v4.new_output("display_data", json.loads(json.dumps(each))) for each in every]
    cells = [v4.new_code_cell("", outputs=outputs[nth::4]) for nth in range(4)]
    write_notebook(lab.root / "stranger.ipynb", cells)
    page = fresh_tab.page
    asked = requests_of(page, lab.url)
    fresh_tab.open_notebook("stranger.ipynb", kernel=False)
    trusted = "panel.content.widgets.map(cell => cell.model.trusted)"
    assert fresh_tab._ask(trusted) == [False] * 4
    expect(page.locator(".nb-card")).to_have_count(len(every))
    expect(page.locator(".nb-answer:not(:has(.jp-RenderedMarkdown))")).to_have_count(0)
    assert page.locator(".nb-answer").count() > 3 * len(texts(canary.url))
    good = page.locator(".nb-card").filter(has_text="It is so")
    expect(good.locator(".nb-answer mjx-container")).to_have_count(1)
    expect(good.locator(".nb-answer .jp-RenderedMermaid img")).to_have_count(1)
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    expect(page.locator(".nb-card details[open]").last).to_be_attached()
    assert asked == []
    assert canary.asked == []
