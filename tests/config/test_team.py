"""Team files: MassGen's YAML becomes a validated team or an error with its position."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import nb_agents
from nb_agents import RunOptions
from nb_agents.config.team import TeamSpec, team_from_options
from nb_agents.errors import ConfigError
from nb_agents.testing import Answer, ScriptedModel, scripted_team
from tests.kit.models import BackendSpec
from tests.kit.sessions import find_session, load_session
from tests.kit.teams import DEFAULT_ORCHESTRATOR_TIMEOUT_S, safe_name

SECRET = "sk-hunter2-hunter2"
AGENT = {"id": "ada", "backend": {"type": "demo"}}


def from_text(folder: Path, text: str, name: str = "team.yaml") -> TeamSpec:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return TeamSpec.from_file(path)


def refused(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        from_text(folder, text)
    return caught.value


def team(**more: Any) -> TeamSpec:
    return TeamSpec.model_validate({"agents": [AGENT], **more})


MASSGEN = """\
agents:
  - id: writer
    backend:
      type: openai
      model: gpt-5-nano
      cwd: workspace1
      enable_video_generation: true
    system_message: |
      Write.
  - id: critic
    backend: {type: gemini, model: gemini-2.5-flash, enable_video_generation: true}
orchestrator:
  snapshot_storage: snapshots
  voting_sensitivity: balanced
  coordination: {max_orchestration_restarts: 1}
timeout_settings:
  orchestrator_timeout_seconds: 90
  initial_round_timeout_seconds: 60
ui:
  display_type: rich_terminal
"""


def test_a_massgen_file_is_a_team(tmp_path: Path) -> None:
    team = from_text(tmp_path, MASSGEN)
    assert [(a.id, a.backend.type, a.backend.model) for a in team.agents] == [
        ("writer", "openai", "gpt-5-nano"),
        ("critic", "gemini", "gemini-2.5-flash"),
    ]
    assert team.agents[0].system_message == "Write.\n"
    assert team.timeout_settings.orchestrator_timeout_seconds == 90


def test_ignored_keys_are_listed_once(tmp_path: Path) -> None:
    assert sorted(from_text(tmp_path, MASSGEN).ignored) == [
        "agents.backend.cwd",
        "agents.backend.enable_video_generation",
        "orchestrator.snapshot_storage",
        "ui",
    ]


def test_replaced_massgen_value_is_listed(tmp_path: Path) -> None:
    text = "agent: {backend: {type: demo}}\norchestrator: {voting_sensitivity: checklist_gated}\n"
    spec = from_text(tmp_path, text)
    assert spec.orchestrator.voting_sensitivity == "checklist_gated"
    assert spec.ignored == ("orchestrator.voting_sensitivity: checklist_gated (strict is used)",)


def test_ignored_key_of_many_agents_is_listed_once() -> None:
    agents = [{"id": i, "backend": {"type": "demo", "cwd": i}} for i in "abc"]
    assert TeamSpec.model_validate({"agents": agents}).ignored == ("agents.backend.cwd",)


def test_equal_teams_from_file_and_python_compare_equal(tmp_path: Path) -> None:
    text = "agents: [{id: ada, backend: {type: demo}}]"
    assert from_text(tmp_path, text) == team()
    assert from_text(tmp_path, text) != team(orchestrator={"skip_voting": True})


def test_massgens_rate_limit_table_loads_without_agents(tmp_path: Path) -> None:
    spec = from_text(tmp_path, "gemini: {gemini-2.5-flash: {rpm: 9, tpm: 240000, rpd: 245}}")
    assert (spec.agents, spec.unknown) == ((), ("gemini",))
    with pytest.raises(ConfigError, match="rate limits, not a team"):
        spec.without_unsupported()


def test_other_file_without_agents_is_an_error(tmp_path: Path) -> None:
    for text in ("ui: {a: {rpm: 1}, b: 3}", "{}", "ui: {}", "orchestrator: {}"):
        assert "'agents' is missing" in refused(tmp_path, text).message


def test_agent_and_agents_together_are_an_error(tmp_path: Path) -> None:
    error = refused(tmp_path, "agent: {backend: {type: demo}}\nagents: []\n")
    assert "both `agent` and `agents`" in error.message


# Unsupported agents ------------------------------------------------------------------------

MIXED = """\
agents:
  - id: ada
    backend: {type: demo}
  - id: coder
    backend:
      type: antigravity_cli
      model: opus
  - backend: {type: AG2}
"""


def test_unsupported_agents_are_listed_with_the_reason(tmp_path: Path) -> None:
    spec = from_text(tmp_path, MIXED)
    assert [a.id for a in spec.agents] == ["ada", "coder", "agent3"]
    assert [(u.id, u.backend.type) for u in spec.unsupported] == [
        ("coder", "antigravity_cli"),
        ("agent3", "ag2"),
    ]
    assert [a.id for a in spec.without_unsupported().agents] == ["ada"]


def test_fully_supported_team_is_unchanged() -> None:
    spec = team()
    assert spec.unsupported == ()
    assert spec.without_unsupported() is spec


def test_fully_unsupported_team_error_lists_its_agents() -> None:
    spec = TeamSpec.model_validate({"agent": {"id": "coder", "backend": {"type": "uitars"}}})
    with pytest.raises(
        ConfigError, match=r"None of the team's agents can run here: coder \(uitars\)"
    ):
        spec.without_unsupported()


def test_later_error_has_its_position(tmp_path: Path) -> None:
    spec = from_text(tmp_path, MIXED)
    for known in (spec, spec.without_unsupported()):
        error = known.fault("No.", "agents", "coder", "backend", "type")
        assert (error.line, error.column) == (6, 13)
        assert known.fault("No.", "agents", "agent3", "backend").line == 8
    assert team().fault("No.", "agents", "ada").line is None


def test_error_of_a_single_agent_has_its_position(tmp_path: Path) -> None:
    spec = from_text(tmp_path, "ui: {}\nagent:\n  backend: {type: uitars}\n")
    assert spec.fault("No.", "agents", "agent1", "backend", "type").line == 3


# A team of one model ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, kind, model",
    [
        ("openai:gpt-5-mini", "openai", "gpt-5-mini"),
        ("ollama:llama3.2:1b", "ollama", "llama3.2:1b"),
        (" OpenAI : gpt-5 ", "openai", "gpt-5"),
        ("demo:", "demo", ""),
        ("demo", "demo", ""),
        ("gpt-5-mini", "openai", "gpt-5-mini"),
        ("gpt-4o-mini", "openai", "gpt-4o-mini"),
        ("chatgpt-4o-latest", "openai", "chatgpt-4o-latest"),
        ("o1", "openai", "o1"),
        ("o3-mini", "openai", "o3-mini"),
        ("o4-mini", "openai", "o4-mini"),
        ("Claude-sonnet-4-5", "claude", "Claude-sonnet-4-5"),
        ("gemini-2.5-flash", "gemini", "gemini-2.5-flash"),
        ("grok-4", "grok", "grok-4"),
    ],
)
def test_model_name_makes_a_team_of_one_agent(text: str, kind: str, model: str) -> None:
    [agent] = TeamSpec.from_model(text).agents
    assert (agent.backend.type, agent.backend.model) == (kind, model)


@pytest.mark.parametrize(
    "text, told",
    [
        ("llama-3", "Model 'llama-3' has no provider prefix. Use 'provider:llama-3'."),
        ("gpt-oss-20b", "has no provider prefix. Use 'provider:gpt-oss-20b'."),
        ("o30", "Use 'provider:o30'."),
        ("openai", "Model 'openai' has a provider but no model. Use 'openai:model'."),
        ("", "Model '' is empty. Use 'provider:model', for example 'openai:gpt-5-mini'."),
        ("openai:", "Model 'openai:' has a provider but no model. Use 'openai:model'."),
        ("opnai:gpt-5", "'opnai', which is not supported. Did you mean 'openai'"),
        (":gpt-5", "not supported"),
        ("uitars:gpt-5", "It controls a screen"),
        ("python:x", "Pass a TeamSpec"),
    ],
)
def test_invalid_model_name_is_a_clear_error(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TeamSpec.from_model(text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "backend, model, kind, name",
    [
        ("openai", "gpt-4o-mini", "openai", "gpt-4o-mini"),
        ("ollama", "llama3.2:1b", "ollama", "llama3.2:1b"),
        ("openai", "openai:gpt-5", "openai", "gpt-5"),
        ("openrouter", "claude-sonnet-4-5", "openrouter", "claude-sonnet-4-5"),
        ("demo", None, "demo", ""),
    ],
)
def test_backend_option_combines_with_the_model(
    backend: str, model: str | None, kind: str, name: str
) -> None:
    team = team_from_options(None, model, backend=backend)
    assert isinstance(team, TeamSpec)
    assert (team.agents[0].backend.type, team.agents[0].backend.model) == (kind, name)


@pytest.mark.parametrize(
    "config, backend, model, told",
    [
        (None, "openai", None, "has a provider but no model"),
        (None, "opnai", "gpt-5", "Did you mean 'openai'"),
        ("team.yaml", "openai", None, "Remove --backend or --config"),
    ],
)
def test_invalid_backend_option_is_a_clear_error(
    config: str | None, backend: str, model: str | None, told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        team_from_options(config, model, backend=backend)
    assert told in str(caught.value)


def test_a_single_agent_is_a_team_of_one(tmp_path: Path) -> None:
    team = from_text(tmp_path, "agent:\n  backend:\n    type: demo\n")
    assert [a.id for a in team.agents] == ["agent1"]
    assert team.ignored == ()


def test_agents_without_an_id_are_numbered() -> None:
    nameless = {"backend": {"type": "demo"}}
    spec = TeamSpec.model_validate({"agents": [nameless, AGENT, {**nameless, "id": None}]})
    assert [a.id for a in spec.agents] == ["agent1", "ada", "agent3"]


def test_a_json_file_is_a_team(tmp_path: Path) -> None:
    text = '{\n\t"agents": [{"id": "ada", "backend": {"type": "demo"}}]\n}'
    assert from_text(tmp_path, text, "team.json").agents[0].id == "ada"


def test_empty_sections_count_as_omitted(tmp_path: Path) -> None:
    text = "agents: [{backend: {type: demo}}]\norchestrator:\ntimeout_settings:\nui:\n"
    limit = from_text(tmp_path, text).timeout_settings.orchestrator_timeout_seconds
    assert limit == DEFAULT_ORCHESTRATOR_TIMEOUT_S


SLIPS = [
    ("agents:\n- id: a\n  backend:\n    type: demo\n    temprature: 1\n", "temperature", 5, 5),
    ("agent:\n  backend:\n    type: demo\n    modle: x\n", "model", 4, 5),
    ("agent:\n  backend:\n    typ: demo\n", "typ", 3, 5),
    ("agent:\n  backend: {type: demo}\n  system_mesage: x\n", "system_message", 3, 3),
    ("agent: {backend: {type: demo}}\ntimeout_setting: {}\n", "timeout_settings", 2, 1),
    ("ui: {}\nagnets: []\n", "agnets", 2, 1),
    (
        "agent: {backend: {type: demo}}\ntimeout_settings:\n  orchestrator_timeout_second: 3\n",
        "orchestrator_timeout_seconds",
        3,
        3,
    ),
    # The position is not that of the same word elsewhere in the file.
    (
        "ui:\n  temprature: 1\nagents:\n- backend: {type: demo}\n- backend:\n    type: demo\n"
        "    temprature: 1\n",
        "temperature",
        7,
        5,
    ),
]


@pytest.mark.parametrize("text, nearest, line, column", SLIPS)
def test_misspelled_key_error_has_the_nearest_key_and_position(
    tmp_path: Path, text: str, nearest: str, line: int, column: int
) -> None:
    error = refused(tmp_path, text)
    assert repr(nearest) in error.message
    assert (error.line, error.column) == (line, column)


def test_massgens_keys_are_not_misspellings(tmp_path: Path) -> None:
    keys = "top_k: 1, text: {}, reasoning: {}, max_output_tokens: 5, cwd: w, instance_id: i"
    spec = from_text(tmp_path, f"agent: {{backend: {{type: demo, {keys}}}}}")
    assert spec.ignored == ("agents.backend.cwd", "agents.backend.instance_id")
    assert not spec.refusals and not spec.unknown


FAULTS = [
    ("agents: []\n", "agents", 1),
    ("agents: 3\n", "agents", 1),
    ("agents:\n- 3\n", "agents", 2),
    ("agents:\n- id: a\n", "'agents.0.backend' is missing", 2),
    ("agent:\n  id: a\n  backend:\n    model: x\n", "'agent.backend.type' is missing", 3),
    ("agents:\n- backend: {type: demo}\n- backend:\n    type: 3\n", "agents.1.backend.type", 4),
    ("agent:\n  backend:\n    type: demo\n    max_tokens: many\n", "agent.backend.max_tokens", 4),
    ("agent:\n  backend: {type: demo, words_per_second: 0}\n", "words_per_second", 2),
    ("agent:\n  backend: {type: python}\n", "`object: module:name`", 2),
]


@pytest.mark.parametrize("text, what, line", FAULTS)
def test_error_has_its_path_and_line(tmp_path: Path, text: str, what: str, line: int) -> None:
    error = refused(tmp_path, text)
    assert what in error.message
    assert error.line == line


BAD_SECONDS = ["true", "false", "0", "-1", "0.0", ".inf", ".nan", "'60'", "[60]", "1" + "0" * 400]


@pytest.mark.parametrize("value", BAD_SECONDS)
def test_seconds_must_be_positive_numbers(tmp_path: Path, value: str) -> None:
    key = "orchestrator_timeout_seconds"
    error = refused(
        tmp_path, f"agent: {{backend: {{type: demo}}}}\ntimeout_settings:\n  {key}: {value}\n"
    )
    assert f"timeout_settings.{key}: " in error.message
    assert "more)" not in error.message
    assert error.line == 3


@pytest.mark.parametrize("value, seconds", [("1", 1.0), ("0.5", 0.5), ("1800", 1800.0)])
def test_seconds_may_be_whole_or_not(tmp_path: Path, value: str, seconds: float) -> None:
    limit = f"timeout_settings: {{orchestrator_timeout_seconds: {value}}}"
    text = f"agent: {{backend: {{type: demo}}}}\n{limit}\n"
    assert from_text(tmp_path, text).timeout_settings.orchestrator_timeout_seconds == seconds


def test_system_prompt_suggests_system_message(tmp_path: Path) -> None:
    text = "agents:\n- {id: a, system_prompt: Be brief., backend: {type: demo}}\n"
    assert "did you mean 'system_message'?" in str(refused(tmp_path, text))


UNSAFE = [
    "", ".", "..", "../x", "a/b", "a\\b", "/etc", ".hidden", "-x", "a.", "a ", " a", "a\n", "a\0",
    "a" * 65, "𠀀" * 51, "con", "a\u202eb", "a\u200bb", "\u0301a", "a\u3164", "a\ufe0f",
    "a／b", "com¹", "\ud800", "😀", "NUL", "com1", "LPT9", "aux.txt", "a:b", "a*", "~",
]  # fmt: skip


@pytest.mark.parametrize("name", UNSAFE)
def test_id_must_be_a_portable_directory_name(name: str) -> None:
    with pytest.raises(ValueError, match="directory name"):
        safe_name(name)
    with pytest.raises(ValidationError):
        TeamSpec.model_validate({"agents": [{**AGENT, "id": name}]})


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "agent_a",
        "Agent-1.2",
        "two words",
        "a" * 64,
        "console",
        "7",
        "ä",
        "研究员",
        "ผู้วิจัย",
        "शोध",
    ],
)
def test_ids_may_use_any_script(name: str) -> None:
    assert safe_name(name) == name


def test_ids_are_unicode_normalized() -> None:
    assert safe_name("Zoe\u0308") == "Zo\u00eb"
    with pytest.raises(ValidationError, match="two agents are named 'Zoë'"):
        TeamSpec.model_validate(
            {"agents": [{**AGENT, "id": "Zoe\u0308"}, {**AGENT, "id": "Zo\u00eb"}]}
        )


def test_session_and_agent_ids_may_use_any_script(tmp_path: Path) -> None:
    team = scripted_team(研究员=ScriptedModel(Answer("四十二")))
    run = nb_agents.start("问", team, "会话", options=RunOptions(session_root=tmp_path))
    assert run.wait(200) == "四十二"
    assert (tmp_path / "会话" / "turn_1" / "workspaces" / "研究员").is_dir()
    assert load_session(find_session(tmp_path, "会话")).turns[0].view.answer == "四十二"


@given(st.text())
def test_a_safe_name_stays_inside_its_directory(name: str) -> None:
    try:
        path = Path("/root", safe_name(name))
    except ValueError:
        return
    assert path.parent == Path("/root") and path.name == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize(
    "ids, says",
    [
        (("ada", "ada"), "two agents are named 'ada'"),
        (("ada", "ben", "ADA"), "'ada' and 'ADA' differ only in case"),
        (("ADA", "ada"), "'ADA' and 'ada' differ only in case"),
    ],
)
def test_ids_must_differ_by_more_than_case(ids: tuple[str, ...], says: str) -> None:
    agents = [{**AGENT, "id": i} for i in ids]
    with pytest.raises(ValidationError, match=says):
        TeamSpec.model_validate({"agents": agents})


def test_a_team_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        team().agents = ()  # type: ignore[misc]


# Secrets ------------------------------------------------------------------------------------


def with_key(folder: Path) -> TeamSpec:
    return from_text(folder, f"agent: {{id: ada, backend: {{type: openai, api_key: {SECRET}}}}}")


def test_key_is_not_in_any_representation(tmp_path: Path) -> None:
    spec = with_key(tmp_path)
    for shown in (repr(spec), str(spec), f"{spec}", spec.model_dump_json(), str(spec.model_dump())):
        assert SECRET not in shown
    key = spec.agents[0].backend.api_key
    assert key is not None and key.get_secret_value() == SECRET


def test_key_from_the_environment_is_not_in_any_representation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    spec = from_text(tmp_path, "agent: {backend: {type: openai, api_key: '${MY_SECRET}'}}")
    assert SECRET not in repr(spec) + spec.model_dump_json()


def test_value_of_an_unknown_key_is_not_in_the_repr(tmp_path: Path) -> None:
    spec = from_text(
        tmp_path, f"agent: {{backend: {{type: demo, env: {{GITHUB_TOKEN: {SECRET}}}}}}}"
    )
    assert spec.notices == (
        "Ignored for agent1, because type 'demo' is not an external agent: env",
    )
    assert SECRET not in repr(spec)


@pytest.mark.parametrize(
    "backend",
    [
        f"type: openai, apikey: {SECRET}",
        f"type: [], api_key: {SECRET}",
        f"api_key: {SECRET}",
        f"type: openai, api_key: [{SECRET}]",
        f"type: openai, api_key: {{key: {SECRET}}}",
        f"type: openai, max_tokens: {SECRET}",
        f"type: openai, model: [{SECRET}]",
        f"type: openai, api_key: {SECRET}, api_key: {SECRET}",
        f"type: openai, api_key: '{SECRET}",
        f"type: openai, api_key: *{SECRET}",
    ],
)
def test_no_error_repeats_a_key(tmp_path: Path, backend: str) -> None:
    error = refused(tmp_path, f"agent:\n  backend: {{{backend}}}\n")
    assert SECRET not in str(error) + repr(error)
    assert error.__context__ is None or error.__suppress_context__


def test_python_validation_error_does_not_repeat_a_key() -> None:
    with pytest.raises(ValidationError) as caught:
        BackendSpec.model_validate({"type": "openai", "api_key": [SECRET], "top_p": SECRET})
    assert SECRET not in str(caught.value)


def test_python_backend_requires_an_instance() -> None:
    class Model:
        def stream(self) -> None: ...

    spec = BackendSpec(type="python", instance=Model())
    assert "instance" not in spec.model_dump()
    for wrong in ({"type": "python"}, {"type": "demo", "instance": Model()}):
        with pytest.raises(ValidationError):
            BackendSpec.model_validate(wrong)


# Context paths ------------------------------------------------------------------------------


def test_context_paths_are_strings_or_mappings_and_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    spec = team(
        orchestrator={"context_paths": ["src", {"path": str(tmp_path), "permission": "write"}]}
    )
    assert spec.context_paths == (tmp_path / "src", tmp_path)


@pytest.mark.parametrize("path", ["nothing-here", "a\0b", "~nobody-at-all/x", "loop"])
def test_missing_context_path_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    spec = team(orchestrator={"context_paths": [path]})
    with pytest.raises(ConfigError, match="does not exist"):
        _ = spec.context_paths


def test_missing_context_path_error_has_its_position(tmp_path: Path) -> None:
    paths = f"  - path: {tmp_path}\n  - /no/such/place\n"
    head = "agent: {backend: {type: demo}}\norchestrator:\n context_paths:\n"
    spec = from_text(tmp_path, head + paths)
    with pytest.raises(ConfigError) as caught:
        _ = spec.context_paths
    assert (caught.value.line, caught.value.column) == (5, 5)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "agents",
                    "agent",
                    "id",
                    "backend",
                    "type",
                    "model",
                    "orchestrator",
                    "context_paths",
                    "timeout_settings",
                    "orchestrator_timeout_seconds",
                    "api_key",
                    "path",
                ]
            ),  # fmt: skip
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["agents", "agent", "orchestrator", "timeout_settings"]), _VALUES
    )
)
def test_any_data_raises_only_config_errors(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    import yaml

    path = tmp_path_factory.getbasetemp() / "any_team.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    try:
        TeamSpec.from_file(path)
    except ConfigError as error:
        assert str(error)
