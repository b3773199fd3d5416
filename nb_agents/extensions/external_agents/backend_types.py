"""The backend types of external agents."""

from __future__ import annotations

from nb_agents.config.backends import BackendSpec, BackendType
from nb_agents.extensions.external_agents.program_types import PROGRAM_TYPES, start_fault


def _start_fault(spec: BackendSpec) -> str:
    return start_fault(spec.type, spec)


def _type(kind: str) -> BackendType:
    variables = PROGRAM_TYPES[kind].variables if kind in PROGRAM_TYPES else ()
    return BackendType(variables=variables, format=None, is_external=True, start_fault=_start_fault)


ACP = _type("acp")
CLAUDE_CODE = _type("claude_code")
CODEX = _type("codex")
COPILOT = _type("copilot")
GEMINI_CLI = _type("gemini_cli")
OPENCODE = _type("opencode")
QWEN_CODE = _type("qwen_code")
