"""How a team works together, and for how long: MassGen's keys, with its defaults.

Source: MassGen 0.1.97, `agent_config.py` (defaults), `config_validator.py` (values).
"""

from __future__ import annotations

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
    beside_the_file,
    start_place,
)

DEFAULT_ORCHESTRATOR_TIMEOUT_S = 1800.0
"""Source: MassGen's timeout configuration (orchestrator: 1800 seconds)."""

DEFAULT_ROUND_GRACE_S = 120.0
"""Source: MassGen's timeout configuration (round_timeout_grace_seconds: 120)."""

Novelty = Literal["lenient", "balanced", "strict"]
FinalAnswerStrategy = Literal["winner_reuse", "winner_present", "synthesize"]
OnTimeout = Literal["fail", "cancel", "continue"]
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
# MassGen's other values: each is kept, and the nearest of ours used (`_NEAREST`).
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
    # Strict in the first round, then balanced, then lenient.
    "sequential": "balanced",
    "adversarial": "strict",
    "consistency": "balanced",
    "diversity": "balanced",
    "reflective": "balanced",
    # Every item of a list must hold before a vote.
    "checklist": "strict",
    "checklist_scored": "strict",
    "checklist_gated": "strict",
}


class ContextPath(Spec):
    """A file or directory that all agents may read.

    Attributes:
        path: Where it is; a relative one is taken from the directory that the run is started in.
        permission: With "write", the agent that presents may change it, too.
        protected_paths: What of it nobody may change: absolute or relative to it, or to the
            directory of a file.
        description: What the path holds, for the agents.
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
    def _from_here(cls, value: str) -> str:
        # A journal keeps it, and a resume from elsewhere reads the same place.
        with suppress(RuntimeError):  # ~nobody: the fault is shown when the path is looked for
            return str(start_place() / Path(value).expanduser())
        return value


class BackgroundSpec(Spec):
    """MassGen's section ``orchestrator.coordination.background_subagents``.

    Attributes:
        enabled: Whether agents may go on with their work while their sub-agents work.
        injection_strategy: Where their results come when they have ended: at the end of the result
            of the agent's next tool, or as a message of their own behind that.
    """

    enabled: bool = True
    injection_strategy: Literal["tool_result", "user_message"] = "tool_result"


class CoordinationSpec(Spec):
    """MassGen's section ``orchestrator.coordination``.

    Attributes:
        enable_planning_mode: Whether agents only plan while they coordinate, without tools that
            change anything, and the presenter alone acts.
        planning_mode_instruction: An additional instruction for agents while they plan.
        max_orchestration_restarts: How often the team may begin again when whoever gave the final
            answer finds that it will not do.
        enable_agent_task_planning: Whether each agent keeps a plan of tasks, by tools.
        max_tasks_per_plan: How many tasks a plan may have.
        task_planning_filesystem_mode: Whether agents are told that plans are files, which they may
            keep notes beside, and read of the others; that they are holds in any case.
        enable_memory_filesystem_mode: Whether agents keep memories as files of their workspaces,
            and are shown those of the team.
        use_skills: Whether prompts list the skills below `skills_directory`.
        skills_directory: Where those are: looked for beside the team's file, then in the working
            directory.
        massgen_skills: Names of skills that come with MassGen; not available here.
        enable_subagents: Whether agents may spawn sub-agents of their own kind for parts of the
            work.
        background_subagents: Whether in the background.
        subagent_max_concurrent: How many of an agent's may work at once.
        subagent_default_timeout: Seconds that one gets, within the next two.
        subagent_min_timeout, subagent_max_timeout: The fewest and the most seconds.
        write_mode: How context paths are changed that may be: with None and "legacy" themselves, by
            who presents; else each agent changes a copy, a git worktree, and what the one has
            changed whose answer is final is merged.
        drift_conflict_policy: What becomes of files of which the same lines have been changed
            meanwhile: "fail" merges none of all, "skip" (MassGen's default) leaves these out,
            "prefer_presenter" replaces them, and says how they are brought back.
    """

    enable_planning_mode: bool = False
    planning_mode_instruction: str = ""
    max_orchestration_restarts: StrictInt = Field(default=0, ge=0)
    enable_agent_task_planning: bool = False
    max_tasks_per_plan: Count = 10
    task_planning_filesystem_mode: bool = False
    enable_memory_filesystem_mode: bool = False
    use_skills: bool = False
    skills_directory: Annotated[str, AfterValidator(beside_the_file)] = ".agent/skills"
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
        """Seconds that a sub-agent gets."""
        least = max(self.subagent_default_timeout, self.subagent_min_timeout)
        return min(least, self.subagent_max_timeout)

    @property
    def skills_path(self) -> Path | None:
        """The absolute path of the skills' directory; None if agents get no skills."""
        path = Path(self.skills_directory).expanduser()
        return path.resolve() if self.use_skills and path.is_dir() else None


class OrchestratorSpec(Spec):
    """How the team works together.

    Attributes:
        context_paths: Paths that all agents may read, and the presenter may write if they allow it.
        max_new_answers_per_agent: Answers after which an agent can only vote; None has no limit.
        max_new_answers_global: Answers of all agents after which all can only vote; None has no
            limit.
        answer_novelty_requirement: How much an answer must differ from those that are there.
        defer_voting_until_all_answered: Whether nobody votes before everybody has answered.
        fairness_enabled: Whether an agent may not run ahead of the slowest one.
        fairness_lead_cap_answers: By how many answers it may.
        voting_sensitivity: How demanding voters are, as the file says it; `voting_criteria` is
            what that means here.
        skip_voting: Whether the team is done when all have answered.
        skip_final_presentation: Whether the winner's answer is taken as it stands.
        final_answer_strategy: Where the final answer comes from; None means ``winner_reuse`` with
            `skip_final_presentation`, else ``winner_present``.
        max_cost: US dollars after which the run is stopped gracefully; None has no limit.
        max_tokens: Tokens after which it is; None has no limit.
        max_orchestration_restarts: The same as in `coordination`, at the upper level.
        coordination: MassGen's section of that name.
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
    max_orchestration_restarts: StrictInt = Field(default=0, ge=0)
    coordination: CoordinationSpec = CoordinationSpec()

    @property
    def max_restarts(self) -> int:
        """How often the team may begin again."""
        return self.coordination.max_orchestration_restarts or self.max_orchestration_restarts

    @property
    def writes_context_paths(self) -> bool:
        """Whether the presenter may change some of them directly."""
        return self._may_write and not self._wants_copies

    @property
    def copies_context_paths(self) -> bool:
        """Whether agents change copies of some, as far as there can be any."""
        return self._may_write and self._wants_copies

    @property
    def _may_write(self) -> bool:
        return any(each.permission == "write" for each in self.context_paths)

    @property
    def _wants_copies(self) -> bool:
        # Source: MassGen, whose `auto` and `isolated` differ in how a copy is made alone.
        return self.coordination.write_mode not in (None, "legacy")

    @property
    def protects_paths(self) -> bool:
        """Whether there are files that no agent may change."""
        return any(each.protected_paths for each in self.context_paths)

    @property
    def voting_criteria(self) -> Sensitivity:
        """What `voting_sensitivity` means here: itself, or the nearest for MassGen's others."""
        given = self.voting_sensitivity
        return _NEAREST[given] if given in _NEAREST else cast(Sensitivity, given)


class RetrySpec(Spec):
    """How often a failed model call is tried again, and after how long.

    Attributes:
        attempts: How many tries may follow the first; 0 means none.
        delay: Seconds before the first of them.
        backoff: How the delay grows: d, d, d (``none``), d, 2d, 3d (``linear``) or d, 2d, 4d
            (``exponential``).
        max_delay: Seconds that it grows to; also the longest wait that a server may ask for.
        max_silence: Seconds without a word after which a model's reply counts as lost.
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
    """How calls of tools, and the gates of recipes, that wait for a person are approved.

    Attributes:
        timeout: Seconds to wait for an approval; None means no limit.
        auto_approve_on_timeout: Whether that approves; else it denies.
        approvers: Who may decide; empty means everybody.
        required_approvals: How many of them must approve.
    """

    timeout: Seconds | None = None
    auto_approve_on_timeout: bool = False
    approvers: tuple[str, ...] = ()
    required_approvals: StrictInt = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _enough_approvers(self) -> ApprovalSpec:
        if self.approvers and self.required_approvals > len(set(self.approvers)):
            raise ValueError(
                f"{self.required_approvals} approvals are required, and there are "
                f"{len(set(self.approvers))} approvers"
            )
        return self


class TimeoutSpec(Spec):
    """Time limits, seconds.

    Attributes:
        orchestrator_timeout_seconds: For the whole turn.
        initial_round_timeout_seconds: For an agent's first round; None has no limit.
        subsequent_round_timeout_seconds: For each later one; None has no limit.
        round_timeout_grace_seconds: Between a round's limit and its end, to wrap up.
        on_timeout: What the end of `orchestrator_timeout_seconds` makes of the run: it has
            failed (``fail``), it is stopped (``cancel``), or it goes on and only says so
            (``continue``).
    """

    orchestrator_timeout_seconds: Seconds = DEFAULT_ORCHESTRATOR_TIMEOUT_S
    initial_round_timeout_seconds: Seconds | None = None
    subsequent_round_timeout_seconds: Seconds | None = None
    round_timeout_grace_seconds: Grace = DEFAULT_ROUND_GRACE_S
    on_timeout: OnTimeout = "cancel"
