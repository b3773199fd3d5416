/**
 * The sidebar: all sessions with their turns, and what a person does with them. It asks the server
 * while it is seen, and when a run has begun, changed or ended. All texts are set as text.
 */

import { Widget } from "@lumino/widgets";
import type { Run, Session, Turn } from "./api";
import { make, setAttr, setClass, setHidden, setText, setTextOrHide } from "./dom";
import type { LiveRuns } from "./live-runs";
import { ago, dollars } from "./words";

/** Sessions that are drawn; the filter finds the others. */
const SHOWN = 100;

/** What a person asks for here. Each tells its own failure. */
export interface Actions {
  list(): Promise<readonly Session[]>;
  open(turn: string): void;
  stop(turn: string, now: boolean): Promise<void>;
  resume(turn: string): Promise<void>;
  continue_(session: Session): Promise<void>;
  rename(session: Session): Promise<void>;
  export_(session: Session): Promise<void>;
  delete_(session: Session): Promise<void>;
}

export class Sessions extends Widget {
  private sessions: readonly Session[] = [];
  private readonly rows = new Map<string, Row>();
  private readonly filter = make("input");
  private readonly list = make("div", "list");
  private readonly note = make("p", "note");
  /** Which runs were live, and how, when the sessions were asked for last. */
  private listedFor = "";
  private readonly end: () => void;

  constructor(
    private readonly runs: LiveRuns,
    private readonly actions: Actions,
  ) {
    super();
    this.id = "nb-agents-sessions";
    this.addClass("nba-sessions");
    this.title.caption = "Sessions of agents";
    this.node.setAttribute("role", "region");
    this.node.setAttribute("aria-label", this.title.caption);
    this.filter.type = "search";
    this.filter.placeholder = "Filter by task, session or state";
    this.filter.setAttribute("aria-label", this.filter.placeholder);
    this.filter.addEventListener("input", () => this.draw());
    this.note.setAttribute("role", "status");
    this.node.append(make("div", "head", this.filter), this.note, this.list);
    this.end = runs.listen(({ live }) => this.follow(live));
  }

  override dispose(): void {
    this.end();
    super.dispose();
  }

  /** List anew what is on disk. */
  async refresh(): Promise<void> {
    try {
      this.sessions = [...(await this.actions.list())].sort((a, b) => usedAt(b) - usedAt(a));
    } catch {
      setTextOrHide(this.note, "The sessions can't be listed: the Jupyter server can't be reached.");
      return;
    }
    const known = new Set(this.sessions.map(({ id }) => id));
    for (const id of this.rows.keys()) if (!known.has(id)) this.rows.delete(id);
    this.draw();
  }

  protected override onAfterShow(): void {
    void this.refresh();
  }

  protected override onActivateRequest(): void {
    this.filter.focus();
  }

  private follow(live: readonly Run[]): void {
    if (!this.isVisible) return;
    const now = live.map((run) => `${run.id} ${run.says}`).join("\n");
    if (now === this.listedFor) return this.draw(); // its ages at least
    this.listedFor = now;
    void this.refresh();
  }

  private draw(): void {
    const live = new Map(this.runs.live.map((run) => [run.id, run]));
    const wanted = this.filter.value.trim().toLowerCase();
    const found = this.sessions.filter((session) => textOf(session, live).includes(wanted));
    const shown = found.slice(0, SHOWN);
    shown.forEach((session, i) => {
      const row = this.rows.get(session.id) ?? this.add(session.id, i === 0);
      row.draw(session, live);
      // Moved only when it is elsewhere: a move would take the focus away.
      if (this.list.children[i] !== row.el) this.list.insertBefore(row.el, this.list.children[i] ?? null);
    });
    while (this.list.children.length > shown.length) this.list.lastElementChild?.remove();
    setTextOrHide(this.note, noteOf(this.sessions.length, found.length));
  }

  private add(id: string, isOpen: boolean): Row {
    const row = makeRow(this.actions, isOpen);
    this.rows.set(id, row);
    return row;
  }
}

function usedAt({ turns }: Session): number {
  return turns.at(-1)?.updated_at ?? 0;
}

function noteOf(known: number, found: number): string {
  if (known === 0) return "No sessions yet. %%agents in a cell begins one.";
  if (found === 0) return "No session fits the filter.";
  return found > SHOWN ? `The ${SHOWN} of ${found} sessions that were used last.` : "";
}

function textOf(session: Session, live: ReadonlyMap<string, Run>): string {
  const turns = session.turns.map((turn) => `${turn.task} ${stateOf(turn, live)}`);
  return [session.session, ...turns].join(" ").toLowerCase();
}

function stateOf(turn: Turn, live: ReadonlyMap<string, Run>): string {
  return live.get(turn.id)?.says ?? turn.state;
}

interface Row {
  readonly el: HTMLElement;
  draw(session: Session, live: ReadonlyMap<string, Run>): void;
}

/** Make a session's row: its last task, and unfolded its turns and what can be done. */
function makeRow(actions: Actions, isOpen: boolean): Row {
  let session: Session | undefined;
  const task = make("bdi", "task");
  const state = make("span");
  const facts = make("small");
  const summary = make("summary", "", task, state, facts);
  const turns = make("ol");
  const act = (what: (session: Session) => Promise<void>) => () => session && what(session);
  const buttons = make(
    "div",
    "actions",
    pressable("Continue…", "Ask its agents something new", act(actions.continue_)),
    pressable("Rename…", "Call the session otherwise", act(actions.rename)),
    pressable("Export", "Download the session with all its files", act(actions.export_)),
    pressable("Delete…", "Delete the session and all its files", act(actions.delete_)),
  );
  const el = make("details", "session", summary, turns, buttons);
  el.open = isOpen;
  const rows: TurnRow[] = [];
  return {
    el,
    draw(next, live) {
      session = next;
      const last = next.turns.at(-1);
      setText(task, last?.task || next.session);
      setAttr(task, "title", last?.task || next.session);
      if (last) drawState(state, last, live);
      const count = `${next.turns.length} ${next.turns.length === 1 ? "turn" : "turns"}`;
      setText(facts, [count, costOf(next, live), ago(last?.updated_at), next.session].filter(Boolean).join(" · "));
      while (rows.length > next.turns.length) rows.pop()?.el.remove();
      next.turns.forEach((turn, i) => {
        const row = (rows[i] ??= addTurn(turns, actions));
        row.draw(turn, live, turn === last);
      });
      const isLive = live.has(last?.id ?? "");
      for (const button of buttons.children) setHidden(button as HTMLElement, isLive && button.textContent !== "Export");
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
  const stop = pressable("Stop", "", () => shown && actions.stop(shown.id, now));
  const resume = pressable("Resume", "Go on with it: nothing that finished runs again", () => shown && actions.resume(shown.id));
  const el = list.appendChild(make("li", "", open, state, facts, stop, resume));
  return {
    el,
    draw(turn, live, isLast) {
      shown = turn;
      const run = live.get(turn.id);
      now = run?.state === "stopping";
      setText(task, `${turn.turn}. ${turn.task}`);
      setAttr(open, "title", `Open this turn beside the notebook: ${turn.task}`);
      drawState(state, turn, live);
      setText(facts, [dollars(run?.cost ?? turn.cost), ago(turn.updated_at)].filter(Boolean).join(" · "));
      setText(stop, now ? "Stop now" : "Stop");
      setHidden(stop, !run);
      setHidden(resume, !isLast || !!run || turn.state === "complete" || turn.is_live);
    },
  };
}

/** Show how a turn stands: in words, and by the shape and the colour of a mark. */
function drawState(chip: HTMLElement, turn: Turn, live: ReadonlyMap<string, Run>): void {
  const run = live.get(turn.id);
  const waits = run?.status === "awaiting";
  setClass(chip, `state ${waits ? "awaiting" : (run?.state ?? turn.state)}`);
  setText(chip, stateOf(turn, live));
  setAttr(chip, "title", stateOf(turn, live));
}

function costOf(session: Session, live: ReadonlyMap<string, Run>): string {
  const costs = session.turns.map((turn) => live.get(turn.id)?.cost ?? turn.cost ?? 0);
  return dollars(costs.reduce((a, b) => a + b, 0));
}

/** Make a button that is deaf until what it began is done. */
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
