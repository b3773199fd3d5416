/**
 * The transcripts of open agents: streamed text, folded thoughts and tool calls, answers and votes. They are
 * requested only while open and visible.
 */

import { make, setAttr, setClass, setHidden, setText } from "./dom";
import { askToDraw } from "./drawing";
import type { PanelState, Piece, PieceKind, Transcript } from "./panel-types";
import { listen } from "./press";
import type { Opener } from "./rows";
import { trans } from "./text";

/** Gets the transcript of an agent after a position of the turn's journal. */
export type ReadTranscript = (agent: string, after: number) => Promise<Transcript>;

/** Minimum time between two requests for an agent with a changed row, and for another one. */
const NEWS_MS = 300;
const QUIET_MS = 1000;
/** Length of a text block, in characters. Blocks far out of sight are not laid out. */
const BLOCK = 4000;
/** Limit of parts in a transcript. The journal has all of them. */
const MAX_PARTS = 2000;
/** Distance from the end within which a transcript follows new text, in pixels. */
const NEAR = 24;

/** Kinds that a later piece replaces: an unfinished answer by the answer, arguments by the call. */
const SETTLES: Partial<Record<PieceKind, readonly PieceKind[]>> = {
  answer: ["writing", "call"],
  vote: ["call"],
  tool: ["call"],
};

function labelOf(kind: PieceKind): string {
  const labels: Partial<Record<PieceKind, string>> = {
    thought: trans.__("Thoughts"),
    writing: trans.__("Answer, being written"),
    output: trans.__("Output"),
    call: trans.__("Calls"),
  };
  return labels[kind] ?? "";
}
const FOLDED: ReadonlySet<PieceKind> = new Set(["thought", "tool", "output", "call"]);

/** Open agents by run, because a front end may recreate the panel at any time. */
const opened = new Map<string, Set<string>>();

export interface Transcripts extends Opener {
  readonly el: HTMLElement;
  draw(state: PanelState): void;
  close(): void;
}

/** Returns the element below an agent's row in which its text is shown, if there is one. */
export type Below = (id: string) => HTMLElement | undefined;

/** @param below Without it, or while it returns nothing, the texts are shown below all rows. */
export function makeTranscripts(life: AbortSignal, read: ReadTranscript, below: Below = () => undefined): Transcripts {
  const columns = make("div", "columns");
  const wide = makeToggle(life, trans.__("Wide"), trans.__("Show the open agents side by side."), () => draw());
  const answers = makeToggle(life, trans.__("Answers only"), trans.__("Hide thoughts, tools and other text."), () => draw());
  const tools = make("div", "tools", answers, wide);
  const el = make("div", "reading", columns);
  el.setAttribute("role", "region");
  el.setAttribute("aria-label", trans.__("Open agents"));
  const shown = new Map<string, OpenAgent>();
  let state: PanelState | null = null;
  const openOf = (): Set<string> => {
    const run = state?.run ?? "";
    const open = opened.get(run) ?? new Set<string>();
    opened.set(run, open);
    return open;
  };
  const close = (id: string): void => {
    const agent = shown.get(id)?.el;
    (agent?.closest(".below") ?? agent)?.remove();
    shown.delete(id);
  };
  /** Move an agent's text below its row or, if all are side by side, below the table. */
  const place = ({ el: agent }: OpenAgent, id: string): void => {
    const host = (isOn(wide) ? undefined : below(id)) ?? columns;
    if (agent.parentElement === host) return;
    const old = agent.closest(".below");
    host.append(agent);
    if (old && !old.contains(agent)) old.remove();
  };
  /** Put the tools into the line above the first open text. */
  const placeTools = (): void => {
    const [first] = shown.values();
    const host = columns.hasChildNodes() || !first ? el : first.top;
    setClass(el, isOn(wide) ? "reading wide" : "reading");
    if (tools.parentElement === host) return;
    const focused = tools.contains(document.activeElement) ? (document.activeElement as HTMLElement) : null;
    host.insertBefore(tools, host === el ? columns : host.lastElementChild);
    focused?.focus({ preventScroll: true });
  };
  const draw = (): void => {
    if (life.aborted || state === null) return;
    const open = openOf();
    for (const id of shown.keys()) if (!open.has(id)) close(id);
    for (const row of state.agents) {
      if (!open.has(row.id)) continue;
      const agent = shown.get(row.id) ?? makeOpenAgent(row.id, row.name ?? row.id, life, read, () => toggle(row.id));
      shown.set(row.id, agent);
      place(agent, row.id);
      setClass(agent.el, isOn(answers) ? "agent answers" : "agent");
      agent.follow(JSON.stringify(row));
    }
    placeTools();
    setHidden(wide, shown.size < 2);
    setHidden(el, !columns.hasChildNodes());
  };
  const toggle = (id: string): void => {
    const open = openOf();
    if (!open.delete(id)) open.add(id);
    draw();
  };
  setHidden(el, true);
  return {
    el,
    toggle,
    isOpen: (id) => openOf().has(id),
    draw(next) {
      state = next;
      draw();
    },
    close() {
      for (const id of [...shown.keys()]) close(id);
      opened.delete(state?.run ?? "");
    },
  };
}

function isOn(toggle: HTMLElement): boolean {
  return toggle.getAttribute("aria-pressed") === "true";
}

function makeToggle(life: AbortSignal, label: string, title: string, change: () => void): HTMLElement {
  const el = make("button");
  el.type = "button";
  el.textContent = label;
  el.title = title;
  el.setAttribute("aria-pressed", "false");
  listen(el, life, () => {
    setAttr(el, "aria-pressed", String(!isOn(el)));
    change();
  });
  return el;
}

interface OpenAgent {
  readonly el: HTMLElement;
  /** The line with its name and its button. */
  readonly top: HTMLElement;
  /** Request new pieces, unless the last request was too recent. */
  follow(row: string): void;
}

function makeOpenAgent(id: string, name: string, life: AbortSignal, read: ReadTranscript, close: () => void): OpenAgent {
  const title = make("strong");
  title.dir = "auto";
  setText(title, name);
  const button = make("button", "one");
  button.type = "button";
  button.textContent = trans.__("Close");
  button.setAttribute("aria-label", trans.__("Close %1", name));
  listen(button, life, close);
  const words = make("div", "transcript");
  words.tabIndex = 0;
  words.setAttribute("role", "log");
  words.setAttribute("aria-live", "off");
  words.setAttribute("aria-label", trans.__("Transcript of %1", name));
  const problem = make("p", "note");
  setHidden(problem, true);
  const top = make("div", "top", title, button);
  const el = make("section", "agent", top, problem, words);
  const append = makeParts(words, id);
  let end = 0;
  let isReading = false;
  let readAt = Number.NEGATIVE_INFINITY;
  let seen = "";
  const readOn = async (): Promise<void> => {
    isReading = true;
    try {
      for (let more = true; more && el.isConnected && !life.aborted; ) {
        const news = await read(id, end);
        more = news.more && news.end > end;
        end = news.end;
        append(news.pieces);
      }
      setHidden(problem, true);
    } catch (error) {
      setText(problem, trans.__("The transcript can't be read: %1", error instanceof Error ? error.message : String(error)));
      setHidden(problem, false);
    } finally {
      isReading = false;
      readAt = performance.now();
    }
  };
  return {
    el,
    top,
    follow(row) {
      if (isReading || performance.now() - readAt < (row === seen ? QUIET_MS : NEWS_MS)) return;
      seen = row;
      void readOn();
    },
  };
}

/** A part of a transcript. */
interface Part {
  readonly el: HTMLElement;
  readonly id: string;
  readonly kind: PieceKind;
  readonly body: HTMLElement;
  text: string;
}

/** Create the function that adds pieces to a transcript and scrolls to its end, unless the user scrolled up. */
function makeParts(list: HTMLElement, agent: string): (pieces: readonly Piece[]) => void {
  let parts: Part[] = [];
  const drop = (isGone: (part: Part) => boolean): void => {
    parts = parts.filter((part) => {
      const gone = isGone(part);
      if (gone) part.el.remove();
      return !gone;
    });
  };
  const add = (piece: Piece): void => {
    const settled = SETTLES[piece.kind] ?? [];
    if (settled.length) drop((part) => settled.includes(part.kind));
    if (piece.kind === "answer") drop((part) => part.kind === "text" && piece.text.includes(part.text.trim()));
    let part = parts.at(-1);
    if (part?.id !== piece.id) {
      part = makePart(piece);
      parts.push(part);
      list.append(part.el);
    }
    part.text += piece.text;
    appendText(part.body, piece.text);
    if (piece.kind === "answer") askToDraw(part.body, { markdown: part.text, agent });
  };
  return (pieces) => {
    if (pieces.length === 0) return;
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < NEAR;
    pieces.forEach(add);
    const dropped = new Set(parts.slice(0, -MAX_PARTS));
    if (dropped.size) drop((part) => dropped.has(part));
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  };
}

function makePart({ id, kind, title }: Piece): Part {
  const body = make("div", "body");
  body.dir = "auto";
  const label = title || labelOf(kind);
  const isFolded = FOLDED.has(kind);
  const head = make(isFolded ? "summary" : "div", "label");
  head.dir = "auto";
  setText(head, label);
  setHidden(head, label === "");
  const el = isFolded ? make("details", "", head, body) : make("div", "", head, body);
  setClass(el, `part ${kind}`);
  return { el, id, kind, body, text: "" };
}

/** Append to the last block of a text. A long block ends at a line break, and a new one starts. */
function appendText(body: HTMLElement, text: string): void {
  for (let rest = text; rest !== ""; ) {
    const block = (body.lastElementChild ?? body.appendChild(make("div", "block"))) as HTMLElement;
    const words = (block.firstChild ?? block.appendChild(document.createTextNode(""))) as Text;
    const most = Math.max(0, 4 * BLOCK - words.length);
    const line = rest.indexOf("\n", Math.max(0, BLOCK - words.length));
    const isLine = line >= 0 && line <= most;
    const cut = isLine ? line : Math.min(rest.length, most);
    words.appendData(rest.slice(0, cut));
    rest = rest.slice(isLine ? cut + 1 : cut);
    if (isLine || rest !== "") body.append(make("div", "block"));
  }
}
