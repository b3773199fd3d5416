/**
 * The sidebar with all sessions and sweeps, and their actions. While visible, it requests them again when a
 * run has started, changed or ended.
 */

import { Widget } from "@lumino/widgets";
import type { Run, Session } from "./api";
import { make, setTextOrHide } from "./dom";
import type { LiveRuns } from "./live-runs";
import { type Actions, type Row, drawList, makeRow, makeSweep, textOf } from "./session-rows";

/** Limit of drawn sessions. The filter finds the others. */
const SHOWN = 100;

export class Sessions extends Widget {
  private sessions: readonly Session[] = [];
  private readonly rows = new Map<string, Row>();
  private readonly filter = make("input");
  private readonly list = make("div", "list");
  private readonly note = make("p", "note");
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
    this.title.caption = "Agent sessions";
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

  /** Request the sessions on disk again. */
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
    const now = live.map((run) => `${run.id} ${run.says}`).join("\n");
    if (now === this.listedFor) {
      this.draw(); // updates the ages
      return;
    }
    this.listedFor = now;
    void this.refresh();
  }

  private draw(): void {
    const live = new Map(this.runs.live.map((run) => [run.id, run]));
    const wanted = this.filter.value.trim().toLowerCase();
    const found = this.sessions.filter((session) => textOf(session, live).includes(wanted));
    drawList(this.list, found.slice(0, SHOWN), live, this.rows, (session, isFirst) =>
      session.sweep ? makeSweep(this.actions) : makeRow(this.actions, isFirst),
    );
    setTextOrHide(this.note, noteOf(this.sessions.length, found.length));
  }
}

function usedAt({ turns, sweep }: Session): number {
  return (sweep ?? turns.at(-1))?.updated_at ?? 0;
}

function noteOf(known: number, found: number): string {
  if (known === 0) return "No sessions yet. A %%agents cell starts one.";
  if (found === 0) return "No session matches the filter.";
  return found > SHOWN ? `The ${SHOWN} of ${found} most recently used sessions.` : "";
}
