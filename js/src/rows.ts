/** The table of agents, or of a recipe's units: one row for each, kept as long as it is there. */

import type { AgentRow } from "./panel-types";
import { make, setAttr, setClass, setHidden, setText, setTextOrHide } from "./dom";
import { PATIENCE_MS, listen } from "./press";
import { pendingLabel } from "./state";

/** Below this many rows the table does not scroll, and is no stop of the Tab key. */
const ROWS_IN_SIGHT = 8;

const STOP_TITLE = "Stop this agent alone, after its call.";
const COLUMNS = ["Agent", "Doing", "Last words", "Tokens and cost"];

/** The first letter decides the direction, as `dir=auto` does. */
const RIGHT_TO_LEFT =
  /^\P{L}*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

/** Called with an agent to stop, and whether at once. */
export type StopAgent = (agent: string, now: boolean) => void;

interface Row {
  readonly el: HTMLTableRowElement;
  draw(agent: AgentRow): void;
}

export interface Rows {
  readonly el: HTMLElement;
  draw(agents: readonly AgentRow[]): void;
}

/** Opens and closes rows. */
export interface Opener {
  /** Called with a row that is pressed. */
  toggle(id: string): void;
  isOpen(id: string): boolean;
}

/** What the rows are, where they are no agents or steps. */
export interface RowKind {
  readonly label: string;
  readonly columns: readonly string[];
  /** What a row's Stop button does. */
  readonly stop: string;
}

export function makeRows(life: AbortSignal, stop: StopAgent, opener: Opener, kind?: RowKind): Rows {
  const body = make("tbody");
  body.setAttribute("role", "rowgroup");
  const names = kind?.columns ?? COLUMNS;
  const columns = make("colgroup", "", ...names.map((_, i) => make("col", `c${i}`)));
  const table = make("table", "", columns, makeHead(names), body);
  table.setAttribute("role", "table");
  const el = make("div", "rows", table);
  el.setAttribute("role", "region");
  el.setAttribute("aria-label", "Agents");
  const rows = new Map<string, Row>();
  let current = "";
  return {
    el,
    draw(agents) {
      const isTree = agents.some((agent) => agent.depth !== undefined);
      const isRecipe = agents.some((agent) => agent.pending !== undefined);
      setClass(el, isTree ? "rows tree" : "rows");
      setAttr(el, "aria-label", kind?.label ?? (isRecipe ? "Steps" : "Agents"));
      setHidden(el, agents.length === 0);
      setAttr(el, "tabindex", agents.length > ROWS_IN_SIGHT ? "0" : null);
      drawRows(body, rows, agents, (id) => makeRow(id, life, makeStop(life, (now) => stop(id, now), kind?.stop), opener));
      const id = agents.find((agent) => agent.current)?.id ?? "";
      if (id !== current) bringIntoSight(el, rows.get(id)?.el);
      current = id;
    },
  };
}

/** Scroll the list, and never the page, to a row; not under the hand of who reads in it. */
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
    rows.delete(id);
  }
  let next = body.firstElementChild;
  for (const agent of agents) {
    const row = rows.get(agent.id) ?? makeNew(agent.id);
    rows.set(agent.id, row);
    // Moving a node drops the selection in it: only a row out of its place is moved.
    if (row.el === next) next = next.nextElementSibling;
    else body.insertBefore(row.el, next);
    row.draw(agent);
  }
}

function makeRow(row: string, life: AbortSignal, stop: RowStop, opener: Opener): Row {
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
        // A table row has no level; the words say it to who doesn't see how far in the name is.
        setAttr(who, "aria-description", agent.depth ? `level ${agent.depth + 1}` : null);
      }
      setTextOrHide(chip, agent.chip);
      setAttr(chip, "title", agent.chip);
      setClass(chip, `chip ${agent.tone}`);
      says.draw(agent.says, agent.writing);
      setText(used, agent.numbers);
      stop.draw(agent);
    },
  };
}

interface RowStop {
  readonly el: HTMLButtonElement;
  draw(agent: AgentRow): void;
}

/** The small button of one agent, which has the words of the big one. */
function makeStop(life: AbortSignal, stop: (now: boolean) => void, title = STOP_TITLE): RowStop {
  const el = make("button", "one");
  el.type = "button";
  let shown: AgentRow | undefined;
  let sent: boolean | null = null;
  const draw = (): void => {
    const offer = shown?.stop ?? null;
    // Answered by an offer of another kind, or of none.
    if (offer?.now !== sent) sent = null;
    setHidden(el, offer === null);
    if (offer === null || !shown) return;
    const isSent = sent !== null;
    setText(el, isSent ? pendingLabel(offer) : offer.now ? "Stop now" : "Stop");
    setAttr(el, "aria-label", isSent ? `Stopping ${shown.id}` : `Stop ${shown.id}${offer.now ? " now" : ""}`);
    setAttr(el, "title", offer.now ? "Cut its call now; its words so far are kept." : title);
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
 * One line of an agent's words. Of words being written the end is in sight, of others the start.
 * CSS cuts a line only at its end: a line laid out in the other direction has its end where the
 * words begin. The `bdi` keeps the words themselves in their own direction.
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
