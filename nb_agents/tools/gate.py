"""Checks all tools before they are offered to a model or an external agent.

A provider rejects a whole request because of a single tool that it does not accept, and the agent
would be unable to do anything. So each tool is checked separately. Its schema is repaired if that
does not change its meaning (`nb_agents.tools.tool_schemas`). A tool that can't be offered, or that
exceeds the limits on number and size, is left out, and a notice gives the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from anyio import to_thread

from nb_agents.errors import error_message
from nb_agents.models.tool_rules import MAX_SCHEMA_CHARS, ToolRules
from nb_agents.tools.base import Tool, Toolbox, ToolDefinition
from nb_agents.tools.tool_schemas import Restore, SchemaFault, fit_schema

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
"""Tool names that all providers accept.

Source: OpenAI's and Anthropic's "^[a-zA-Z0-9_-]{1,64}$"; Google's "must start with a letter or an
underscore".
"""

MAX_CHARS = 400_000
"""Maximum total length of an agent's tool definitions, in characters: about 100,000 tokens."""

RESERVED = 8
"""Number of tools reserved for decision tools; see `nb_agents.agents.decisions`."""

_MAX_CACHED = 10_000


class _Passed(NamedTuple):
    """A tool that can be offered.

    Attributes:
        definition: The definition that is sent to the model.
        restore: Converts the model's arguments to the tool's arguments. None if they are the same.
        chars: The size of the definition.
    """

    definition: ToolDefinition
    restore: Restore | None
    chars: int


class ToolGate:
    """Checks the tools of a run's agents, with a cache of the results.

    Args:
        notice: Called once with each notice for the user, which is one sentence.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._reported: set[str] = set()
        # The value holds references to the objects whose ids form the key, so that the ids are not
        # reused.
        self._checked_definitions: dict[
            tuple[int, int], tuple[ToolDefinition, ToolRules, _Passed | str]
        ] = {}

    async def admit(self, agent: str, toolbox: Toolbox, rules: ToolRules) -> Toolbox:
        """Return a toolbox without the tools that the model can't accept.

        Schemas are repaired where needed.

        Args:
            agent: The agent's id, for notices.
            toolbox: All tools of the agent.
            rules: The limits of the agent's model.
        """
        definitions = toolbox.definitions
        fresh = [
            each for each in definitions if (id(each), id(rules)) not in self._checked_definitions
        ]
        if any(each.is_foreign for each in fresh):  # may take a second
            verdicts = await to_thread.run_sync(
                self._check_definitions, definitions, rules, abandon_on_cancel=True
            )
        else:
            verdicts = self._check_definitions(definitions, rules)
        offered: list[Tool] = []
        for tool, verdict in zip(toolbox.tools, _limited(verdicts, rules), strict=True):
            if isinstance(verdict, str):
                self._tell(f"{agent}: tool {tool.name!r:.100} is left out: {verdict}.")
            else:
                offered.append(tool.offered_as(verdict.definition, verdict.restore))
        return toolbox.with_tools(offered)

    def _check_definitions(
        self, definitions: Sequence[ToolDefinition], rules: ToolRules
    ) -> list[_Passed | str]:
        if len(self._checked_definitions) > _MAX_CACHED:
            self._checked_definitions.clear()
        verdicts = []
        for each in definitions:
            key = id(each), id(rules)
            checked = self._checked_definitions.get(key) or (each, rules, _checked(each, rules))
            self._checked_definitions[key] = checked
            verdicts.append(checked[2])
        return verdicts

    def _tell(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._notice(text)


def _limited(verdicts: Iterable[_Passed | str], rules: ToolRules) -> Iterator[_Passed | str]:
    """Replace tools that exceed the limits on number and total size with the reason."""
    count = chars = 0
    for verdict in verdicts:
        if isinstance(verdict, str):
            yield verdict
        elif rules.most is not None and count == rules.most - RESERVED:
            yield f"the model accepts at most {rules.most} tools"
        elif chars + verdict.chars > MAX_CHARS:
            yield f"all tools together would have more than {MAX_CHARS} characters"
        else:
            count, chars = count + 1, chars + verdict.chars
            yield verdict


def _checked(definition: ToolDefinition, rules: ToolRules) -> _Passed | str:
    """Return the tool with a schema that the model accepts, or the reason it can't be offered."""
    if not NAME.fullmatch(definition.name):
        return f"a name must match {NAME.pattern}"
    try:
        fit = fit_schema(definition.parameters_json_schema)
    except SchemaFault as exc:
        return f"its schema {exc}"
    except Exception as exc:  # a bad schema must not affect other tools
        return f"its schema can't be read: {error_message(exc):.200}"
    checked = replace(
        definition,
        description=_cut(definition.description, rules.description_chars),
        parameters_json_schema=fit.schema,
        strict=rules.strict if definition.is_foreign else definition.strict,
    )
    size = len(json.dumps(fit.schema))
    if size > MAX_SCHEMA_CHARS:
        return f"its schema has more than {MAX_SCHEMA_CHARS} characters"
    size += len(checked.name) + len(checked.description or "")
    return rules.refusal(fit.schema) or _Passed(checked, fit.restore, size)


def _cut(text: str | None, most: int) -> str | None:
    return text if text is None or len(text) <= most else f"{text[: most - 1]}…"
