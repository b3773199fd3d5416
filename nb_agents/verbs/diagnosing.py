"""Verbs that explain what is wrong: with the environment, or with a turn."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from nb_agents.config.team import TeamSpec, team_from_options
from nb_agents.errors import UserError
from nb_agents.launch.environment_report import Check, check_environment
from nb_agents.launch.run import Run
from nb_agents.launch.stream_recording import record_stream
from nb_agents.launch.team_findings import load_team
from nb_agents.nouns import count
from nb_agents.presentation import text
from nb_agents.presentation.asking import CELL
from nb_agents.presentation.explanation import explain_run
from nb_agents.verbs.outcome import CheckReport, Reply
from nb_agents.verbs.verb import Caller


def doctor(
    root: Path,
    caller: Caller,
    *,
    record: str | None = None,
    config: str | None = None,
    model: str | None = None,
    backend: str | None = None,
    agent: str | None = None,
    task: str | None = None,
) -> CheckReport:
    """Check the environment, and print a report to paste into an issue. It contains no secrets.

    Args:
        root: The session root.
        caller: The user interface that makes the request.
        record: A file to write instead: a request to a model and its raw response, without keys.
        config: The team file with the model, or None.
        model: The model, or None.
        backend: The provider of the model, or None.
        agent: The agent of the team file, if several have a model.
        task: The text of the request, or None for a short one.
    """
    if record is not None:
        team = team_from_options(config, model, backend=backend)
        return _record(Path(record).expanduser(), team, agent or "", task or "")
    if any(each is not None for each in (config, model, backend, agent, task)):
        raise UserError("A model is only asked with --record FILE. Add it.")
    front_end = "notebook" if caller.entry_point is CELL else "terminal"
    checks = check_environment(root, front_end)
    problems = [each for each in checks if each.state == "problem"]
    facts = {"is_ok": not problems, "checks": [each._asdict() for each in checks]}
    found = count(len(problems), "problem") if problems else "no problem"
    lines = "\n".join([*map(_line, checks), f"nb-agents doctor: {found} found."])
    return CheckReport(Reply(lines, facts), (), (), is_ok=not problems)


def _record(path: Path, team: str | TeamSpec | None, agent: str, task: str) -> CheckReport:
    if team is None:
        raise UserError("--record needs a model. Add --model TYPE:MODEL or --config FILE.")
    spec = load_team(team) if isinstance(team, str) else team
    recorded = record_stream(spec, path, agent, task)
    lines = [
        f"Wrote {text.shown_path(path)} ({text.size(recorded.size)}): a request to "
        f"{recorded.model} and the response, HTTP {recorded.status}.",
        "Keys, cookies and account ids are removed. The task and the reply are not: read the file "
        "before you attach it to an issue.",
    ]
    if recorded.failure:
        lines.append(f"The reply could not be read. {recorded.failure}")
    facts = {"path": str(path), **recorded._asdict()}
    return CheckReport(Reply("\n".join(lines), facts), (), (), is_ok=not recorded.failure)


def why(run: Run, caller: Caller) -> Reply:
    """Explain a turn without a model: why it ended, its costs, moved votes and what to do next."""
    explanation = explain_run(run, caller.entry_point)
    return Reply(str(explanation), asdict(explanation))


_SIGNS = {"ok": "ok", "note": "--", "problem": "!!"}


def _line(check: Check) -> str:
    return f"{_SIGNS[check.state]} {check.name}: {check.text}"
