"""A recipe in which a step's agent calls another agent, with its own row and Stop button."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.story import Story, server_team
from tests.browser.test_look import overflows, shoot
from tests.model_server import ModelServer, Reply, Request, ToolCall

RECIPE = """
name: survey
description: Compares two caches for a technical report
version: 1.0.0
stages:
  - name: research
    steps:
      - {id: plan, agent: researcher, prompt: Plan a survey of two caches, output: plan}
      - {id: measure, type: bash, command: "until [ -e go ]; do sleep 0.05; done; echo 0.4 ms"}
  - name: report
    steps: [{id: finish, agent: researcher, prompt: "Finish {{plan}}", output: final_output}]
"""
CHECKS = "The figures of the second table are those of a warm cache, so that nothing is said of "
FOUND = "Nobody could check the figures; the wording is fine."


def researcher(request: Request) -> Reply:
    if "Finish" in request.prompt:
        return Reply(text="A **memory-mapped store** wins.")
    if request.messages[-1]["role"] != "tool":
        ask = ToolCall("call_agent", {"name": "critic", "input": "What is wrong with my plan?"})
        return Reply(text="I have it criticised first. ", tool_calls=(ask,))
    return Reply(text="Cold reads first, then the warm ones, each with 10 million keys.")


def critic(request: Request) -> Reply:
    if request.messages[-1]["role"] == "tool":
        return Reply(text=FOUND)
    ask = ToolCall("call_agent", {"name": "checker", "input": "Are the figures right?"})
    return Reply(text="The wording is fine, and the figures are another's. ", tool_calls=(ask,))


def chip(story: Story, i: int, name: str) -> Locator:
    return story.row(i, name).locator(".chip")


def test_called_agent_is_stopped_in_its_row_and_the_recipe_continues(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    server.script("gpt-5-mini", researcher)
    server.script("gpt-4o", critic)
    server.script("gpt-4.1-mini", Reply(text=CHECKS * 3, hang_after=30))
    (story.folder / "survey.yaml").write_text(RECIPE)
    models = {"researcher": "gpt-5-mini", "critic": "gpt-4o", "checker": "gpt-4.1-mini"}
    team = server_team(server, **models)
    for caller, called in ((0, "critic"), (1, "checker")):
        team["agents"][caller]["backend"]["can_call"] = called
    story.page.page.set_viewport_size({"width": 1280, "height": 1500})
    story.open()

    i = story.run(f"%agents --recipe survey.yaml {story.team(team)}")
    story.expect_writing(i, "checker#1")
    expect(chip(story, i, "plan")).to_have_text("call_agent")
    rows = story.panel(i).locator("tbody tr")
    expect(rows.locator(".id")).to_have_text(
        ["research", "plan", "critic#1", "checker#1", "measure", "report", "finish"]
    )
    depths = rows.evaluate_all("rows => rows.map(r => r.style.getPropertyValue('--nba-depth'))")
    assert depths == ["0", "1", "2", "3", "1", "0", "1"]
    assert overflows(story.panel(i)) == []
    shoot(story, artifacts, "recipe-called", i)
    story.page.command("application:toggle-left-area")
    story.page.page.set_viewport_size({"width": 760, "height": 1500})
    assert overflows(story.panel(i)) == []
    story.page.screenshot(artifacts / "recipe-called-narrow.png", i)
    story.page.page.set_viewport_size({"width": 1280, "height": 1500})

    checker = "research/plan/critic#1/checker#1"
    story.page.click_button(f"Stop {checker}", i)
    story.page.click_button(f"Stop {checker} now", i)
    expect(chip(story, i, "checker#1")).to_have_text("cut")
    expect(chip(story, i, "critic#1")).to_have_text("complete")
    expect(story.row(i, "critic#1").locator(".says")).to_have_text(FOUND)
    expect(chip(story, i, "plan")).to_have_text("complete")
    expect(chip(story, i, "measure")).to_have_text("running")
    expect(rows.locator("button.one:visible")).to_have_count(0)
    expect(story.chip(i)).to_have_text("running")
    shoot(story, artifacts, "recipe-called-stopped", i)
    (story.turn() / "workspaces" / "survey" / "go").touch()
    card = story.wait_card(i, "complete")
    assert [(e["agent"], e["outcome"]) for e in story.events("agent_ended")] == [
        (checker, "killed"),
        (checker.rpartition("/")[0], "finished"),
    ]
    card.locator("summary").last.click()
    expect(card.get_by_text("■ cut")).to_be_visible()
    expect(card.get_by_text(FOUND)).to_be_visible()
    assert overflows(card) == []
    shoot(story, artifacts, "recipe-called-complete", i)
