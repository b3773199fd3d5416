"""Verbs that explain what is wrong: with the environment, or with a turn."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from nb_agents.launch.environment_report import Check, check_environment
from nb_agents.launch.run import Run
from nb_agents.nouns import count
from nb_agents.presentation.asking import CELL
from nb_agents.presentation.explanation import explain_run
from nb_agents.verbs.outcome import CheckReport, Reply
from nb_agents.verbs.verb import Caller


def doctor(root: Path, caller: Caller) -> CheckReport:
    """Check the environment, and print a report to paste into an issue. It contains no secrets."""
    front_end = "notebook" if caller.entry_point is CELL else "terminal"
    checks = check_environment(root, front_end)
    problems = [each for each in checks if each.state == "problem"]
    facts = {"is_ok": not problems, "checks": [each._asdict() for each in checks]}
    found = count(len(problems), "problem") if problems else "no problem"
    text = "\n".join([*map(_line, checks), f"nb-agents doctor: {found} found."])
    return CheckReport(Reply(text, facts), (), (), is_ok=not problems)


def why(run: Run, caller: Caller) -> Reply:
    """Explain a turn without a model: why it ended, its costs, moved votes and what to do next."""
    explanation = explain_run(run, caller.entry_point)
    return Reply(str(explanation), asdict(explanation))


_SIGNS = {"ok": "ok", "note": "--", "problem": "!!"}


def _line(check: Check) -> str:
    return f"{_SIGNS[check.state]} {check.name}: {check.text}"
