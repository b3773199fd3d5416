"""Audits the oldest supported dependencies for known vulnerabilities: ``make compat``.

    python -m tests.audit

pip-audit asks PyPI about each. A package that PyPI was not asked about, or did not answer about,
counts as a fault: pip-audit itself would call it none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXTRAS = (
    *("all", "anthropic", "google", "mcp", "acp", "search", "cluster", "lab", "headless"),
    *("openai-agents", "ag2", "langgraph", "otel", "keyring"),
)
"""What users install; the others are tools for working on nb_agents."""

UV = (sys.executable, "-m", "uv")
RESOLVE = (
    *(*UV, "pip", "compile", "--quiet", "--resolution=lowest-direct", "--python-version=3.11"),
    *("--no-annotate", "--no-header", *(f"--extra={extra}" for extra in EXTRAS), "pyproject.toml"),
)
AUDIT = (
    *(*UV, "tool", "run", "--from", "pip-audit>=2.10", "pip-audit", "--no-deps", "--disable-pip"),
    *("--progress-spinner=off", "--format=json"),
)


def main() -> int:
    """Resolve, audit, and return the exit status."""
    print("=== known vulnerabilities of the oldest dependencies", flush=True)
    with tempfile.TemporaryDirectory() as place:
        oldest, report = Path(place, "oldest.txt"), Path(place, "report.json")
        oldest.write_bytes(
            subprocess.run(RESOLVE, cwd=ROOT, check=True, capture_output=True).stdout
        )
        command = (*AUDIT, f"--output={report}", f"--requirement={oldest}")
        ended = subprocess.run(command, capture_output=True, text=True)
        if not report.exists():
            print(f"The audit did not take place: {ended.stderr.strip().splitlines()[-1:]}")
            return 1
        found = [*faults(json.loads(report.read_text()), names_in(oldest.read_text()))]
    print("\n".join(found) or "none", flush=True)
    return 1 if found else 0


def names_in(requirements: str) -> set[str]:
    """Return the names of the packages of a requirements file, as PyPI spells them."""
    lines = (line.split("#")[0].strip() for line in requirements.splitlines())
    return {canonicalize_name(Requirement(line).name) for line in lines if line}


def faults(report: Mapping[str, Any], wanted: Iterable[str]) -> Iterator[str]:
    """Yield each known vulnerability in a report of pip-audit, and each package it leaves out.

    Args:
        report: The report, in its JSON.
        wanted: The names of the packages that it must contain.
    """
    audited = [each for each in report["dependencies"] if "skip_reason" not in each]
    told = {canonicalize_name(each["name"]) for each in audited}
    if missing := sorted({*wanted} - told):
        named = ", ".join(missing[:5]) + ", …" * (len(missing) > 5)
        yield (
            f"{len(missing)} packages were not audited ({named}): PyPI's service for "
            "vulnerabilities could not be reached, or does not know them. Run this where it can."
        )
    for each in audited:
        for known in each["vulns"]:
            fixed = " or ".join(known["fix_versions"]) or "no version"
            yield (
                f"{each['name']} {each['version']} has {known['id']}, fixed in {fixed}: raise its "
                "lower bound in pyproject.toml."
            )


if __name__ == "__main__":
    sys.exit(main())
