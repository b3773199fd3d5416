/**
 * The live runs of this user, over all kernels: the one source of what the page shows of them.
 * One request asks for all, more seldom while nothing runs, and seldom while nobody sees the page.
 */

import type { Run } from "./api";

const LIVE_MS = 1000;
const IDLE_MS = 5000;
const HIDDEN_MS = 30_000;

/** What differs from what was known before. */
export interface Change {
  readonly live: readonly Run[];
  /** They wait for a person, and did not before. */
  readonly waiting: readonly Run[];
  /** They were live. */
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

  /** @param list Asks the server; resolves to nothing where it has no such extension. */
  constructor(private readonly list: () => Promise<readonly Run[] | undefined>) {
    document.addEventListener("visibilitychange", () => void this.refresh());
    void this.refresh();
  }

  /** As they were when they were asked for last, oldest first. */
  get live(): readonly Run[] {
    return this.known;
  }

  /** Call back with each answer of the server. */
  listen(listener: ChangeListener): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /** Ask now; while an answer is awaited, after it: it may tell of before. */
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
      console.debug("nb_agents: the runs can't be listed.", error); // the server restarts
    }
    this.plan();
  }

  private take(live: readonly Run[]): void {
    const before = new Map(this.known.map((run) => [run.id, run]));
    const now = new Set(live.map((run) => run.id));
    // A page that has just been loaded knows no news.
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

/** Whether it goes on only when a person decides. */
export function waits(run: Run | undefined): boolean {
  return run?.status === "awaiting";
}

/** Count them in words, such as "2 runs, 1 sweep". */
export function counted(live: readonly Run[]): string {
  const sweeps = live.filter((run) => run.rows).length;
  const kinds = { run: live.length - sweeps, sweep: sweeps };
  const known = Object.entries(kinds).filter(([, count]) => count > 0);
  return known.map(([kind, count]) => `${count} ${kind}${count === 1 ? "" : "s"}`).join(", ");
}

/** Say how many there are and how many of them wait, such as "2 runs · 1 waits for you". */
export function inWords(live: readonly Run[]): string {
  const waiting = live.filter(waits).length;
  const count = counted(live);
  return waiting ? `${count} · ${waiting} ${waiting === 1 ? "waits" : "wait"} for you` : count;
}
