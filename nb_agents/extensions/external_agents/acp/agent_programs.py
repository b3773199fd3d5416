"""Configures each known external agent, so that it uses the team's model and not the user's login.

Settings are files in the agent's home directory. Keys are only in its environment.

Source: the agents' documentation, and tests with the versions of `tests/acp/package.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

from nb_agents.config.backends import BackendSpec
from nb_agents.config.document import expand
from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import RefusedError, printable_name
from nb_agents.disk.private import FOLDER_MODE
from nb_agents.extensions.external_agents.program_types import PROGRAM_TYPES, command_of
from nb_agents.tools.base import ToolError

_NOT_SHARED = (Path("/"), Path("/home"), Path("/root"), Path("/tmp"), Path("/usr"))


class Prepared(NamedTuple):
    """How to start an external agent.

    Attributes:
        argv: Its command line.
        env: Its additional environment variables.
        readable: The directories of its installation.
        writable: The directories of its settings and sessions.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    readable: tuple[Path, ...]
    writable: tuple[Path, ...]


def prepare(spec: BackendSpec, key: str, home: Path) -> Prepared:
    """Write an external agent's settings and return how to start it. Blocks.

    Args:
        spec: The agent's backend.
        key: The API key of its model.
        home: Its home directory, two levels below the session's directory. It is created.

    Raises:
        ToolError: The home directory or a settings file can't be written, or the agent has replaced
            it with a link or something else.
    """
    own = {name: expand(value.get_secret_value()) for name, value in spec.env.items()}
    argv = command_of(spec.type, spec)
    program = which(os.path.expanduser(argv[0])) or argv[0]
    named = [word for word in argv[1:] if os.path.isfile(word)]
    readable = tuple(
        required_path
        for each in (program, which("node") or "", *named)
        for required_path in _required_paths(each)
    )
    if spec.use_my_settings:
        user_home = Path.home()
        names = PROGRAM_TYPES[spec.type].settings if spec.type in PROGRAM_TYPES else ()
        settings = tuple(path for name in names if (path := user_home / name).exists())
        return Prepared(
            (program, *argv[1:]),
            {"HOME": str(user_home), **own},
            readable,
            settings or (user_home,),
        )
    env, files, more = _SETTINGS[spec.type](spec, key, home) if spec.type in _SETTINGS else _NONE
    _write_settings(home, files)
    variables = {name: value for name, value in env.items() if value}
    return Prepared(
        (program, *argv[1:], *more), {"HOME": str(home), **variables, **own}, readable, (home,)
    )


def _write_settings(home: Path, files: Mapping[str, str]) -> None:
    """Create a home directory and write files in it.

    Links are not followed, because agents write there.

    Args:
        home: The directory.
        files: The text of each file by its relative path.
    """
    session, below = home.parents[1], f"{home.parent.name}/{home.name}"
    root = _resolved(session)
    with (
        _with_path(home),
        Directory.real(root, follows_links=False, is_private=True) as opened,
    ):
        opened.make(below, FOLDER_MODE)
        own = opened.inner(below)
    with own:
        for name, text in files.items():
            with _with_path(home / name):
                own.replace(name, text.encode())


@contextmanager
def _with_path(path: Path) -> Iterator[None]:
    """Add a file's path to the errors that the block raises."""
    name = printable_name(str(path))
    try:
        yield
    except RefusedError as exc:
        why = f"{name!r} {exc.strerror}. The agent may have created it. Remove it."
        raise ToolError(why) from exc
    except OSError as exc:
        raise ToolError(f"{name!r} can't be written: {exc.strerror}.") from exc


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _required_paths(program: str) -> Iterable[Path]:
    """Yield the paths that a program has to read when it runs: its directory and packages."""
    if not program:
        return
    absolute, real = Path(os.path.abspath(program)), Path(program).resolve()
    for path in dict.fromkeys([absolute, real]):
        packages = [each for each in path.parents if each.name == "node_modules"]
        package_path = packages[-1] if packages else path.parent
        yield package_path if package_path not in (*_NOT_SHARED, Path.home()) else path
        if not packages and (package_path.parent / "lib" / "node_modules").is_dir():
            yield package_path.parent / "lib" / "node_modules"


_Settings = tuple[dict[str, str], dict[str, str], tuple[str, ...]]
"""Environment variables, contents of files by relative path, and arguments."""

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
        # Otherwise the agent finds the tools of nb_agents only if it searches for them.
        "ENABLE_TOOL_SEARCH": "false",
        # Otherwise it refuses to run as root.
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
            # The agent derives the API of its model from this id.
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
