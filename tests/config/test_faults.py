"""A file with several errors: each is reported once, with its position, in the file's order."""

import pickle
from pathlib import Path

import pytest

from nb_agents.config.faults import MAX_FAULTS
from nb_agents.errors import ConfigError
from tests.kit.teams import TeamSpec, check_file

FAULTY = """\
agents:
  - id: ada
    bakend: {type: openai}
  - id: ben
    backend: {type: demo, temprature: 3, max_tokens: many}
orchestrator:
  voting_sensitivity: balnced
  max_new_answers_per_agent: 0
  skip_votin: true
  coordination: {enable_planing_mode: true}
timeout_settings: {round_timeout_grace_seconds: -1, on_timeout: Fail}
"""


def refused(folder: Path, text: str) -> ConfigError:
    path = folder / "team.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        TeamSpec.from_file(path)
    return caught.value


def test_every_error_has_its_position_and_nearest_key(tmp_path: Path) -> None:
    error = refused(tmp_path, FAULTY)
    told = [(e.line, e.column, e.message) for e in (error, *error.others)]
    expected = [
        (3, 5, "'agents.0.backend' is missing; did you write 'bakend' instead?"),
        (5, 27, "temprature'; did you mean 'temperature'?"),
        (5, 54, "agents.1.backend.max_tokens: "),
        (7, 23, "(nearest: 'balanced')"),
        (8, 30, "orchestrator.max_new_answers_per_agent: "),
        (9, 3, "skip_votin'; did you mean 'skip_voting'?"),
        (10, 18, "enable_planing_mode'; did you mean 'enable_planning_mode'?"),
        (11, 49, "round_timeout_grace_seconds: -1 is not"),
        (11, 65, "(nearest: 'fail')"),
    ]
    assert [place[:2] for place in told] == [place[:2] for place in expected]
    for (_, _, message), (_, _, part) in zip(told, expected, strict=True):
        assert part in message


def test_each_line_of_the_message_is_an_error_with_its_file(tmp_path: Path) -> None:
    error = refused(tmp_path, FAULTY)
    lines = str(error).split("\n")
    assert len(lines) == 9
    assert all(line.startswith(f"{tmp_path / 'team.yaml'}:") for line in lines)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_single_error_is_one_line(tmp_path: Path) -> None:
    error = refused(tmp_path, "agents: [{id: a, backend: {type: 3}}, {id: b, backend: 3}]")
    assert len(str(error).split("\n")) == 2
    assert "\n" not in str(refused(tmp_path, "agents: []"))


def test_misspelled_key_in_a_single_agent_is_reported(tmp_path: Path) -> None:
    error = refused(tmp_path, "agent:\n  backend: {type: demo, modle: m}\n  sistem_message: x\n")
    assert [(e.line, e.column) for e in (error, *error.others)] == [(2, 25), (3, 3)]


def test_number_of_reported_errors_is_limited(tmp_path: Path) -> None:
    wrong = "\n".join(f"- {{id: a{n}, backend: {n}}}" for n in range(MAX_FAULTS + 5))
    error = refused(tmp_path, f"agents:\n{wrong}\n")
    assert len(error.others) == MAX_FAULTS
    assert str(error.others[-1]).endswith(": 5 more errors.")


def test_teams_from_different_files_compare_equal() -> None:
    made = TeamSpec.model_validate({"agent": {"backend": {"type": "demo"}}})
    read = TeamSpec.from_text("agent: {backend: {type: demo}}", "team.yaml")
    assert read == TeamSpec.from_text("\nagent: {backend: {type: demo}}", "other.yaml") == made
    assert read.fault("It is wrong.", "agents").line and not made.fault("So it is.", "agents").line


def test_misspelled_key_in_a_nested_section_is_reported(tmp_path: Path) -> None:
    uploads = "backend: {type: demo, upload_files: [{image_pth: plot.png, image_path: plot.png}]}"
    error = refused(tmp_path, f"agent: {{id: ada, {uploads}}}\n")
    assert "'image_path'" in error.message and error.column == 56


def test_server_name_is_not_a_misspelled_key(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    path.write_text("agent: {backend: {type: demo, mcp_servers: {commnd: {command: python}}}}\n")
    assert TeamSpec.from_file(path).agents[0].backend.mcp_servers[0].name == "commnd"


def test_agents_with_the_same_id_hide_no_other_error(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    same = "- {id: ada, backend: {type: demo}}\n"
    path.write_text(f"agents:\n{same}{same}- {{id: ben, backend: {{type: opnai}}}}\n")
    with pytest.raises(ConfigError) as caught:
        check_file(str(path))
    same_id, unsupported = (caught.value, *caught.value.others)
    assert "two agents are named 'ada'" in same_id.message
    assert "backend type 'opnai'" in unsupported.message and unsupported.line == 4
