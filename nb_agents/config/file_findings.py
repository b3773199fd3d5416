"""Findings: the problems of a file, in one type for all user interfaces.

A start, ``%agents check``, editors and the JSON output get the same findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nb_agents.errors import ConfigError, MissingKeyError, UserError

Severity = Literal["error", "warning", "info"]
""""error" if the file is invalid, "warning" if it can't start here, "info" for a notice."""


@dataclass(frozen=True)
class Finding:
    """A problem in a file, or a notice about it for the user.

    Attributes:
        severity: How serious the finding is.
        code: What kind of finding it is, such as "missing-key".
        message: A description of the problem.
        remedy: What to do about it, or "" if the message says so.
        file: The file, or None for a team that was made in Python.
        line: The line, starting at 1; None if the finding is about the whole file.
        column: The column, starting at 1, or None.
    """

    severity: Severity
    code: str
    message: str
    remedy: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        position = ":".join(str(p) for p in (self.file, self.line, self.column) if p is not None)
        return f"{position}: {self.what}" if position else self.what

    @property
    def what(self) -> str:
        """The message and the remedy."""
        return f"{self.message} {self.remedy}".rstrip()

    def facts(self) -> dict[str, Any]:
        """Return the finding as JSON. Without a position, it refers to the first line."""
        return {
            "severity": self.severity,
            "code": self.code,
            "what": self.what,
            "message": self.message,
            "remedy": self.remedy,
            "line": self.line or 1,
            "column": self.column or 1,
        }


def finding_of(error: UserError, severity: Severity = "error") -> Finding:
    """Return an error as a finding, without the other errors of the file."""
    if not isinstance(error, ConfigError):
        return Finding(severity, error.code, _without(str(error), error.remedy), error.remedy)
    message = _without(error.message, error.remedy)
    position = error.file, error.line, error.column
    return Finding(severity, error.code, message, error.remedy, *position)


def findings_of_error(error: ConfigError) -> list[Finding]:
    """Return all errors of a file as findings."""
    return [finding_of(each) for each in (error, *error.others)]


def error_of(finding: Finding) -> ConfigError:
    """Return a finding as an error, which can be raised."""
    position = {"file": finding.file, "line": finding.line, "column": finding.column}
    error = ConfigError(finding.what, **position)  # type: ignore[arg-type]
    error.code, error.remedy = finding.code, finding.remedy
    return error


def errors_in(findings: Iterable[Finding]) -> list[ConfigError]:
    """Return the findings with the severity "error" as errors."""
    return [error_of(each) for each in findings if each.severity == "error"]


def _without(text: str, remedy: str) -> str:
    return text.removesuffix(remedy).rstrip() if remedy else text


def distinct(errors: Iterable[UserError]) -> list[UserError]:
    """Return the errors without repetitions. A missing variable is reported only once."""
    unique: dict[str, UserError] = {}
    for error in errors:
        key = error.variable if isinstance(error, MissingKeyError) else str(error)
        unique.setdefault(key, error)
    return list(unique.values())


def combined(errors: Sequence[UserError], file: str | None = None) -> UserError:
    """Combine errors into a single one that reports them all.

    Args:
        errors: At least one error. A single one is returned unchanged.
        file: The file that they are in, if any.
    """
    if len(errors) == 1:
        return errors[0]
    error = ConfigError(f"The team can't start, for {len(errors)} reasons:", file=file)
    error.code = "cannot-start"
    others = [each if isinstance(each, ConfigError) else ConfigError(str(each)) for each in errors]
    keys = [n for n, each in enumerate(errors) if each.code == MissingKeyError.code]
    for number in keys[:-1]:  # all missing keys have the same remedy: the last error says it
        others[number] = _short(others[number], errors[number].remedy)
    error.others = tuple(others)
    return error


def _short(error: ConfigError, remedy: str) -> ConfigError:
    message = _without(error.message, remedy)
    short = ConfigError(message, file=error.file, line=error.line, column=error.column)
    short.code = error.code
    return short
