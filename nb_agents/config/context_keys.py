"""The settings of context folding, for agents whose work is longer than a context window."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from nb_agents.config.spec import Spec


def _as_mode(value: object) -> object:
    # YAML reads `off` as false.
    return "off" if value is False else value


class ContextSpec(Spec):
    """How older parts of an agent's conversation are folded when its context window fills up.

    Attributes:
        window: The model's context window in tokens. By default, it is known for the model, or
            learned when the server rejects a request.
        fold_at: The fraction of the window at which the conversation is folded.
        keep_rounds: The number of latest replies that, with their tool results, stay complete.
        fold: ``summary`` replaces old replies with a list of their calls and a summary written by a
            model. ``results`` only shortens old tool results. ``off`` never folds.
        summarize_with: The id of the agent whose model writes the summaries. By default, the
            agent's own model.
    """

    window: Annotated[int | None, Field(gt=0)] = None
    fold_at: Annotated[float, Field(gt=0, le=1)] = 0.8
    keep_rounds: Annotated[int, Field(ge=1)] = 3
    fold: Annotated[Literal["summary", "results", "off"], BeforeValidator(_as_mode)] = "summary"
    summarize_with: str | None = None
