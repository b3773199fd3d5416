"""Shows a recipe as lines of text, and as a Mermaid flowchart.

Labels come from untrusted files. Every character that has a meaning in Mermaid, Markdown or HTML is
escaped as a character code, so a label can't close its quotes or contain markup.

Source: flowchart syntax and its entity codes, https://mermaid.js.org/syntax/flowchart.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.recipe_step import Stage, Step
from nb_agents.nouns import count

MAX_SHOWN = 80
"""The maximum number of characters shown of a string."""

_SHORT = "…"

_SHAPES = {"agent": '("{}")', "bash": '[/"{}"/]', "recipe": '[["{}"]]'}
_NAME = '["{}"]'
"""The first node in the box of a stage or group."""
_END = '(["{}"])'
_GATE = '{{"{}"}}'
_PLAIN = " ,:/·…"
_PLAIN_INSIDE = "-_."
"""Harmless inside a word. At the edge of a word, Markdown may read them as a list or emphasis."""


def one_line(text: str) -> str:
    """Put text on one line and shorten it. Unprintable characters become spaces."""
    flat = "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_SHOWN])
    words = " ".join(flat.split())
    return words if len(words) <= MAX_SHOWN else words[: MAX_SHOWN - 1].rstrip() + _SHORT


def step_target(step: Step) -> str:
    """Return what a step runs, such as "agent critic" or "bash"."""
    details = {
        "agent": f"agent {step.agent}",
        "bash": "bash",
        "recipe": f"recipe {step.recipe}",
        "group": count(len(step.steps), "step"),
    }
    return one_line(details[step.kind])


def repeats(step: Step) -> str:
    """Return how a step repeats, or "" if it is not a loop."""
    if step.foreach:
        limit = "" if isinstance(step.parallel, bool) else f" {step.parallel} at a time"
        pace = f", in parallel{limit}" if step.parallel else ""
        return one_line(f"for each {step.as_} of {step.foreach}{pace}")
    if step.while_condition:
        until = f" until {step.break_when}" if step.break_when else ""
        limit = f", at most {step.max_while_iterations} times"
        return one_line(f"while {step.while_condition}{until}") + one_line(limit)
    return ""


def only_when(step: Step | Stage) -> str:
    """Return the condition of a step or stage, or "" if it always runs."""
    return one_line(f"if {step.condition}") if step.condition else ""


@dataclass
class Outline:
    """An indented list of a recipe's stages and steps.

    Attributes:
        lines: The lines written so far.
    """

    lines: list[str] = field(default_factory=list)
    _depth: int = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Indent the lines that are added in the block."""
        self._depth += 1
        yield
        self._depth -= 1

    def recipe(self, recipe: Recipe) -> None:
        """Add a recipe's heading."""
        self._add(f"recipe {recipe.name} {recipe.version}: {one_line(recipe.description)}")
        self._depth += 1
        if recipe.required:
            self._add(f"needs: {one_line(', '.join(recipe.required))}")
        if recipe.context:
            self._add(f"variables: {one_line(', '.join(recipe.context))}")
        self._depth -= 1

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Add a stage's heading and indent its steps. A stage without a name adds nothing."""
        if not stage.name:
            yield
            return
        self._add(" · ".join(filter(None, [f"stage {stage.name}", only_when(stage)])))
        with self.inside():
            yield

    def gate(self, stage: Stage) -> None:
        """Add the gate after a stage."""
        gate = stage.gate
        if gate is None:
            return
        wait = f"{gate.default} after {gate.timeout} s" if gate.timeout else "no time limit"
        parts = [f"gate after {stage.name}: needs approval", one_line(wait)]
        if stage.auto_approve_if:
            condition = " and ".join(stage.auto_approve_if)
            parts.append(one_line(f"approved automatically if {condition}"))
        self._add(" · ".join(parts))

    def step(self, step: Step, worker: str = "") -> None:
        """Add a step, with the agent that would run it, or ""."""
        done = f"{step_target(step)} = {one_line(worker)}" if worker else step_target(step)
        parts = [f"{one_line(step.id)}: {done}", only_when(step), repeats(step)]
        if step.depends_on:
            parts.append(one_line("after " + ", ".join(step.depends_on)))
        if step.retry.max_attempts != 1:
            parts.append(one_line(f"up to {step.retry.max_attempts} attempts"))
        if step.on_error != "fail":
            parts.append(f"on error {step.on_error.replace('_', ' ')}")
        outputs = [n for n in (step.output, step.output_exit_code, step.collect) if n]
        if outputs:
            parts.append("→ " + one_line(", ".join(outputs)))
        self._add(" · ".join(filter(None, parts)))

    def _add(self, line: str) -> None:
        self.lines.append("  " * self._depth + line)


def mermaid(recipe: Recipe) -> str:
    """Draw a recipe as a flowchart.

    Args:
        recipe: The recipe. Each recipe that it calls becomes a single node.

    Returns:
        The flowchart's source. Agent steps are rounded, commands slanted and sub-recipes
        double-sided. Gates are diamonds. Stages and groups of steps are boxes that begin with their
        name: an arrow into the box would cross a title. Conditions label the incoming arrows,
        groups that repeat have an arrow back, and dotted arrows are ``depends_on``.

    Example:
        >>> text = "{name: hi, description: d, version: 1.0.0, "
        >>> text += "steps: [{id: a, type: bash, command: 'echo hi'}]}"
        >>> print(mermaid(Recipe.from_text(text, "hi.yaml")))
        flowchart TD
          n0(["hi 1.0.0"])
          n1[/"a<br/>bash"/]
          n2(["complete"])
          n0 --> n1
          n1 --> n2
        <BLANKLINE>
    """
    chart = _Chart()
    chart.draw(recipe)
    return "\n".join(["flowchart TD", *chart.nodes, *chart.edges, ""])


@dataclass
class _Chart:
    """The nodes and edges of a flowchart.

    Attributes:
        nodes: Lines of nodes and boxes.
        edges: Lines of edges. They follow all nodes, because Mermaid puts a node into the first
            box that mentions it.
    """

    nodes: list[str] = field(default_factory=list)
    edges: list[str] = field(default_factory=list)
    _count: int = 0
    _depth: int = 1
    _tail: str = ""
    _labels: list[str] = field(default_factory=list)
    """Labels for the next arrow, which starts at the last node."""
    _by_id: dict[str, str] = field(default_factory=dict)

    def draw(self, recipe: Recipe) -> None:
        """Add the nodes and arrows of a recipe."""
        self._tail = self._node(_END, f"{recipe.name} {recipe.version}")
        for stage in recipe.stages:
            self._labels.append(only_when(stage))
            if stage.name:
                with self._box():
                    self._lead_to(self._node(_NAME, stage.name))
                    self._steps(stage.steps)
            else:
                self._steps(stage.steps)
            if stage.gate:
                self._gate(stage.gate.prompt)
        self._lead_to(self._node(_END, "complete"))

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
            for id_ in step.depends_on:
                if self._by_id[id_] != before:  # the arrow from the previous step already exists
                    self._edge(self._by_id[id_], first, "", "-.->")
            self._by_id[step.id] = self._tail

    def _single(self, step: Step) -> str:
        lines = filter(None, [step.id, step_target(step), repeats(step)])
        node = self._node(_SHAPES[step.kind], *lines)
        self._lead_to(node)
        return node

    def _group(self, step: Step) -> str:
        with self._box():
            first = self._node(_NAME, *filter(None, [step.id, repeats(step)]))
            self._lead_to(first)
            self._steps(step.steps)
            if step.is_loop:
                self._edge(self._tail, first, "")
        return first

    def _lead_to(self, node: str) -> None:
        self._edge(self._tail, node, " · ".join(filter(None, self._labels)))
        self._tail, self._labels = node, []

    def _edge(self, start: str, end: str, label: str, arrow: str = "-->") -> None:
        labelled = f'|"{_label(label)}"|' if label else ""
        self.edges.append(f"  {start} {arrow}{labelled} {end}")

    def _node(self, shape: str, *texts: str) -> str:
        name = f"n{self._count}"
        self._count += 1
        self._add(name + shape.format("<br/>".join(_label(text) for text in texts)))
        return name

    @contextmanager
    def _box(self) -> Iterator[None]:
        self._add(f'subgraph b{len(self.nodes)}[" "]')
        self._depth += 1
        yield
        self._depth -= 1
        self._add("end")

    def _add(self, line: str) -> None:
        self.nodes.append("  " * self._depth + line)


def _label(text: str) -> str:
    """Escape text so that Mermaid shows it and never interprets it."""
    line = one_line(text) or "…"  # Mermaid can't parse an empty label
    around = zip(f" {line}", line, f"{line[1:]} ", strict=False)
    return "".join(c if _is_plain(b, c, a) else f"#{ord(c)};" for b, c, a in around)


def _is_plain(before: str, char: str, after: str) -> bool:
    # Mermaid uses ß and ﬂ internally to mark character codes.
    if char in "ßﬂ":
        return False
    if char in _PLAIN_INSIDE:
        return before.isalnum() and after.isalnum()
    return char.isalnum() or char in _PLAIN
