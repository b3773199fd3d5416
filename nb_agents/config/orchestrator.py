"""Settings for how a team works together and how long: MassGen's keys and defaults.

Source: MassGen 0.1.97, `agent_config.py` (defaults), `config_validator.py` (values).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, StrictInt, field_validator, model_validator

from nb_agents.config.spec import (
    Count,
    Dollars,
    Grace,
    Seconds,
    Spec,
    Texts,
    resolve_next_to_file,
    start_directory,
)
from nb_agents.disk.names import as_on_disk

DEFAULT_ORCHESTRATOR_TIMEOUT_S = 1800.0
"""Time limit of a turn in seconds. Source: MassGen's timeout configuration."""

DEFAULT_ROUND_GRACE_S = 120.0
"""Seconds to wrap up after a round's limit. Source: MassGen's timeout configuration."""

Novelty = Literal["lenient", "balanced", "strict"]
FinalAnswerStrategy = Literal["winner_reuse", "winner_present", "synthesize"]
OnTimeout = Literal["fail", "cancel", "continue"]
OnBudget = Literal["stop", "ask"]
Sensitivity = Literal[
    "lenient",
    "balanced",
    "strict",
    "roi",
    "roi_conservative",
    "roi_balanced",
    "roi_aggressive",
]
WriteMode = Literal["auto", "worktree", "isolated", "legacy"]
DriftConflictPolicy = Literal["skip", "prefer_presenter", "fail"]
# MassGen's other values are accepted; the nearest supported one is used instead (`_NEAREST`).
_AnySensitivity = Literal[
    Sensitivity,
    "sequential",
    "adversarial",
    "consistency",
    "diversity",
    "reflective",
    "checklist",
    "checklist_scored",
    "checklist_gated",
]
_NEAREST: dict[str, Sensitivity] = {
    # MassGen: strict in the first round, then balanced, then lenient.
    "sequential": "balanced",
    "adversarial": "strict",
    "consistency": "balanced",
    "diversity": "balanced",
    "reflective": "balanced",
    # MassGen: all items of a checklist must be met before a vote.
    "checklist": "strict",
    "checklist_scored": "strict",
    "checklist_gated": "strict",
}


class ContextPath(Spec):
    """A file or directory that all agents may read.

    Attributes:
        path: Its path. A relative path is relative to the directory in which the run is started.
        permission: With ``write``, the presenter may also change it.
        protected_paths: Paths in it that no agent may change. They are absolute, or relative to
            `path` (or to its directory, if `path` is a file).
        description: A description of the content, for agents.
    """

    path: str
    permission: Literal["read", "write"] = "read"
    protected_paths: Texts = ()
    description: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str) -> str:
        # The journal contains this path: a resume from another directory must use the same one.
        with suppress(RuntimeError):  # an unknown ~user, which is reported as a missing path
            return str(as_on_disk(start_directory() / Path(value).expanduser()))
        return value


def absolute_paths(paths: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the absolute forms of context paths, each once."""
    return tuple(dict.fromkeys(ContextPath(path=os.fspath(path)).path for path in paths))


class BackgroundSpec(Spec):
    """MassGen's section ``orchestrator.coordination.background_subagents``.

    Attributes:
        enabled: Whether agents may continue to work while their sub-agents run.
        injection_strategy: How an agent receives the result of a finished sub-agent: appended to
            the result of its next tool call, or as a separate message after that result.
    """

    enabled: bool = True
    injection_strategy: Literal["tool_result", "user_message"] = "tool_result"


class CoordinationSpec(Spec):
    """MassGen's section ``orchestrator.coordination``.

    Attributes:
        enable_planning_mode: Whether agents only plan during coordination, without tools that
            change anything. Only the presenter acts.
        planning_mode_instruction: An additional instruction for agents while they plan.
        max_orchestration_restarts: How many times the presenter may reject the final answer and
            restart the team's work.
        enable_agent_task_planning: Whether agents get tools for a list of planned tasks.
        max_tasks_per_plan: The maximum number of tasks in a plan.
        task_planning_filesystem_mode: Whether prompts explain that plans are files that agents can
            add notes to and that other agents can read. Plans are files with either value.
        enable_memory_filesystem_mode: Whether agents save memories as files in their workspaces
            and see those of the whole team.
        use_skills: Whether prompts list the skills in `skills_directory`.
        skills_directory: The directory of skills, relative to the team file's directory or the
            working directory.
        massgen_skills: Names of skills that come with MassGen. They are not available here.
        enable_subagents: Whether agents may spawn copies of themselves as sub-agents for parts of
            the work.
        background_subagents: Whether sub-agents run in the background.
        subagent_max_concurrent: The maximum number of sub-agents that an agent runs at the same
            time.
        subagent_default_timeout: Time limit of a sub-agent in seconds, clamped to the following
            two.
        subagent_min_timeout, subagent_max_timeout: The bounds of `subagent_default_timeout`, in
            seconds.
        write_mode: How agents change context paths with ``permission: write``. By default and with
            ``legacy``, the presenter changes them directly. Otherwise each agent changes a copy (a
            git worktree), and the copy of the agent with the final answer is merged.
        drift_conflict_policy: What a merge does with files in which the same lines have changed in
            the meantime. ``fail`` merges nothing, ``skip`` (MassGen's default) leaves these files
            out, ``prefer_presenter`` overwrites them and reports how to restore them.
    """

    enable_planning_mode: bool = False
    planning_mode_instruction: str = ""
    max_orchestration_restarts: StrictInt = Field(default=0, ge=0)
    enable_agent_task_planning: bool = False
    max_tasks_per_plan: Count = 10
    task_planning_filesystem_mode: bool = False
    enable_memory_filesystem_mode: bool = False
    use_skills: bool = False
    skills_directory: Annotated[str, AfterValidator(resolve_next_to_file)] = ".agent/skills"
    massgen_skills: Texts = ()
    enable_subagents: bool = False
    background_subagents: BackgroundSpec = BackgroundSpec()
    subagent_max_concurrent: Count = 3
    subagent_default_timeout: Seconds = 300.0
    subagent_min_timeout: Seconds = 60.0
    subagent_max_timeout: Seconds = 600.0
    write_mode: WriteMode | None = None
    drift_conflict_policy: DriftConflictPolicy = "fail"

    @property
    def subagent_timeout_s(self) -> float:
        """Time limit of a sub-agent, in seconds."""
        timeout = max(self.subagent_default_timeout, self.subagent_min_timeout)
        return min(timeout, self.subagent_max_timeout)

    @property
    def skills_path(self) -> Path | None:
        """The absolute path of the skills directory, or None if agents get no skills."""
        path = Path(self.skills_directory).expanduser()
        return path.resolve() if self.use_skills and path.is_dir() else None


class OrchestratorSpec(Spec):
    """How the team works together.

    Attributes:
        context_paths: Paths that all agents may read. The presenter may change those with
            ``permission: write``.
        max_new_answers_per_agent: Number of answers after which an agent can only vote. By default,
            there is no limit.
        max_new_answers_global: Number of answers of the whole team after which agents can only
            vote. By default, there is no limit.
        answer_novelty_requirement: How much an answer must differ from the existing ones.
        defer_voting_until_all_answered: Whether voting starts only when all agents have answered.
        fairness_enabled: Whether the number of answers that an agent may be ahead of the slowest
            agent is limited.
        fairness_lead_cap_answers: How many answers an agent may be ahead.
        voting_sensitivity: How demanding voters are. MassGen's values that nb_agents does not have
            are replaced by the nearest one.
        skip_voting: Whether the team finishes as soon as all agents have answered.
        skip_final_presentation: Whether the winner's answer is the final answer, unchanged.
        final_answer_strategy: Where the final answer comes from. Defaults to ``winner_reuse`` with
            `skip_final_presentation`, and to ``winner_present`` otherwise.
        max_cost: Cost in US dollars at which the run is stopped gracefully. By default, there is no
            limit.
        max_tokens: Number of tokens at which the run is stopped gracefully. By default, there is no
            limit.
        on_budget: What happens at `max_cost` or `max_tokens`: ``stop`` stops the run gracefully,
            ``ask`` asks the user whether to raise the limit.
        max_orchestration_restarts: An alternative to the key with this name in `coordination`,
            which has precedence.
        coordination: MassGen's section ``coordination``.
    """

    context_paths: tuple[ContextPath, ...] = ()
    max_new_answers_per_agent: Count | None = None
    max_new_answers_global: Count | None = None
    answer_novelty_requirement: Novelty = "lenient"
    defer_voting_until_all_answered: bool = False
    fairness_enabled: bool = True
    fairness_lead_cap_answers: StrictInt = Field(default=2, ge=0)
    voting_sensitivity: _AnySensitivity = "lenient"
    skip_voting: bool = False
    skip_final_presentation: bool = False
    final_answer_strategy: FinalAnswerStrategy | None = None
    max_cost: Dollars | None = None
    max_tokens: Count | None = None
    on_budget: OnBudget = "stop"
    max_orchestration_restarts: StrictInt = Field(default=0, ge=0)
    coordination: CoordinationSpec = CoordinationSpec()

    @property
    def max_restarts(self) -> int:
        """How many times the team may restart its work."""
        return self.coordination.max_orchestration_restarts or self.max_orchestration_restarts

    @property
    def writes_context_paths(self) -> bool:
        """Whether the presenter may change any context path directly."""
        return self._may_write and not self._wants_copies

    @property
    def copies_context_paths(self) -> bool:
        """Whether agents change copies of context paths, if git can make them."""
        return self._may_write and self._wants_copies

    @property
    def _may_write(self) -> bool:
        return any(each.permission == "write" for each in self.context_paths)

    @property
    def _wants_copies(self) -> bool:
        # MassGen's `auto` and `isolated` differ only in how they make the copy.
        return self.coordination.write_mode not in (None, "legacy")

    @property
    def protects_paths(self) -> bool:
        """Whether any context path has protected paths."""
        return any(each.protected_paths for each in self.context_paths)

    @property
    def voting_criteria(self) -> Sensitivity:
        """`voting_sensitivity`, or the nearest value that nb_agents supports."""
        value = self.voting_sensitivity
        return _NEAREST[value] if value in _NEAREST else cast(Sensitivity, value)


class RetrySpec(Spec):
    """How many times and how soon a failed model call is retried.

    Attributes:
        attempts: The maximum number of retries. 0 means none.
        delay: Seconds before the first retry.
        backoff: How the delay grows: d, d, d (``none``), d, 2d, 3d (``linear``) or d, 2d, 4d
            (``exponential``).
        max_delay: The longest delay in seconds, and the longest wait that a server may ask for.
        max_silence: Seconds without new data after which a model's reply is considered lost.
    """

    attempts: StrictInt = Field(default=3, ge=0)
    delay: Grace = 0.5
    backoff: Literal["none", "linear", "exponential"] = "none"
    max_delay: Grace | None = None
    max_silence: Seconds | None = None


class CancelSpec(Spec):
    """How a run stops.

    Attributes:
        graceful: Whether `Run.cancel` lets calls in flight finish.
        grace_timeout: Seconds after which a graceful stop becomes immediate, or ``never``.
        reason: The reason that `Run.cancel` records by default.
    """

    graceful: bool = True
    grace_timeout: Grace | Literal["never"] = 30.0
    reason: str = ""


class ApprovalSpec(Spec):
    """How tool calls and recipe gates that wait for a user are approved.

    Attributes:
        timeout: Seconds to wait for an approval. By default, there is no limit.
        auto_approve_on_timeout: Whether a timeout approves instead of denying.
        approvers: Names of the users who may decide. If empty, everybody may.
        required_approvals: The number of users who must approve.
    """

    timeout: Seconds | None = None
    auto_approve_on_timeout: bool = False
    approvers: tuple[str, ...] = ()
    required_approvals: StrictInt = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _enough_approvers(self) -> ApprovalSpec:
        if self.approvers and self.required_approvals > len(set(self.approvers)):
            raise ValueError(
                f"{self.required_approvals} approvals are required, but there are only "
                f"{len(set(self.approvers))} approvers"
            )
        return self


class TimeoutSpec(Spec):
    """Time limits in seconds.

    Attributes:
        orchestrator_timeout_seconds: Time limit of the whole turn.
        initial_round_timeout_seconds: Time limit of an agent's first round. By default, there is no
            limit.
        subsequent_round_timeout_seconds: Time limit of each later round. By default, there is no
            limit.
        round_timeout_grace_seconds: Additional time after a round's limit, to wrap up.
        on_timeout: What happens to the run after `orchestrator_timeout_seconds`: it fails
            (``fail``), is stopped (``cancel``), or continues with a notice (``continue``).
    """

    orchestrator_timeout_seconds: Seconds = DEFAULT_ORCHESTRATOR_TIMEOUT_S
    initial_round_timeout_seconds: Seconds | None = None
    subsequent_round_timeout_seconds: Seconds | None = None
    round_timeout_grace_seconds: Grace = DEFAULT_ROUND_GRACE_S
    on_timeout: OnTimeout = "cancel"
