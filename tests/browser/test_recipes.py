"""Recipes in JupyterLab: the diagram of a plan is drawn."""

from __future__ import annotations

import re
from urllib.parse import unquote

from playwright.sync_api import expect

from tests.browser.story import Story

RECIPE = """
name: paper
description: Drafts and publishes
version: 1.0.0
context: {topics: [a, b]}
stages:
  - name: draft and check
    steps:
      - {id: list, type: bash, command: "ls", output: files}
      - {id: write, agent: writer, prompt: "Write about {{files}}", foreach: "{{topics}}"}
      - {id: end, type: bash, command: "true", condition: "{{files}} != ''", depends_on: [list]}
    approval: {required: true, prompt: 'Publish `{{files}}`? <img src=x onerror="alert(1)">'}
  - name: publish
    steps: [{id: tell, agent: writer, prompt: Tell}]
"""


def test_plan_of_a_recipe_is_drawn(story: Story) -> None:
    (story.folder / "recipe.yaml").write_text(RECIPE)
    story.open()
    i = story.run("%agents plan recipe.yaml")
    output = story.page.outputs(i).locator(".jp-RenderedMermaid")
    drawn = output.locator("img")
    drawn.wait_for()
    expect(drawn).to_have_js_property("complete", True)  # otherwise it is only as large as its text
    box = drawn.bounding_box()
    assert box and box["width"] > 100 and box["height"] > 200
    svg = unquote(drawn.get_attribute("src") or "").removeprefix("data:image/svg+xml,")
    words = " ".join(re.sub(r"<[^>]*>", " ", svg).split())
    for text in ("draft and check", "for each item of {{topics}}", "Publish `{{files}}`? &lt;img"):
        assert text in words
    # JupyterLab shows the source and a warning when it can't draw.
    expect(output.locator("pre")).to_be_hidden()
    expect(story.page.outputs(i).locator(".jp-mod-warning")).to_have_count(0)
