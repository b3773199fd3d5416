"""The routes for a new team: providers and tools, the text of a file, and its check."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.kit.teams import TeamSpec
from tests.server.conftest import JupyterServer


def test_offered_tools_are_valid_keys_of_a_team(jupyter: JupyterServer, tmp_path: Path) -> None:
    offered = jupyter.client.get(f"{jupyter.url}/new").json()
    tools = [each["key"] for each in offered["tools"]]
    body = {"models": ["demo", "ollama:llama3.2"], "tools": tools}
    text = jupyter.client.post(f"{jupyter.url}/new", json=body).json()["text"]
    (tmp_path / "team.yaml").write_text(text)
    team = TeamSpec.from_file(tmp_path / "team.yaml")
    assert [agent.backend.model for agent in team.agents] == ["", "llama3.2"]
    assert all(getattr(agent.backend, tool) for agent in team.agents for tool in tools)


def test_agents_get_their_names_roles_and_addresses(jupyter: JupyterServer, tmp_path: Path) -> None:
    critic = {
        "model": "vllm:qwen",
        "name": "critic",
        "role": "Doubt it.",
        "base_url": "http://a/v1",
    }
    body = {"agents": [critic, {"model": "demo"}]}
    text = jupyter.client.post(f"{jupyter.url}/new", json=body).json()["text"]
    (tmp_path / "team.yaml").write_text(text)
    first, second = TeamSpec.from_file(tmp_path / "team.yaml").agents
    assert (first.id, first.system_message, first.backend.base_url) == (
        "critic",
        "Doubt it.",
        "http://a/v1",
    )
    assert (second.id, second.system_message, second.backend.type) == ("ada", "", "demo")


def test_two_agents_of_one_name_are_rejected(jupyter: JupyterServer) -> None:
    same = {"model": "demo", "name": "ada"}
    refused = jupyter.client.post(f"{jupyter.url}/new", json={"agents": [same, same]})
    assert refused.status_code == 400
    assert "two agents are named 'ada'" in refused.json()["message"]


def test_new_notebook_uses_the_first_model(jupyter: JupyterServer) -> None:
    body = {"kind": "notebook", "models": ["ollama:llama3.2", "demo"]}
    text = jupyter.client.post(f"{jupyter.url}/new", json=body).json()["text"]
    assert "--model ollama:llama3.2" in json.loads(text)["cells"][1]["source"]


def test_unknown_provider_is_rejected(jupyter: JupyterServer) -> None:
    refused = jupyter.client.post(f"{jupyter.url}/new", json={"models": ["opena:gpt"]})
    assert refused.status_code == 400
    assert "opena" in refused.json()["message"]


def test_check_resolves_paths_from_the_folder_of_the_file(jupyter: JupyterServer) -> None:
    (jupyter.root / "here").mkdir()
    text = yaml.safe_dump(
        {
            "agents": [{"id": "a", "backend": {"type": "demo"}}],
            "orchestrator": {"context_paths": [{"path": "nowhere"}]},
        }
    )
    asked = {"text": text, "file": "here/team.yaml"}
    [found] = jupyter.client.post(f"{jupyter.url}/check", json=asked).json()["findings"]
    assert found["severity"] == "warning" and "nowhere" in found["what"]
    outside = {"text": text, "file": "../team.yaml"}
    assert jupyter.client.post(f"{jupyter.url}/check", json=outside).status_code == 404
