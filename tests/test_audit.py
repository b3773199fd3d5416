"""Lower bounds of dependencies, and the audit's handling of reports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.audit import EXTRAS, faults, names_in

PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8"))
FIXED = {
    "anyio": "4.14.2",  # CVE-2026-63374, CVE-2026-64847
    "cryptography": "50.0.0",  # PYSEC-2026-3552; older wheels hold an older OpenSSL
    "distributed": "2026.1.0",  # CVE-2026-23528
    "filelock": "3.20.3",  # CVE-2025-68146, CVE-2026-22701
    "jinja2": "3.1.6",  # CVE-2025-27516
    "jupyter-server": "2.21.0",  # CVE-2026-44727, CVE-2026-86049
    "jupyterhub": "5.4.6",  # CVE-2026-33709
    "jupyterlab": "4.6.2",  # CVE-2026-73415, CVE-2026-73417, CVE-2026-73627
    "langgraph": "1.0.10",  # CVE-2026-28277
    "langgraph-checkpoint-sqlite": "3.0.1",  # CVE-2025-67644
    "mcp": "1.28.1",  # CVE-2025-66416, CVE-2026-52869, CVE-2026-52870, CVE-2026-59950
    "nbconvert": "7.17.1",  # CVE-2025-53000, CVE-2026-39377, CVE-2026-39378
    "notebook": "7.5.6",  # CVE-2026-40171
    "pyarrow": "23.0.1",  # CVE-2026-25087
    "pydantic-ai-slim": "1.106.0",  # CVE-2026-25580, CVE-2026-46678, CVE-2026-54249
    "pygments": "2.20.0",  # CVE-2026-4539
    "pytest": "9.0.3",  # CVE-2025-71176
    "pyyaml": "5.4",  # CVE-2020-14343
    "uvicorn": "0.11.7",  # CVE-2020-7694
}
"""For each dependency with advisories, the first version that has none of them."""


def requirements() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [PROJECT["project"]["dependencies"], *extras.values()]
    found = [Requirement(line) for each in lines for line in each]
    return [each for each in found if each.name != "nb_agents"]


def test_no_lower_bound_is_below_a_known_security_fix() -> None:
    named = set()
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        [lowest] = [s.version for s in requirement.specifier if s.operator == ">="]
        named.add(name)
        assert Version(lowest) >= Version(FIXED.get(name, "0")), requirement
    assert named >= FIXED.keys()


def test_tests_of_other_versions_use_no_older_pytest() -> None:
    text = Path(__file__).with_name("compat.py").read_text("utf-8")
    [lowest] = re.findall(r'"pytest>=([\d.]+)"', text)
    assert Version(lowest) >= Version(FIXED["pytest"])


def test_every_installable_package_is_audited() -> None:
    tools = {"test", "docs", "beside", "collaboration", "bench"}
    assert {*EXTRAS} | tools == PROJECT["project"]["optional-dependencies"].keys()


def report(*dependencies: dict[str, Any]) -> dict[str, Any]:
    return {"dependencies": [*dependencies], "fixes": []}


FINE = {"name": "anyio", "version": "4.16.0", "vulns": []}
SKIPPED = {"name": "filelock", "skip_reason": "Dependency not found on PyPI"}
BAD = {
    "name": "filelock",
    "version": "3.20.0",
    "vulns": [{"id": "CVE-2025-68146", "fix_versions": ["3.20.1"], "aliases": []}],
}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (report(FINE, {**BAD, "vulns": []}), []),
        (report(FINE, BAD), ["filelock 3.20.0 has CVE-2025-68146, fixed in 3.20.1"]),
        (report(FINE, SKIPPED), ["1 packages were not audited (filelock)"]),
        (report(FINE), ["1 packages were not audited (filelock)"]),
        (report(), ["2 packages were not audited (anyio, filelock)"]),
    ],
)
def test_unaudited_package_does_not_pass(given: dict[str, Any], told: list[str]) -> None:
    found = [*faults(given, names_in("anyio==4.16.0  # why\nFileLock==3.20.0\n\n# none"))]
    assert len(found) == len(told)
    assert all(each.startswith(start) for each, start in zip(found, told, strict=True))
