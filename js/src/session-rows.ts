/** The sidebar's rows: sessions with their turns, and sweeps with their rows' sessions. Texts are set as text. */

import type { Run, Session, Turn } from "./api";
import { make, setAttr, setClass, setHidden, setText, setTextOrHide } from "./dom";
import { ago, dollars } from "./format";
import { stopLabel } from "./state";
import { trans } from "./text";

/** Minimum time between two updates of the rows of an expanded live sweep. */
const LOOK_MS = 5000;

/** The user's actions. Each reports its errors. */
export interface Actions {
  list(): Promise<readonly Session[]>;
  /** List the sessions of a sweep's rows. */
  rows(sweep: string): Promise<readonly Session[]>;
  /** Go to the cell that shows it, or show it next to the notebook. */
  open(turn: string): void;
  /** Return the cell of an open notebook that shows it, such as "report.ipynb, cell 3", or "". */
  place(turn: string): string;
  stop(run: string, now: boolean): Promise<void>;
  resume(turn: string): Promise<void>;
  /** Let the user choose a checkpoint of a turn, and rewind to it. */
  rewind(turn: string, at?: number): Promise<void>;
  continue_(session: Pick<Session, "id" | "session">): Promise<void>;
  rename(session: Session): Promise<void>;
  export_(session: Session): Promise<void>;
  delete_(session: Session): Promise<void>;
  /** Show the form for a new team. */
  create(): void;
}

export function textOf(session: Session, live: ReadonlyMap<string, Run>): string {
  const turns = [...session.turns, ...(session.sweep ? [session.sweep] : [])].map((turn) => `${turn.task} ${stateOf(turn, live)}`);
  return [session.session, ...turns].join(" ").toLowerCase();
}

/** A turn or sweep, with its state. */
type Work = Pick<Turn, "id" | "state">;

function stateOf(turn: Work, live: ReadonlyMap<string, Run>): string {
  return live.get(turn.id)?.says ?? turn.state;
}

export interface Row {
  readonly el: HTMLDetailsElement;
  draw(session: Session, live: ReadonlyMap<string, Run>): void;
}

/** Draw the rows in order. Existing rows stay open or closed. */
export function drawList(
  list: HTMLElement,
  shown: readonly Session[],
  live: ReadonlyMap<string, Run>,
  rows: Map<string, Row>,
  add: (session: Session) => Row,
): void {
  shown.forEach((session, i) => {
    const row = rows.get(session.id) ?? add(session);
    rows.set(session.id, row);
    row.draw(session, live);
    // Moved only if misplaced, because a move would remove the focus.
    if (list.children[i] !== row.el) list.insertBefore(row.el, list.children[i] ?? null);
  });
  while (list.children.length > shown.length) list.lastElementChild?.remove();
}

interface Summary {
  readonly el: HTMLElement;
  /**
   * @param session Its name is in the tooltip.
   * @param task The title. If empty, the name is the title.
   */
  draw(session: Session, task: string, work: Work | undefined, live: ReadonlyMap<string, Run>, facts: readonly string[]): void;
}

function makeSummary(): Summary {
  const task = make("bdi", "task");
  const state = make("span");
  const small = make("small");
  return {
    el: make("summary", "", task, state, small),
    draw({ session }, asked, work, live, facts) {
      setText(task, asked || session);
      setAttr(task, "title", asked ? `${asked}\n\n${session}` : session);
      if (work) drawState(state, work, live);
      setText(small, facts.filter(Boolean).join(" · "));
    },
  };
}

/**
 * Create a session's row with its last task. Expanded, it shows turns and actions.
 *
 * @param isOpen Whether it is expanded initially.
 * @param isFixed Whether it belongs to a sweep and can't be renamed or deleted.
 */
export function makeRow(actions: Actions, isOpen: boolean, isFixed = false): Row {
  let session: Session | undefined;
  const summary = makeSummary();
  const turns = make("ol");
  const act = (what: (session: Session) => Promise<void>) => () => session && what(session);
  const exports = pressable(trans.__("Export"), trans.__("Download the session with all its files"), act(actions.export_));
  const buttons = make(
    "div",
    "actions",
    pressable(trans.__("Continue…"), trans.__("Give the agents a new task"), act(actions.continue_)),
    pressable(trans.__("Rename…"), trans.__("Rename the session"), act(actions.rename)),
    exports,
    pressable(trans.__("Delete…"), trans.__("Delete the session and all its files"), act(actions.delete_)),
  );
  const el = make("details", "session", summary.el, turns, buttons);
  el.open = isOpen;
  const rows: TurnRow[] = [];
  return {
    el,
    draw(next, live) {
      session = next;
      const last = next.turns.at(-1);
      const count = trans._n("%1 turn", "%1 turns", next.turns.length);
      const name = isFixed ? "" : chosenName(next);
      const facts = [name, count, costOf(next, live), ago(last?.updated_at), placeOf(actions, last)];
      summary.draw(next, last?.task ?? "", last, live, facts);
      while (rows.length > next.turns.length) rows.pop()?.el.remove();
      next.turns.forEach((turn, i) => {
        const row = (rows[i] ??= addTurn(turns, actions));
        row.draw(turn, live, turn === last);
      });
      const isHeld = isFixed || live.has(last?.id ?? "");
      for (const button of buttons.children) setHidden(button as HTMLElement, isHeld && button !== exports);
    },
  };
}

/** Create a sweep's row with its progress. Expanded, it requests and shows the sessions of its rows. */
export function makeSweep(actions: Actions): Row {
  let shown: Session | undefined;
  let live: ReadonlyMap<string, Run> = new Map();
  let sessions: readonly Session[] = [];
  let looked = { at: 0, says: "" };
  const rows = new Map<string, Row>();
  const summary = makeSummary();
  const list = make("div", "rows");
  const note = make("p", "note");
  const isStopping = (): boolean => live.get(shown?.id ?? "")?.state === "stopping";
  const stop = pressable(stopLabel(false), trans.__("Start no more rows, and stop live rows"), () => shown && actions.stop(shown.id, isStopping()));
  const buttons = make("div", "actions", stop);
  const el = make("details", "session sweep", summary.el, buttons, list, note);
  const draw = (): void => {
    drawList(list, sessions, live, rows, () => makeRow(actions, false, true));
    const { total, done, failed } = shown?.sweep?.rows ?? { total: 0, done: 0, failed: 0 };
    const isCut = done + failed > sessions.length;
    setTextOrHide(note, isCut ? trans._n("%2 of %1 row, most recently used first.", "%2 of %1 rows, most recently used first.", total, sessions.length) : "");
  };
  const look = async (): Promise<void> => {
    const says = shown?.sweep?.says ?? "";
    if (!el.open || !shown || looked.says === says || Date.now() - looked.at < LOOK_MS) return;
    looked = { at: Date.now(), says };
    sessions = await actions.rows(shown.id).catch(() => sessions); // the server may be restarting
    draw();
  };
  el.addEventListener("toggle", () => void look());
  return {
    el,
    draw(next, runs) {
      [shown, live] = [next, runs];
      const { sweep } = next;
      const run = live.get(next.id);
      const count = run ? "" : (sweep?.says ?? "");
      summary.draw(next, sweep?.task ?? "", sweep, live, [sweep?.task ? next.session : "", count, dollars((run ?? sweep)?.cost), ago(sweep?.updated_at)]);
      setText(stop, stopLabel(isStopping()));
      setHidden(buttons, !run);
      void look();
    },
  };
}

interface TurnRow {
  readonly el: HTMLElement;
  draw(turn: Turn, live: ReadonlyMap<string, Run>, isLast: boolean): void;
}

function addTurn(list: HTMLElement, actions: Actions): TurnRow {
  let shown: Turn | undefined;
  let now = false;
  const task = make("bdi");
  const open = pressable("", "", () => shown && actions.open(shown.id), task);
  const state = make("span");
  const facts = make("small");
  const stop = pressable(stopLabel(false), "", async () => {
    if (!shown) return;
    await actions.stop(shown.id, now);
    now = true;
    setText(stop, stopLabel(now));
  });
  const resume = pressable(trans.__("Resume"), trans.__("Resume this turn. Finished work is not repeated."), () => shown && actions.resume(shown.id));
  const back = pressable(trans.__("Go back…"), trans.__("Choose a checkpoint, and continue from there"), () => shown && actions.rewind(shown.id));
  const instead = make("p", "note");
  const el = list.appendChild(make("li", "", open, state, facts, stop, resume, back, instead));
  return {
    el,
    draw(turn, live, isLast) {
      shown = turn;
      const run = live.get(turn.id);
      // The list of live runs contains the sweep but not its rows, so a row's stop is remembered here.
      now = run ? run.state === "stopping" : now && turn.is_live;
      setText(task, `${turn.turn}. ${turn.task}`);
      const place = actions.place(turn.id);
      setAttr(open, "title", place ? trans.__("Go to %1: %2", place, turn.task) : trans.__("Open this turn next to the notebook: %1", turn.task));
      drawState(state, turn, live);
      const from = turn.rewinds ? trans.__("↩ from %1 at %2", turn.rewinds, turn.at) : "";
      setText(facts, [place, from, dollars(run?.cost ?? turn.cost), ago(turn.updated_at)].filter(Boolean).join(" · "));
      setText(stop, stopLabel(now));
      setHidden(stop, !run && !turn.is_live);
      const isResumable = isLast && !run && turn.state !== "complete" && !turn.is_live;
      setHidden(resume, !isResumable || !!turn.instead);
      setTextOrHide(instead, isResumable ? (turn.instead ?? "") : "");
    },
  };
}

/** Return the name that the user gave to a session, or "" for a generated id. */
function chosenName({ session }: Session): string {
  return /^session_\d+/.test(session) ? "" : session;
}

/** Return the cell that shows a turn, or else the notebook that started it. */
function placeOf(actions: Actions, turn: Turn | undefined): string {
  return (turn && actions.place(turn.id)) || turn?.notebook || "";
}

/** Show the state, as text and as a mark with a shape and colour. */
function drawState(chip: HTMLElement, turn: Work, live: ReadonlyMap<string, Run>): void {
  const run = live.get(turn.id);
  const waits = run?.status === "awaiting" || run?.waits;
  setClass(chip, `state ${waits ? "awaiting" : (run?.state ?? turn.state).replace(" ", "-")}`);
  setText(chip, stateOf(turn, live));
  setAttr(chip, "title", stateOf(turn, live));
}

function costOf(session: Session, live: ReadonlyMap<string, Run>): string {
  const costs = session.turns.map((turn) => live.get(turn.id)?.cost ?? turn.cost);
  const known = costs.filter((cost) => cost !== null);
  return known.length === costs.length ? dollars(known.reduce((a, b) => a + b, 0)) : "";
}

/** Create a button that ignores presses until its action has finished. */
function pressable(label: string, title: string, press: () => unknown, ...children: Node[]): HTMLButtonElement {
  const button = make("button", "", ...children);
  button.type = "button";
  if (label) button.textContent = label;
  if (title) button.title = title;
  button.addEventListener("click", async () => {
    if (button.hasAttribute("aria-busy")) return;
    setAttr(button, "aria-busy", "true");
    try {
      await press();
    } finally {
      setAttr(button, "aria-busy", null);
    }
  });
  return button;
}
