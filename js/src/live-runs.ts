/**
 * The user's live runs in all kernels, the only source for the page.
 * One request lists all. It is sent less often while nothing runs or the page is hidden.
 */

import type { Run } from "./api";
import { trans } from "./text";

const LIVE_MS = 1000;
const IDLE_MS = 5000;
const HIDDEN_MS = 30_000;

/** Changes since the previous list. */
export interface Change {
  readonly live: readonly Run[];
  /** Runs that now wait for the user. */
  readonly waiting: readonly Run[];
  /** Runs that were live before. */
  readonly ended: readonly Run[];
}

export type ChangeListener = (change: Change) => void;

export class LiveRuns {
  private known: readonly Run[] = [];
  private isFirst = true;
  private readonly listeners = new Set<ChangeListener>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private asking: Promise<void> | null = null;
  private next: Promise<void> | null = null;
  private isAbsent = false;

  /** @param list Requests the list. Resolves to undefined if the server does not have the extension. */
  constructor(private readonly list: () => Promise<readonly Run[] | undefined>) {
    document.addEventListener("visibilitychange", () => void this.refresh());
    void this.refresh();
  }

  /** The runs of the latest list, oldest first. */
  get live(): readonly Run[] {
    return this.known;
  }

  /** Call back with each list. */
  listen(listener: ChangeListener): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /** Request the list now. A pending request may return an older state, so a new one follows it. */
  refresh(): Promise<void> {
    if (this.asking) {
      this.next ??= this.asking.then(() => this.refresh());
      return this.next;
    }
    this.next = null;
    this.asking = this.ask().finally(() => (this.asking = null));
    return this.asking;
  }

  private async ask(): Promise<void> {
    if (this.isAbsent) return;
    clearTimeout(this.timer);
    try {
      const live = await this.list();
      if (live === undefined) this.isAbsent = true;
      this.take(live ?? []);
    } catch (error) {
      console.debug("nb_agents: the runs can't be listed.", error); // the server may be restarting
    }
    this.plan();
  }

  private take(live: readonly Run[]): void {
    const before = new Map(this.known.map((run) => [run.id, run]));
    const now = new Set(live.map((run) => run.id));
    // The first list after loading the page contains no news.
    const waiting = this.isFirst ? [] : live.filter((run) => waits(run) && !waits(before.get(run.id)));
    const ended = this.known.filter((run) => !now.has(run.id));
    this.known = live;
    this.isFirst = false;
    for (const listener of [...this.listeners]) listener({ live, waiting, ended });
  }

  private plan(): void {
    if (this.isAbsent) return;
    const pause = document.hidden ? HIDDEN_MS : this.known.length ? LIVE_MS : IDLE_MS;
    this.timer = setTimeout(() => void this.refresh(), pause);
  }
}

/** Whether it waits for a decision of the user. */
export function waits(run: Run | undefined): boolean {
  return run?.status === "awaiting";
}

/** Return the numbers as text, such as "2 runs, 1 sweep". */
export function countText(live: readonly Run[]): string {
  const sweeps = live.filter((run) => run.rows).length;
  const runs = live.length - sweeps;
  const counts = [runs ? trans._n("%1 run", "%1 runs", runs) : "", sweeps ? trans._n("%1 sweep", "%1 sweeps", sweeps) : ""];
  return counts.filter(Boolean).join(", ");
}

/** Return the numbers of live and waiting runs as text, such as "2 runs · 1 waits for you". */
export function statusText(live: readonly Run[]): string {
  const waiting = live.filter(waits).length;
  const count = countText(live);
  return waiting ? trans._n("%2 · %1 waits for you", "%2 · %1 wait for you", waiting, count) : count;
}
