"""Verbs that act on team files and recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import indent

from nb_agents.launch.file_report import check_file
from nb_agents.launch.team_kind import kind_of_source
from nb_agents.launch.team_report import AgentReport
from nb_agents.verbs.outcome import CheckReport, Reply
from nb_agents.verbs.verb import Caller


def check(
    file: str,
    caller: Caller,
    *,
    config: str | None = None,
    bundles: Sequence[str] = (),
    connect: bool = False,
) -> CheckReport:
    """Check a team file or a recipe without running it."""
    report = check_file(file, config, bundles, connects=connect, root=caller.root)
    agents = [agent._asdict() for agent in report.agents]
    findings = [{**asdict(each), "file": each.file or file} for each in report.findings]
    facts = {
        "can_start": report.can_start,
        "agents": agents,
        "lines": report.lines,
        "findings": findings,
        "estimate": report.estimate.facts() if report.estimate else None,
    }
    reply = Reply("\n".join(report.lines), facts)
    return CheckReport(reply, AgentReport._fields, report.agents, report.can_start)


def plan(file: str, caller: Caller) -> Reply:
    """Show what a recipe would do, without running it."""
    lines, diagram = kind_of_source(file).diagram(file)
    facts = {"lines": lines, "mermaid": diagram}
    # An indented block: no text in a line can end it.
    text = indent("\n".join(lines), "    ")
    return Reply("\n".join(lines), facts, markdown=f"```mermaid\n{diagram}\n```\n\n{text}")
