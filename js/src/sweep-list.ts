/** The search, filter and order of the rows that a sweep's panel lists. */

import { make, setAttr, setHidden } from "./dom";
import { settings } from "./settings";
import type { RowState, SweepRow, SweepState } from "./panel-types";
import { trans } from "./text";

/** Number of listed rows from which they can be searched and sorted. */
const MANY = 5;

type Order = "latest" | "title" | "tokens" | "score";

function orders(): readonly (readonly [Order, string])[] {
  return [
    ["latest", trans.__("Latest first")],
    ["title", trans.__("By title")],
    ["tokens", trans.__("Most tokens first")],
    ["score", trans.__("Best score first")],
  ];
}

export interface ListTools {
  readonly el: HTMLElement;
  draw(state: SweepState): void;
  /** List only the rows in a state or, if it is the only one already, all rows. */
  toggle(state: RowState): void;
  isOnly(state: RowState): boolean;
  /** Return the rows to list, in order. */
  listed(rows: readonly SweepRow[]): readonly SweepRow[];
}

export function makeListTools(life: AbortSignal, redraw: () => void): ListTools {
  let only: RowState | "" = "";
  const search = make("input");
  search.type = "search";
  search.placeholder = trans.__("Search rows");
  search.setAttribute("aria-label", search.placeholder);
  const order = make("select");
  order.setAttribute("aria-label", trans.__("Order of the rows"));
  const options = orders().map(([value, text]) => makeOption(value, text));
  order.append(...options);
  search.addEventListener("input", redraw, { signal: life });
  order.addEventListener("change", redraw, { signal: life });
  const el = make("div", "find", search, order);
  el.setAttribute("role", "search");
  // JupyterLab's shortcuts must not act on typed keys.
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  return {
    el,
    isOnly: (state) => only === state,
    toggle(state) {
      only = only === state ? "" : state;
      redraw();
    },
    draw(state) {
      if (!state.counts.some((each) => each.state === only)) only = ""; // its chip is gone
      const isUsed = search.value !== "" || order.value !== "latest";
      setHidden(el, state.rows.length < MANY && !isUsed);
      const score = options.at(-1);
      if (score) setAttr(score, "hidden", state.rows.some((row) => row.score !== null) ? null : "");
    },
    listed(rows) {
      const words = search.value.toLowerCase().split(/\s+/);
      const found = rows.filter((row) => (only === "" || row.state === only) && hasWords(row, words));
      return sorted(found, order.value as Order).slice(0, settings().rowLimit);
    },
  };
}

function makeOption(value: Order, text: string): HTMLOptionElement {
  const option = make("option");
  option.value = value;
  option.textContent = text;
  return option;
}

function hasWords(row: SweepRow, words: readonly string[]): boolean {
  const text = [row.name, row.model, row.says, row.chip, row.id].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}

function sorted(rows: readonly SweepRow[], order: Order): readonly SweepRow[] {
  const by = { title: byTitle, tokens: byTokens, score: byScore };
  return order === "latest" ? rows : [...rows].sort(by[order]);
}

const titles = new Intl.Collator(undefined, { numeric: true });
const byTitle = (a: SweepRow, b: SweepRow): number => titles.compare(a.name ?? a.id, b.name ?? b.id);
const byTokens = (a: SweepRow, b: SweepRow): number => b.tokens - a.tokens;
const byScore = (a: SweepRow, b: SweepRow): number => (b.score ?? -Infinity) - (a.score ?? -Infinity) || 0;
