/**
 * The sidebar with all sessions and sweeps in groups, and their actions. While visible, it requests them again
 * when a run has started, changed or ended.
 */

import { Widget } from "@lumino/widgets";
import type { Run, Session } from "./api";
import { make, setHidden, setTextOrHide } from "./dom";
import type { LiveRuns } from "./live-runs";
import { type Actions, type Row, drawList, makeRow, makeSweep, textOf } from "./session-rows";
import { trans } from "./text";

/** Limit of drawn sessions. The filter finds the others. */
const SHOWN = 100;

/** The groups, in order of their display. */
const GROUPS = ["running", "today", "earlier"] as const;
type GroupName = (typeof GROUPS)[number];

interface Group {
  readonly el: HTMLElement;
  readonly list: HTMLElement;
}

export class Sessions extends Widget {
  private sessions: readonly Session[] = [];
  private readonly rows = new Map<string, Row>();
  private readonly filter = make("input");
  private readonly groups = new Map(GROUPS.map((name) => [name, makeGroup(name)]));
  private readonly note = make("p", "note");
  private readonly empty: HTMLElement;
  /** The live runs and their states at the last request. */
  private listedFor = "";
  private readonly end: () => void;

  constructor(
    private readonly runs: LiveRuns,
    private readonly actions: Actions,
  ) {
    super();
    this.id = "nb-agents-sessions";
    this.addClass("nba-sessions");
    this.title.caption = trans.__("Agent sessions");
    this.node.setAttribute("role", "region");
    this.node.setAttribute("aria-label", this.title.caption);
    this.filter.type = "search";
    this.filter.placeholder = trans.__("Filter by task, session or state");
    this.filter.setAttribute("aria-label", this.filter.placeholder);
    this.filter.addEventListener("input", () => this.draw());
    this.note.setAttribute("role", "status");
    this.empty = makeEmpty(() => actions.create());
    const list = make("div", "list", ...[...this.groups.values()].map(({ el }) => el));
    this.node.append(make("div", "head", this.filter), this.note, this.empty, list);
    this.end = runs.listen(({ live }) => this.follow(live));
  }

  override dispose(): void {
    this.end();
    super.dispose();
  }

  /** Request the sessions on disk again. */
  async refresh(): Promise<void> {
    this.listedFor = stateKey(this.runs.live);
    try {
      this.sessions = [...(await this.actions.list())].sort((a, b) => usedAt(b) - usedAt(a));
    } catch {
      setTextOrHide(this.note, trans.__("The sessions can't be listed: the Jupyter server can't be reached."));
      return;
    }
    const known = new Set(this.sessions.map(({ id }) => id));
    for (const id of this.rows.keys()) if (!known.has(id)) this.rows.delete(id);
    this.draw();
  }

  /** Expand a session or sweep. */
  async reveal(id: string): Promise<void> {
    await this.refresh();
    const row = this.rows.get(id)?.el;
    if (!row) return;
    row.open = true;
    row.scrollIntoView({ block: "nearest" });
  }

  protected override onAfterShow(): void {
    void this.refresh();
  }

  protected override onActivateRequest(): void {
    this.filter.focus();
  }

  private follow(live: readonly Run[]): void {
    if (!this.isVisible) return;
    if (stateKey(live) === this.listedFor) this.draw(); // updates the ages
    else void this.refresh();
  }

  private draw(): void {
    const live = new Map(this.runs.live.map((run) => [run.id, run]));
    const wanted = this.filter.value.trim().toLowerCase();
    const found = this.sessions.filter((session) => textOf(session, live).includes(wanted));
    const shown = found.slice(0, SHOWN);
    const add = (session: Session): Row => (session.sweep ? makeSweep(this.actions) : makeRow(this.actions, session === first));
    const members = GROUPS.map((name) => shown.filter((session) => groupOf(session, live) === name));
    const first = members.flat()[0];
    const focused = document.activeElement;
    for (const [i, name] of GROUPS.entries()) this.drawGroup(name, members[i] ?? [], live, add);
    if (focused !== document.activeElement) this.restoreFocus(focused);
    setHidden(this.empty, this.sessions.length > 0);
    setTextOrHide(this.note, noteOf(this.sessions.length, found.length));
  }

  private drawGroup(name: GroupName, members: readonly Session[], live: ReadonlyMap<string, Run>, add: (session: Session) => Row): void {
    const group = this.groups.get(name);
    if (!group) return;
    drawList(group.list, members, live, this.rows, add);
    setHidden(group.el, members.length === 0);
  }

  /** Focus an element again that lost the focus because its row moved to another group. */
  private restoreFocus(focused: Element | null): void {
    if (!(focused instanceof HTMLElement) || !this.node.contains(focused)) return;
    const target = focused.closest("[hidden]") ? focused.closest("details")?.querySelector("summary") : focused;
    target?.focus({ preventScroll: true });
  }
}

function makeGroup(name: GroupName): Group {
  const labels = { running: trans.__("Running"), today: trans.__("Today"), earlier: trans.__("Earlier") };
  const head = make("h3", "", new Text(labels[name]));
  const list = make("div", "rows");
  const el = make("section", "group", head, list);
  el.setAttribute("aria-label", labels[name]);
  return { el, list };
}

/** Create the hint that is shown while there are no sessions. */
function makeEmpty(create: () => void): HTMLElement {
  const hint = make("p", "", new Text(trans.__("No sessions yet. Run these two cells in a notebook:")));
  const task = trans.__("Name three good reasons to write tests.");
  const cells = ["%load_ext nb_agents", `%%agents\n${task}`].map((text) => make("pre", "", new Text(text)));
  const note = make("p", "", new Text(trans.__("Without an API key, the demo model answers. For a team with your models:")));
  const button = make("button", "", new Text(trans.__("New agent team…")));
  button.type = "button";
  button.addEventListener("click", create);
  return make("div", "empty", hint, ...cells, note, button);
}

/** Return the group of a session: whether it runs, or else the day of its last use. */
function groupOf(session: Session, live: ReadonlyMap<string, Run>): GroupName {
  const work = session.sweep ?? session.turns.at(-1);
  if (work && (work.is_live || live.has(work.id))) return "running";
  const isToday = new Date(usedAt(session) * 1000).toDateString() === new Date().toDateString();
  return isToday ? "today" : "earlier";
}

/** Return a text that changes when a run starts, changes or ends. */
function stateKey(live: readonly Run[]): string {
  return live.map((run) => `${run.id} ${run.says}`).join("\n");
}

function usedAt({ turns, sweep }: Session): number {
  return (sweep ?? turns.at(-1))?.updated_at ?? 0;
}

function noteOf(known: number, found: number): string {
  if (known > 0 && found === 0) return trans.__("No session matches the filter.");
  return found > SHOWN ? trans.__("The %1 of %2 most recently used sessions.", SHOWN, found) : "";
}
