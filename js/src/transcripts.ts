/**
 * The agents that are open: each one's words as they come, its thoughts and tool calls folded, its answers
 * and votes. What is closed, or out of sight, is not asked for.
 */

import { make, setAttr, setClass, setHidden, setText } from "./dom";
import { askToDraw } from "./drawing";
import type { PanelState, Piece, PieceKind, Transcript } from "./panel-types";
import { listen } from "./press";
import type { Opener } from "./rows";

/** Reads what an agent wrote and did, from a place in the turn's journal on. */
export type ReadTranscript = (agent: string, after: number) => Promise<Transcript>;

/** At least so long between two reads of an agent whose row has changed, and of another one. */
const NEWS_MS = 300;
const QUIET_MS = 1000;
/** Characters of a block of text: what is far out of sight in a long text is not laid out. */
const BLOCK = 4000;
/** Parts of one transcript; the journal has all. */
const MAX_PARTS = 2000;
/** So near to the end a transcript stays at it, in pixels. */
const NEAR = 24;

/** What is gone once something of another kind has come: an answer is whole, and a call is made. */
const SETTLES: Partial<Record<PieceKind, readonly PieceKind[]>> = {
  answer: ["writing", "call"],
  vote: ["call"],
  tool: ["call"],
};

const LABELS: Partial<Record<PieceKind, string>> = {
  thought: "Thoughts",
  writing: "Answer, as it is written",
  output: "Output",
  call: "Calls",
};
const FOLDED: ReadonlySet<PieceKind> = new Set(["thought", "tool", "output", "call"]);

/** Which agents are open, by run: a front end may make the panel again at any moment. */
const opened = new Map<string, Set<string>>();

export interface Transcripts extends Opener {
  readonly el: HTMLElement;
  draw(state: PanelState): void;
  close(): void;
}

export function makeTranscripts(life: AbortSignal, read: ReadTranscript): Transcripts {
  const columns = make("div", "columns");
  const wide = makeToggle(life, "Wide", "Show the open agents side by side.", (on) => el.classList.toggle("wide", on));
  const answers = makeToggle(life, "Answers only", "Leave out thoughts, tools and other words.", (on) =>
    el.classList.toggle("answers", on),
  );
  const el = make("div", "reading", make("div", "tools", wide, answers), columns);
  el.setAttribute("role", "region");
  el.setAttribute("aria-label", "Open agents");
  const shown = new Map<string, OpenAgent>();
  let state: PanelState | null = null;
  const openOf = (): Set<string> => {
    const run = state?.run ?? "";
    const open = opened.get(run) ?? new Set<string>();
    opened.set(run, open);
    return open;
  };
  const close = (id: string): void => {
    shown.get(id)?.el.remove();
    shown.delete(id);
  };
  const draw = (): void => {
    if (life.aborted || state === null) return;
    const open = openOf();
    for (const id of shown.keys()) if (!open.has(id)) close(id);
    for (const row of state.agents) {
      if (!open.has(row.id)) continue;
      const agent = shown.get(row.id) ?? makeOpenAgent(row.id, row.name ?? row.id, life, read, () => toggle(row.id));
      if (!shown.has(row.id)) columns.append(agent.el);
      shown.set(row.id, agent);
      agent.follow(JSON.stringify(row));
    }
    setHidden(wide, shown.size < 2);
    setHidden(el, shown.size === 0);
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

function makeToggle(life: AbortSignal, label: string, title: string, change: (on: boolean) => void): HTMLElement {
  const el = make("button");
  el.type = "button";
  el.textContent = label;
  el.title = title;
  el.setAttribute("aria-pressed", "false");
  listen(el, life, () => {
    const on = el.getAttribute("aria-pressed") !== "true";
    setAttr(el, "aria-pressed", String(on));
    change(on);
  });
  return el;
}

interface OpenAgent {
  readonly el: HTMLElement;
  /** Read what is new, unless that was done a moment ago. */
  follow(row: string): void;
}

function makeOpenAgent(id: string, name: string, life: AbortSignal, read: ReadTranscript, close: () => void): OpenAgent {
  const title = make("strong");
  title.dir = "auto";
  setText(title, name);
  const button = make("button", "one");
  button.type = "button";
  button.textContent = "Close";
  button.setAttribute("aria-label", `Close ${name}`);
  listen(button, life, close);
  const words = make("div", "transcript");
  words.tabIndex = 0;
  words.setAttribute("role", "log");
  words.setAttribute("aria-live", "off");
  words.setAttribute("aria-label", `What ${name} wrote and did`);
  const problem = make("p", "note");
  setHidden(problem, true);
  const el = make("section", "agent", make("div", "top", title, button), problem, words);
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
      setText(problem, `What it wrote can't be read: ${error instanceof Error ? error.message : String(error)}`);
      setHidden(problem, false);
    } finally {
      isReading = false;
      readAt = performance.now();
    }
  };
  return {
    el,
    follow(row) {
      if (isReading || performance.now() - readAt < (row === seen ? QUIET_MS : NEWS_MS)) return;
      seen = row;
      void readOn();
    },
  };
}

/** A stretch of a transcript. */
interface Part {
  readonly el: HTMLElement;
  readonly id: string;
  readonly kind: PieceKind;
  readonly body: HTMLElement;
  text: string;
}

/** Make the function that adds pieces to a transcript, which stays at its end unless somebody has scrolled up. */
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
  const label = title || LABELS[kind] || "";
  const isFolded = FOLDED.has(kind);
  const head = make(isFolded ? "summary" : "div", "label");
  head.dir = "auto";
  setText(head, label);
  setHidden(head, label === "");
  const el = isFolded ? make("details", "", head, body) : make("div", "", head, body);
  setClass(el, `part ${kind}`);
  return { el, id, kind, body, text: "" };
}

/** Append to a text's last block, and begin another at a line's end once that is long. */
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
