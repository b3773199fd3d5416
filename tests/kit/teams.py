"""Team files and their errors."""

from nb_agents.config.context_keys import ContextSpec
from nb_agents.config.decision_tools import ANSWER
from nb_agents.config.faults import specs_in
from nb_agents.config.file_findings import Finding
from nb_agents.config.massgen_keys import SECTIONS, Restriction, SectionKeys, status_of_key
from nb_agents.config.new_team import FIRST_MODELS, new_team
from nb_agents.config.orchestrator import DEFAULT_ORCHESTRATOR_TIMEOUT_S, CoordinationSpec
from nb_agents.config.report import CommandLine, command_line
from nb_agents.config.spec import Spec, safe_name, use_start_directory
from nb_agents.config.team import AgentSpec, TeamSpec, team_from_options
from nb_agents.config.uploads import mentions
from nb_agents.launch import past_runs
from nb_agents.launch.estimate import Estimate, PastRun, check_lines, start_lines
from nb_agents.launch.file_report import check_file
from nb_agents.launch.past_runs import estimate_of
from nb_agents.launch.team_kind import file_schema
from nb_agents.launch.team_report import CAN_START, report_on
from nb_agents.models.prices import Price, prices_of

__all__ = [
    "ANSWER",
    "AgentSpec",
    "CAN_START",
    "CommandLine",
    "ContextSpec",
    "CoordinationSpec",
    "DEFAULT_ORCHESTRATOR_TIMEOUT_S",
    "Estimate",
    "FIRST_MODELS",
    "Finding",
    "PastRun",
    "Price",
    "Restriction",
    "SECTIONS",
    "SectionKeys",
    "Spec",
    "TeamSpec",
    "check_file",
    "check_lines",
    "command_line",
    "estimate_of",
    "file_schema",
    "mentions",
    "new_team",
    "past_runs",
    "prices_of",
    "report_on",
    "safe_name",
    "specs_in",
    "start_lines",
    "status_of_key",
    "team_from_options",
    "use_start_directory",
]
