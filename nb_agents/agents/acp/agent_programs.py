"""What each known program is given, so that it uses the team's model and nobody's login.

Settings go into the home directory that the program is given; keys go into its environment alone.

Source: the programs' own documentation, and what each was seen to need, with the versions of
`tests/acp/package.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

from nb_agents.config.backends import BackendSpec
from nb_agents.config.document import expand
from nb_agents.config.programs import PROGRAM_TYPES, command_of

_NOT_SHARED = (Path("/"), Path("/home"), Path("/root"), Path("/tmp"), Path("/usr"))


class Prepared(NamedTuple):
    """How a program is started.

    Attributes:
        argv: Its command line.
        env: Its additional variables.
        readable: Where it is installed.
        writable: Where it keeps its settings and sessions.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    readable: tuple[Path, ...]
    writable: tuple[Path, ...]


def prepare(spec: BackendSpec, key: str, home: Path) -> Prepared:
    """Write a program's settings and return how it is started; blocks.

    Args:
        spec: Its backend.
        key: The key of its model.
        home: Its own home directory, which is created.
    """
    own = {name: expand(value.get_secret_value()) for name, value in spec.env.items()}
    argv = command_of(spec.type, spec)
    program = which(os.path.expanduser(argv[0])) or argv[0]
    named = [word for word in argv[1:] if os.path.isfile(word)]
    readable = tuple(
        place for each in (program, which("node") or "", *named) for place in _places(each)
    )
    if spec.use_my_settings:
        person = Path.home()
        names = PROGRAM_TYPES[spec.type].settings if spec.type in PROGRAM_TYPES else ()
        found = tuple(path for name in names if (path := person / name).exists())
        return Prepared(
            (program, *argv[1:]), {"HOME": str(person), **own}, readable, found or (person,)
        )
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    env, files, more = _SETTINGS[spec.type](spec, key, home) if spec.type in _SETTINGS else _NONE
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    given = {name: value for name, value in env.items() if value}
    return Prepared(
        (program, *argv[1:], *more), {"HOME": str(home), **given, **own}, readable, (home,)
    )


def _places(program: str) -> Iterable[Path]:
    """Yield what has to be readable for a program to run: its packages, and where it lies."""
    if not program:
        return
    given, real = Path(os.path.abspath(program)), Path(program).resolve()
    for path in dict.fromkeys([given, real]):
        packages = [each for each in path.parents if each.name == "node_modules"]
        place = packages[-1] if packages else path.parent
        yield place if place not in (*_NOT_SHARED, Path.home()) else path
        if not packages and (place.parent / "lib" / "node_modules").is_dir():
            yield place.parent / "lib" / "node_modules"


_Settings = tuple[dict[str, str], dict[str, str], tuple[str, ...]]
"""Variables, files by their name in the home directory, and arguments."""

_NONE: _Settings = ({}, {}, ())


def _claude_code(spec: BackendSpec, key: str, home: Path) -> _Settings:
    env = {
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_BASE_URL": spec.base_url or "",
        "ANTHROPIC_MODEL": spec.model,
        "ANTHROPIC_SMALL_FAST_MODEL": spec.model,
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        # Else our tools are hidden behind a search.
        "ENABLE_TOOL_SEARCH": "false",
        # As root it refuses to work otherwise.
        "IS_SANDBOX": "1" if os.geteuid() == 0 else "",
    }
    return env, {}, ()


def _codex(spec: BackendSpec, key: str, home: Path) -> _Settings:
    server = {
        "name": "team",
        "base_url": spec.base_url or "https://api.openai.com/v1",
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    lines = [f"model = {json.dumps(spec.model)}"] if spec.model else []
    lines += ['model_provider = "team"', "[model_providers.team]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in server.items()]
    files = {".codex/config.toml": "\n".join([*lines, ""])}
    return {"OPENAI_API_KEY": key, "CODEX_HOME": str(home / ".codex")}, files, ()


def _copilot(spec: BackendSpec, key: str, home: Path) -> _Settings:
    env = {"COPILOT_HOME": str(home / ".copilot"), "COPILOT_AUTO_UPDATE": "false"}
    env["COPILOT_MODEL"] = spec.model
    if spec.base_url:
        env |= {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": spec.base_url,
            "COPILOT_PROVIDER_API_KEY": key,
            # By it the program knows how its model is spoken to.
            "COPILOT_PROVIDER_MODEL_ID": "gpt-5",
        }
    else:
        env["COPILOT_GITHUB_TOKEN"] = key
    return env, {}, ()


def _gemini_cli(spec: BackendSpec, key: str, home: Path) -> _Settings:
    env = {
        "GEMINI_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": spec.base_url or "",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
    }
    files = {".gemini/settings.json": json.dumps(settings)}
    return env, files, ("-m", spec.model) if spec.model else ()


def _opencode(spec: BackendSpec, key: str, home: Path) -> _Settings:
    settings: dict[str, Any] = {"autoupdate": False, "share": "disabled"}
    settings["permission"] = {"bash": "ask", "edit": "ask"}
    if spec.base_url:
        settings["provider"] = {
            "team": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": spec.base_url, "apiKey": "{env:OPENAI_API_KEY}"},
                "models": {spec.model: {"name": spec.model}},
            }
        }
        settings["enabled_providers"] = ["team"]
    if spec.model:
        model = f"team/{spec.model}" if spec.base_url else spec.model
        settings |= {"model": model, "small_model": model}
    files = {".config/opencode/opencode.json": json.dumps(settings)}
    return {"OPENAI_API_KEY": key}, files, ()


def _qwen_code(spec: BackendSpec, key: str, home: Path) -> _Settings:
    env = {
        "OPENAI_API_KEY": key,
        "OPENAI_BASE_URL": spec.base_url or "",
        "OPENAI_MODEL": spec.model,
        "QWEN_CODE_LEGACY_MCP_BLOCKING": "1",
    }
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "tools": {"toolSearch": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
    }
    return env, {".qwen/settings.json": json.dumps(settings)}, ()


_SETTINGS = {
    "claude_code": _claude_code,
    "codex": _codex,
    "copilot": _copilot,
    "gemini_cli": _gemini_cli,
    "opencode": _opencode,
    "qwen_code": _qwen_code,
}
