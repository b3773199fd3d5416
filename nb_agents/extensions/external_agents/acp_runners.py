"""The runner type of external agents."""

from __future__ import annotations

from nb_agents.agents.runner import AgentRunner
from nb_agents.agents.runner_types import RunnerType
from nb_agents.config.team import AgentSpec


def _acp_runner(agent: AgentSpec) -> AgentRunner:
    # The library is an extra.
    from nb_agents.extensions.external_agents.acp.acp_runner import AcpRunner

    return AcpRunner(agent)


ACP_RUNNER = RunnerType(_acp_runner, "goes on")
