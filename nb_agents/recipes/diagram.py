"""A recipe as a Mermaid flowchart: stages, steps, gates, loops and what they wait for.

Labels come from files: every character that means something to Mermaid, Markdown or HTML becomes
a number code, so that a label can neither end its quotes nor carry markup.

Source: flowchart syntax and its entity codes, https://mermaid.js.org/syntax/flowchart.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_step import Step
from nb_agents.recipes.outline import does, one_line, only_when, repeats

__all__ = ["mermaid"]

_SHAPES = {"agent": '("{}")', "bash": '[/"{}"/]', "recipe": '[["{}"]]'}
_END = '(["{}"])'
_GATE = '{{"{}"}}'
_PLAIN = " ,:/·…"
_PLAIN_INSIDE = "-_."
"""Harmless inside a word; at its edge Markdown may take them for a list or for emphasis."""


def mermaid(recipe: Recipe) -> str:
    """Draw a recipe.

    Args:
        recipe: The recipe; recipes that it calls are single nodes.

    Returns:
        The flowchart's source. Steps are shaped by what they do: an agent is rounded, a command
        slanted, a recipe has double sides; gates are diamonds, stages and nested steps are boxes.
        Conditions stand on the way in, loops lead back, dotted arrows are ``depends_on``.

    Example:
        >>> text = "{name: hi, description: d, version: 1.0.0, "
        >>> text += "steps: [{id: a, type: bash, command: 'echo hi'}]}"
        >>> print(mermaid(Recipe.from_text(text, "hi.yaml")))
        flowchart TD
          n0(["hi 1.0.0"])
          n1[/"a<br/>bash"/]
          n2(["done"])
          n0 --> n1
          n1 --> n2
        <BLANKLINE>
    """
    chart = _Chart()
    chart.draw(recipe)
    return "\n".join(["flowchart TD", *chart.nodes, *chart.edges, ""])


@dataclass
class _Chart:
    """Nodes and edges that grow.

    Attributes:
        nodes: Lines, boxes included.
        edges: Lines; after all nodes, because a node belongs to the box that names it first.
    """

    nodes: list[str] = field(default_factory=list)
    edges: list[str] = field(default_factory=list)
    _count: int = 0
    _depth: int = 1
    _tail: str = ""
    _labels: list[str] = field(default_factory=list)
    """Of the edge that is next to leave the tail."""
    _by_id: dict[str, str] = field(default_factory=dict)

    def draw(self, recipe: Recipe) -> None:
        """Add a recipe."""
        self._tail = self._node(_END, f"{recipe.name} {recipe.version}")
        for stage in recipe.stages:
            self._labels.append(only_when(stage))
            if stage.name:
                with self._box(stage.name):
                    self._steps(stage.steps)
            else:
                self._steps(stage.steps)
            if stage.gate:
                self._gate(stage.gate.prompt)
        self._lead_to(self._node(_END, "done"))

    def _gate(self, prompt: str) -> None:
        gate = self._node(_GATE, prompt or "approve?")
        self._lead_to(gate)
        self._edge(gate, self._node(_END, "stopped"), "denied")
        self._labels.append("approved")

    def _steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            self._labels.append(only_when(step))
            before = self._tail
            first = self._group(step) if step.kind == "group" else self._single(step)
            if step.is_loop:
                # Of one node the label stands in it: beside it, the next node would cover it.
                self._edge(self._tail, first, repeats(step) if step.kind == "group" else "")
            for id_ in step.depends_on:
                if self._by_id[id_] != before:  # the arrow from the step before says it already
                    self._edge(self._by_id[id_], first, "", "-.->")
            self._by_id[step.id] = self._tail

    def _single(self, step: Step) -> str:
        lines = filter(None, [step.id, does(step), repeats(step)])
        node = self._node(_SHAPES[step.kind], *lines)
        self._lead_to(node)
        return node

    def _group(self, step: Step) -> str:
        with self._box(step.id):
            first = f"n{self._count}"
            self._steps(step.steps)
        return first

    def _lead_to(self, node: str) -> None:
        self._edge(self._tail, node, " · ".join(filter(None, self._labels)))
        self._tail, self._labels = node, []

    def _edge(self, start: str, end: str, label: str, arrow: str = "-->") -> None:
        said = f'|"{_label(label)}"|' if label else ""
        self.edges.append(f"  {start} {arrow}{said} {end}")

    def _node(self, shape: str, *texts: str) -> str:
        name = f"n{self._count}"
        self._count += 1
        self._add(name + shape.format("<br/>".join(_label(text) for text in texts)))
        return name

    @contextmanager
    def _box(self, title: str) -> Iterator[None]:
        self._add(f'subgraph b{len(self.nodes)}["{_label(title)}"]')
        self._depth += 1
        yield
        self._depth -= 1
        self._add("end")

    def _add(self, line: str) -> None:
        self.nodes.append("  " * self._depth + line)


def _label(text: str) -> str:
    """Write a text so that it is shown and never read."""
    line = one_line(text) or "…"  # an empty label can't be parsed
    around = zip(f" {line}", line, f"{line[1:]} ", strict=False)
    return "".join(c if _is_plain(b, c, a) else f"#{ord(c)};" for b, c, a in around)


def _is_plain(before: str, char: str, after: str) -> bool:
    # Mermaid marks number codes with these inside; its `ß` and `ﬂ` are letters.
    if char in "ßﬂ":
        return False
    if char in _PLAIN_INSIDE:
        return before.isalnum() and after.isalnum()
    return char.isalnum() or char in _PLAIN
