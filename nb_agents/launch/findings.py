"""Checks the text of a team file, or of another kind of work, while it is edited.

Nothing is run: modules are not imported, and no program or server is started. A full check of the
file can find more.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from nb_agents.config.file_findings import Finding, findings_of_error
from nb_agents.config.secrets import secrets_of_environment
from nb_agents.errors import ConfigError
from nb_agents.launch.team_kind import kind_named, kind_of_text
from nb_agents.masking import Mask

MAX_FINDINGS = 100


def findings(text: str, file: str) -> list[Finding]:
    """Check a text without running anything.

    Args:
        text: The text of a team file, or of another kind of work.
        file: The path of the file, which resolves relative paths. The file need not exist.
    """
    try:
        finding_list = kind_named(kind_of_text(text)).findings(text, file)
        unmasked = list(islice(dict.fromkeys(finding_list), MAX_FINDINGS))
    except ConfigError as exc:
        unmasked = findings_of_error(exc)
    mask = Mask(secrets_of_environment())
    return [_masked(_in_file(each, file), mask) for each in unmasked]


def _masked(finding: Finding, mask: Mask) -> Finding:
    return replace(finding, message=mask.text(finding.message), remedy=mask.text(finding.remedy))


def _in_file(finding: Finding, file: str) -> Finding:
    """Return a finding of another file, such as a recipe that this one calls, without position."""
    if finding.file in (None, file):
        return finding
    return replace(finding, message=f"{finding.file}: {finding.message}", line=None, column=None)
