"""Computes the card of a comparison of two teams. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.extensions.sweeps.comparison import ComparisonVerdict, EffectPoint, arm_name
from nb_agents.extensions.sweeps.row_titles import row_title
from nb_agents.extensions.sweeps.sweep_card import SWEEP_MIME, spent, sweep_data
from nb_agents.nouns import count
from nb_agents.presentation import text
from nb_agents.presentation.asking import CELL, EntryPoint
from nb_agents.presentation.cards import card_template
from nb_agents.presentation.markdown import sanitize
from nb_agents.presentation.stylesheet import with_stylesheet

if TYPE_CHECKING:
    from nb_agents.extensions.sweeps.comparison import ComparisonSpec
    from nb_agents.extensions.sweeps.comparison_file import ComparisonOnDisk
    from nb_agents.extensions.sweeps.notes import RowResult
    from nb_agents.extensions.sweeps.sweep_fold import SweepView

WIDTH, HEIGHT = 640, 150
"""Size of the plot, without its axes."""
MAX_LABEL = 40
"""Maximum length of a team's name, in characters."""
MAX_ANSWER = 200
"""Maximum length of an answer, in characters."""
MAX_NAME = 60
"""Maximum length of a row's title, in characters."""


class EffectPlot(NamedTuple):
    """The plot of the effect over the rows, in pixels.

    Attributes:
        band: The polygon of the intervals.
        line: The polyline of the effect.
        marks: Labels of the vertical axis, with their positions.
        rows: The number of rows at the right end.
    """

    band: str
    line: str
    marks: Sequence[tuple[str, float]]
    rows: int


class DifferingRow(NamedTuple):
    """A row in which the scores of the teams differ."""

    title: str
    difference: str
    answers: tuple[str, str]


@dataclass(frozen=True)
class _ComparisonCard:
    """The text on a card."""

    title: str
    state: str
    headline: str
    is_decided: bool
    effect: str
    meaning: str
    counts: Sequence[str]
    notes: Sequence[str]
    plot: EffectPlot | None
    teams: tuple[str, str]
    rows: Sequence[DifferingRow]
    continuation: str
    footer: Sequence[str]


def comparison_bundle(
    view: SweepView, found: ComparisonOnDisk, title: str, path: str
) -> dict[str, Any]:
    """Return the card of a comparison as a mime bundle.

    Args:
        view: The sweep's state.
        found: The comparison.
        title: The task.
        path: The sweep's directory, as shown to the user.
    """
    card = _card(view, found, title, path, CELL)
    template = card_template("comparison.html.j2", __package__)
    html = template.render(card=card, text=text, width=WIDTH, height=HEIGHT)
    return sanitize(
        {
            "text/html": with_stylesheet(html),
            "text/plain": _text(card),
            SWEEP_MIME: _data(view, found, card, path),
        }
    )


def comparison_text(
    view: SweepView, found: ComparisonOnDisk, title: str, path: str, entry_point: EntryPoint
) -> str:
    """Return the card of a comparison as text, with the commands of an interface.

    The other arguments are the same as for `comparison_bundle`.
    """
    return _text(_card(view, found, title, path, entry_point))


def _data(
    view: SweepView, found: ComparisonOnDisk, card: _ComparisonCard, path: str
) -> dict[str, Any]:
    verdict = asdict(found.verdict)
    del verdict["history"], verdict["different"]
    return {
        **sweep_data(view, card.title, card.state, path),
        "answers": [],
        "comparison": {"teams": list(card.teams), **verdict},
    }


def _card(
    view: SweepView, found: ComparisonOnDisk, title: str, path: str, entry_point: EntryPoint
) -> _ComparisonCard:
    verdict, spec = found.verdict, found.spec
    a, b = teams = text.clip(spec.teams[0], MAX_LABEL), text.clip(spec.teams[1], MAX_LABEL)
    scale = spec.high - spec.low
    effect = (
        f"{verdict.effect:+.3g} (95 % interval: {verdict.low:+.3g} to {verdict.high:+.3g})"
        if verdict.rows_used
        else ""
    )
    what = (
        f"Mean score of {b} minus that of {a}, where scores go from {spec.low:g} to {spec.high:g}."
    )
    if spec.pairwise:
        what = f"Part of the rows in which {b} is better, minus that in which {a} is."
    return _ComparisonCard(
        text.clip(title, 200),
        view.state,
        headline(verdict, spec),
        verdict.decision != "undecided",
        effect,
        what,
        _counts(verdict),
        _notes(view, found),
        _plot(verdict.history, scale),
        teams,
        [_different(row, size, found) for row, size in verdict.different],
        _continuation(view, verdict, entry_point),
        [*filter(None, [view.name, text.seconds(view.elapsed_s), spent(view), path])],
    )


def headline(verdict: ComparisonVerdict, spec: ComparisonSpec) -> str:
    """Return the verdict as a sentence."""
    if verdict.winner:
        other = next(name for name in spec.teams if name != verdict.winner)
        return f"{verdict.winner} is better than {other}."
    if verdict.decision == "equal":
        a, b = spec.teams
        return f"{a} and {b} differ by less than {spec.margin:g}."
    if not verdict.is_final:
        return "Not decided yet."
    return f"Undecided: {verdict.reason}."


def _counts(verdict: ComparisonVerdict) -> list[str]:
    counts = [f"{verdict.rows_used:,} of {count(verdict.rows_total, 'row')} used"]
    if verdict.is_final and verdict.rows_saved:
        counts.append(f"{verdict.rows_saved:,} saved")
    needless = verdict.rows_total - verdict.rows_used - verdict.rows_unscored - verdict.rows_saved
    if verdict.is_final and needless:
        counts.append(f"{needless:,} more started before the end")
    return counts


def _notes(view: SweepView, found: ComparisonOnDisk) -> list[str]:
    verdict, spec, notes = found.verdict, found.spec, []
    if view.failed:
        lowest = "counts as worse" if spec.pairwise else f"gets the score {spec.low:g}"
        notes.append(f"{count(view.failed, 'run')} failed. A failed run {lowest}.")
    if verdict.rows_unscored:
        notes.append(
            f"{count(verdict.rows_unscored, 'row')} without a score from "
            f"{spec.low:g} to {spec.high:g} {'is' if verdict.rows_unscored == 1 else 'are'} left "
            "out."
        )
        row, why = found.unscored
        notes.append(f"{_title(row, found)}: {text.clip(why, MAX_ANSWER)}")
    if view.is_over and not verdict.is_final and view.reason:
        notes.append(f"Stopped: {text.clip(view.reason, 200)}.")
    return notes


def _continuation(view: SweepView, verdict: ComparisonVerdict, entry_point: EntryPoint) -> str:
    """Return how to continue a comparison that has ended without a decision, or ""."""
    if verdict.is_final:
        return ""
    again = f"{entry_point.again} to continue. Finished rows are not repeated."
    if view.is_over:
        return again
    return f"If its {entry_point.writer} has ended: {again[0].lower()}{again[1:]}"


def _plot(history: Sequence[EffectPoint], scale: float) -> EffectPlot | None:
    """Return the plot, or None for fewer than two points.

    The first intervals are much wider than the last ones, so they are clipped.
    """
    if len(history) < 2:
        return None
    shown = history[len(history) // 4 :]
    limit = min(scale, 1.1 * max(max(abs(each.low), abs(each.high)) for each in shown))
    rows = history[-1].rows

    def at(point: EffectPoint, value: float) -> str:
        clipped = max(-limit, min(limit, value))
        x, y = WIDTH * point.rows / rows, HEIGHT * (1 - clipped / limit) / 2
        return f"{x:.1f},{y:.1f}"

    upper = [at(point, point.high) for point in history]
    lower = [at(point, point.low) for point in reversed(history)]
    line = [at(point, point.effect) for point in history]
    marks = [(f"{limit:+.2g}", 0.0), ("0", HEIGHT / 2), (f"{-limit:+.2g}", float(HEIGHT))]
    return EffectPlot(" ".join([*upper, *lower]), " ".join(line), marks, rows)


def _different(row: str, size: float, found: ComparisonOnDisk) -> DifferingRow:
    both = [found.results.get(arm_name(row, arm)) for arm in ("a", "b")]
    a, b = (_answer(result) for result in both)
    return DifferingRow(_title(row, found), f"{size:+.3g}", (a, b))


def _title(row: str, found: ComparisonOnDisk) -> str:
    values: Mapping[str, str] = found.values.get(row, {})
    shown = {name: value for name, value in values.items() if name not in _TEAM_COLUMNS}
    title, rest = row_title(row, shown)
    return text.clip(f"{title} ({rest})" if rest else title, MAX_NAME)


_TEAM_COLUMNS = {"team", "compared_team"}


def _answer(result: RowResult | None) -> str:
    if result is None:
        return ""
    said = result.error if result.status == "failed" else str(result.answer or "")
    return text.clip(text.without_markdown(said, MAX_ANSWER), MAX_ANSWER)


def _text(card: _ComparisonCard) -> str:
    lines = [f"{card.title} [{card.state}]", "", card.headline]
    lines += [f"Effect: {card.effect}", card.meaning] if card.effect else []
    lines += [" · ".join(card.counts), *card.notes]
    lines += ["", "Rows that differ most:"] if card.rows else []
    for row in card.rows:
        lines.append(f"{row.difference} {row.title}")
        lines += [f"  {team}: {said}" for team, said in zip(card.teams, row.answers, strict=True)]
    lines += ["", card.continuation] if card.continuation else []
    return "\n".join([*lines, "", " · ".join(card.footer)])
