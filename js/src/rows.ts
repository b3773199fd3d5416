/** The table of agents or of a recipe's units. Each keeps its row element while it exists. */

import type { AgentRow } from "./panel-types";
import { make, setAttr, setClass, setHidden, setText, setTextOrHide } from "./dom";
import { PATIENCE_MS, listen } from "./press";
import { pendingLabel, stopLabel } from "./state";
import { trans } from "./text";

/** Number of rows from which the table scrolls and can be focused with the Tab key. */
const ROWS_IN_SIGHT = 8;

/** The columns' titles. The first one says what a row is. */
function columnsOf(row: string): readonly string[] {
  return [row, trans.__("Activity"), trans.__("Latest text"), trans.__("Tokens and cost")];
}

/** The first letter decides the text direction, like `dir=auto`. */
const RIGHT_TO_LEFT =
  /^\P{L}*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

/** Called with an agent to stop, and whether to stop immediately. */
export type StopAgent = (agent: string, now: boolean) => void;

interface Row {
  readonly el: HTMLTableRowElement;
  /** The row below it, with its open text. It is in the table only while the text is open. */
  readonly below: HTMLTableRowElement;
  draw(agent: AgentRow): void;
}

export interface Rows {
  readonly el: HTMLElement;
  draw(agents: readonly AgentRow[]): void;
  /** Return the element for the open text of a row, directly below it. */
  below(id: string): HTMLElement | undefined;
}

/** Opens and closes rows. */
export interface Opener {
  /** Called with a pressed row. */
  toggle(id: string): void;
  isOpen(id: string): boolean;
}

/** Labels for rows that are not agents or steps. */
export interface RowKind {
  readonly label: string;
  /** The title of the column with the rows' names. */
  readonly row: string;
  /** The title of a row's Stop button. */
  readonly stop: string;
  /** Runs a row again. */
  readonly again: (row: string) => void;
}

export function makeRows(life: AbortSignal, stop: StopAgent, opener: Opener, kind?: RowKind): Rows {
  const body = make("tbody");
  body.setAttribute("role", "rowgroup");
  const names = columnsOf(kind?.row ?? trans.__("Agent"));
  const columns = make("colgroup", "", ...names.map((_, i) => make("col", `c${i}`)));
  const table = make("table", "", columns, makeHead(names), body);
  table.setAttribute("role", "table");
  const el = make("div", "rows", table);
  el.setAttribute("role", "region");
  el.setAttribute("aria-label", trans.__("Agents"));
  const rows = new Map<string, Row>();
  let current = "";
  return {
    el,
    below(id) {
      const row = rows.get(id);
      if (row && !row.below.isConnected) row.el.after(row.below);
      return row?.below.firstElementChild as HTMLElement | undefined;
    },
    draw(agents) {
      const isTree = agents.some((agent) => agent.depth !== undefined);
      const isRecipe = agents.some((agent) => agent.pending !== undefined);
      setClass(el, isTree ? "rows tree" : "rows");
      setAttr(el, "aria-label", kind?.label ?? (isRecipe ? trans.__("Steps") : trans.__("Agents")));
      setHidden(el, agents.length === 0);
      setAttr(el, "tabindex", agents.length > ROWS_IN_SIGHT ? "0" : null);
      drawRows(body, rows, agents, (id) =>
        makeRow(id, life, makeStop(life, (now) => stop(id, now), kind?.stop), opener, kind?.again),
      );
      const id = agents.find((agent) => agent.current)?.id ?? "";
      if (id !== current) bringIntoSight(el, rows.get(id)?.el);
      current = id;
    },
  };
}

/** Scroll the list, but not the page, to a row, unless the user is reading in the list. */
function bringIntoSight(list: HTMLElement, row: HTMLElement | undefined): void {
  if (!row || list.matches(":hover") || list.contains(document.activeElement)) return;
  const below = row.offsetTop + row.offsetHeight - (list.scrollTop + list.clientHeight);
  if (below > 0) list.scrollTop += below + row.offsetHeight;
  else if (row.offsetTop < list.scrollTop) list.scrollTop = row.offsetTop;
}

function makeHead(names: readonly string[]): HTMLElement {
  const cells = names.map((title) => {
    const cell = make("th");
    cell.scope = "col";
    cell.setAttribute("role", "columnheader");
    cell.textContent = title;
    return cell;
  });
  const row = make("tr", "", ...cells);
  row.setAttribute("role", "row");
  const head = make("thead", "nba-sr", row);
  head.setAttribute("role", "rowgroup");
  return head;
}

function drawRows(
  body: HTMLElement,
  rows: Map<string, Row>,
  agents: readonly AgentRow[],
  makeNew: (id: string) => Row,
): void {
  const ids = new Set(agents.map((agent) => agent.id));
  for (const [id, row] of rows) {
    if (ids.has(id)) continue;
    row.el.remove();
    row.below.remove();
    rows.delete(id);
  }
  let next = body.firstElementChild;
  for (const agent of agents) {
    const row = rows.get(agent.id) ?? makeNew(agent.id);
    rows.set(agent.id, row);
    // Moving a node clears the selection in it, so only misplaced rows are moved.
    for (const el of row.below.isConnected ? [row.el, row.below] : [row.el]) {
      if (el === next) next = next.nextElementSibling;
      else body.insertBefore(el, next);
    }
    row.draw(agent);
  }
}

function makeRow(row: string, life: AbortSignal, stop: RowStop, opener: Opener, runAgain?: (row: string) => void): Row {
  const id = make("span", "id");
  const open = make("button", "open", id);
  open.type = "button";
  listen(open, life, () => opener.toggle(row));
  const model = make("small");
  const who = make("th", "who", open, model);
  who.scope = "row";
  who.setAttribute("role", "rowheader");
  id.dir = "auto";
  const chip = make("span", "chip");
  const says = makeSays();
  const used = make("span");
  const numbers = make("td", "num", used, stop.el);
  const again = runAgain && makeAgain(life, () => runAgain(row));
  if (again) numbers.append(again);
  const el = make("tr", "", who, make("td", "what", chip), make("td", "words", says.el), numbers);
  el.setAttribute("role", "row");
  const press = (event: MouseEvent): void => {
    const isElse = (event.target as Element).closest("button") ?? document.getSelection()?.toString();
    if (!isElse && !open.disabled) opener.toggle(row);
  };
  el.addEventListener("click", press, { signal: life });
  for (const cell of el.querySelectorAll("td")) cell.setAttribute("role", "cell");
  return {
    el,
    below: makeBelow(),
    draw(agent) {
      setText(id, agent.name ?? agent.id);
      setTextOrHide(model, agent.model);
      setAttr(who, "title", agent.title || null);
      const opens = agent.opens !== false;
      setAttr(open, "disabled", opens ? null : "");
      setAttr(open, "aria-expanded", opens ? String(opener.isOpen(row)) : null);
      setAttr(el, "aria-current", agent.current ? "step" : null);
      setClass(el, agent.pending ? "pending" : opens ? "opens" : "");
      if (agent.depth !== undefined) {
        el.style.setProperty("--nba-depth", String(agent.depth));
        // A table row has no level, so screen readers get it as a description.
        setAttr(who, "aria-description", agent.depth ? trans.__("level %1", agent.depth + 1) : null);
      }
      setTextOrHide(chip, agent.chip);
      setAttr(chip, "title", agent.chip);
      setClass(chip, `chip ${agent.tone}`);
      says.draw(agent.says, agent.writing);
      setText(used, agent.numbers);
      stop.draw(agent);
      if (again) {
        setHidden(again, !agent.again);
        setAttr(again, "aria-label", trans.__("Run %1 again", agent.name ?? agent.id));
      }
    },
  };
}

function makeAgain(life: AbortSignal, press: () => void): HTMLButtonElement {
  const button = make("button", "one again");
  button.type = "button";
  button.textContent = trans.__("Run again");
  listen(button, life, press);
  return button;
}

function makeBelow(): HTMLTableRowElement {
  const cell = make("td");
  cell.colSpan = columnsOf("").length;
  cell.setAttribute("role", "cell");
  const el = make("tr", "below", cell);
  el.setAttribute("role", "row");
  return el;
}

interface RowStop {
  readonly el: HTMLButtonElement;
  draw(agent: AgentRow): void;
}

function spokenLabel(agent: string, now: boolean, isSent: boolean): string {
  if (isSent) return trans.__("Stopping %1", agent);
  return now ? trans.__("Stop %1 now", agent) : trans.__("Stop %1", agent);
}

/** The Stop button of one agent, with the same labels as the run's. */
function makeStop(life: AbortSignal, stop: (now: boolean) => void, title = trans.__("Stop only this agent, after its call.")): RowStop {
  const el = make("button", "one");
  el.type = "button";
  let shown: AgentRow | undefined;
  let sent: boolean | null = null;
  const draw = (): void => {
    const offer = shown?.stop ?? null;
    // A changed or missing offer is the answer to a sent stop.
    if (offer?.now !== sent) sent = null;
    setHidden(el, offer === null);
    if (offer === null || !shown) return;
    const isSent = sent !== null;
    setText(el, isSent ? pendingLabel(offer) : stopLabel(offer.now));
    setAttr(el, "aria-label", spokenLabel(shown.id, offer.now, isSent));
    setAttr(el, "title", offer.now ? trans.__("Interrupt its call now. Text received so far is saved.") : title);
    setAttr(el, "aria-disabled", isSent ? "true" : null);
    setClass(el, offer.now ? "one now" : "one");
  };
  listen(el, life, () => {
    const now = shown?.stop?.now;
    if (sent !== null || now === undefined) return;
    sent = now;
    stop(now);
    draw();
    const timer = setTimeout(() => {
      if (sent === now) sent = null;
      draw();
    }, PATIENCE_MS);
    life.addEventListener("abort", () => clearTimeout(timer), { once: true });
  });
  return {
    el,
    draw(agent) {
      shown = agent;
      draw();
    },
  };
}

/**
 * One line of an agent's text: the end of text being written, or the start of other text. CSS truncates a
 * line only at its end, so the end is shown by reversing the direction of the line. The `bdi` preserves the
 * direction of the text.
 */
function makeSays(): { el: HTMLElement; draw(text: string, isWriting: boolean): void } {
  const words = make("span");
  const caret = make("i", "caret");
  caret.setAttribute("aria-hidden", "true");
  const line = make("bdi", "", words, caret);
  const el = make("div", "says", line);
  return {
    el,
    draw(text, isWriting) {
      const isTail = isWriting || text.startsWith("…");
      const isRtl = RIGHT_TO_LEFT.test(text);
      setText(words, text);
      setHidden(caret, !isWriting);
      setAttr(line, "dir", isRtl ? "rtl" : "ltr");
      setAttr(el, "dir", isRtl === isTail ? "ltr" : "rtl");
      setClass(el, isTail ? "says tail" : "says");
    },
  };
}
