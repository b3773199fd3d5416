"""A recipe in JupyterLab: steps, a gate, a stop in a command, a resume, and the end."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.story import Story, server_team
from tests.browser.test_look import overflows, shoot
from tests.model_server import ModelServer, Reply, Request

RECIPE = """
name: survey
description: Compares three caches for a technical report
version: 1.0.0
context: {stores: [mmap, Redis, SQLite]}
stages:
  - name: research
    steps:
      - {id: plan, agent: researcher, prompt: "Plan a survey of {{stores}}", output: plan}
      - id: measure
        type: bash
        foreach: "{{stores}}"
        as: store
        collect: figures
        command: |
          until [ {{store}} != SQLite ] || [ -e go ]; do sleep 0.05; done
          echo {{store}}: 0.4 ms
      - id: judge
        foreach: "{{figures}}"
        as: figure
        parallel: true
        agent: critic
        prompt: "Judge {{figure}}"
        collect: verdicts
    approval:
      required: true
      prompt: "Write the report from these figures?\\n\\n{{figures}} <b onclick=alert(1)>really</b>"
      timeout: 600
  - name: report
    steps:
      - id: render
        type: bash
        command: |
          echo 'rendering page 1 of 3'
          until [ -e rendered ]; do sleep 0.05; done
          echo rendered
        output: pages
      - id: check
        agent: critic
        prompt: "Check {{pages}}: {{_approval_message}}"
        parse_json: true
        output: review
      - {id: appendix, type: bash, condition: "{{pages}} == 'none'", command: "true"}
      - {id: finish, agent: researcher, prompt: "Finish {{verdicts}}", output: final_output}
"""
REPORT = """A **memory-mapped store** wins when the working set is larger than RAM.

| store | cold read |
|---|---:|
| mmap | 0.4 ms |
| Redis | 0.9 ms |
"""


def answer(request: Request) -> Reply:
    if "Finish" in request.prompt:
        return Reply(text=REPORT)
    if "Check" in request.prompt:
        return Reply(text='{"pages": 3, "faults": ["no axis labels"], "verdict": "good"}')
    return Reply(text="Cold reads first, then the warm ones, each with 10 million keys. " * 3)


def chip(story: Story, i: int, name: str) -> Locator:
    return story.row(i, name).locator(".chip")


def test_recipe_is_approved_stopped_and_resumed(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    for model in ("gpt-5-mini", "gpt-4o"):
        server.script(model, answer)
    (story.folder / "survey.yaml").write_text(RECIPE)
    team = story.team(server_team(server, researcher="gpt-5-mini", critic="gpt-4o"))
    story.page.page.set_viewport_size({"width": 1280, "height": 1500})
    story.open()

    i = story.run(f"%agents --recipe survey.yaml {team}")
    expect(chip(story, i, "measure")).to_have_text("2 of 3")
    expect(chip(story, i, "measure 3")).to_have_text("running")
    expect(story.panel(i).locator(".pending .id")).to_have_text(
        ["judge", "report", "render", "check", "appendix", "finish"]
    )
    expect(story.panel(i).locator(".round")).to_have_text("Step 2 of 7")
    assert overflows(story.panel(i)) == []
    shoot(story, artifacts, "recipe-running", i)

    (story.turn() / "workspaces" / "survey" / "go").touch()
    expect(story.chip(i)).to_have_text("awaiting approval")
    gate = story.panel(i).locator(".gate")
    expect(gate.locator(".prompt")).to_contain_text("<b onclick=alert(1)>really</b>")
    expect(gate.locator("small")).to_contain_text("then denied")
    expect(story.row(i, "measure 3")).to_have_count(0)
    assert overflows(story.panel(i)) == []
    shoot(story, artifacts, "recipe-gate", i)
    story.page.command("application:toggle-left-area")
    story.page.page.set_viewport_size({"width": 760, "height": 1500})
    assert overflows(story.panel(i)) == []
    story.page.screenshot(artifacts / "recipe-narrow.png", i)
    story.page.page.set_viewport_size({"width": 1280, "height": 1500})

    # All buttons work while another cell keeps the kernel busy.
    busy = story.run("import time\nprint('asleep', flush=True)\ntime.sleep(600)", wait=False)
    story.page.wait_for_text("asleep", busy)
    gate.locator("input").fill("with axis labels")
    gate.get_by_role("button", name="Approve").click()
    expect(gate).to_have_count(0)
    expect(story.row(i, "render").locator(".says")).to_have_text("rendering page 1 of 3")
    expect(story.row(i, "research").locator(".says")).to_contain_text("with axis labels")
    assert [e["message"] for e in story.events("approval_given")] == ["with axis labels"]
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_contain_text("Stopping…")
    story.page.click_button("Stop now", i)
    card = story.wait_card(i, "stopped")
    assert story.page.prompt(busy) == "[*]:"
    story.page.interrupt()
    story.page.wait_idle()
    expect(card).to_contain_text(", during report/render")
    expect(card).to_contain_text("rendering page 1 of 3")
    assert overflows(card) == []
    shoot(story, artifacts, "recipe-incomplete", i)

    i = story.run("%agents resume")
    story.panel(i).wait_for()
    (story.turn(2) / "workspaces" / "survey" / "rendered").touch()
    card = story.wait_card(i, "complete")
    expect(card.locator("strong").first).to_have_text("memory-mapped store")
    for summary in card.locator("summary").all()[-1:]:
        summary.click()
    expect(card.get_by_text("skipped").first).to_be_visible()
    assert overflows(card) == []
    shoot(story, artifacts, "recipe-complete", i)
