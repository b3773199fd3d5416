import { vi } from "vitest";
import type { Run } from "../src/api";
import panel from "../src/panel";
import type { AgentRow, PanelState, SweepRow, SweepState } from "../src/panel-types";

export function agent(id: string, more: Partial<AgentRow> = {}): AgentRow {
  return { id, model: "m", chip: "writing", tone: "run", says: "words", writing: true, numbers: "1 token", ...more };
}

export const RUNNING: PanelState = {
  run: "run-1",
  session: "session_1",
  turn: 2,
  task: "Compare caches",
  status: "running",
  chip: "running",
  round: "Round: 3/∞",
  elapsed: "Elapsed: 234s / 1800s (13%)",
  fraction: 0.13,
  bar: "Time used",
  cost: "$0.041",
  in_flight: "",
  agents: [agent("researcher"), agent("critic")],
  gates: [],
  button: { label: "Stop", now: false, title: "Keeps everything" },
  can_say: true,
  said: null,
  notices: [],
  footer: ["session_1 · turn 2", "3 files"],
  card: "",
};

export const STOPPING: PanelState = {
  ...RUNNING,
  status: "stopping",
  chip: "Stopping… (after current LLM call completes)",
  in_flight: "1 call in flight: critic",
  button: { label: "Stop now · 27 s", now: true, title: "Cuts the call" },
  can_say: false,
};

export const STOPPED: PanelState = { ...RUNNING, status: "stopped", chip: "stopped", button: null, can_say: false };

export function liveRun(id: string, more: Partial<Run> = {}): Run {
  return { id, task: "Compare caches", status: "in-progress", state: "running", says: "running", cost: 0, ...more };
}

/** Lumino's signal, as far as the panel uses it. */
class MockSignal<Args extends unknown[]> {
  readonly slots = new Set<(...args: Args) => void>();
  connect(slot: (...args: Args) => void): void {
    this.slots.add(slot);
  }
  disconnect(slot: (...args: Args) => void): void {
    this.slots.delete(slot);
  }
  emit(...args: Args): void {
    for (const slot of this.slots) slot(...args);
  }
}

/** JupyterLab's kernel connection, as far as the panel uses it. */
export class MockKernel {
  readonly clientId = "client-1";
  readonly username = "ada";
  readonly sendControlMessage = vi.fn();
  readonly statusChanged = new MockSignal<[sender: unknown, status: string]>();
  readonly disposed = new MockSignal<[sender: unknown]>();
  listeners(): number {
    return this.statusChanged.slots.size + this.disposed.slots.size;
  }
}

/** anywidget's model: one trait, events, messages. */
export class MockModel {
  readonly callbacks = new Map<string, Set<() => void>>();
  readonly send = vi.fn();
  constructor(
    public state: unknown,
    readonly widget_manager?: { kernel?: unknown },
  ) {}
  get(_name: "state"): unknown {
    return this.state;
  }
  on(event: string, callback: () => void): void {
    this.callbacks.set(event, (this.callbacks.get(event) ?? new Set()).add(callback));
  }
  off(event: string, callback: () => void): void {
    this.callbacks.get(event)?.delete(callback);
  }
  trigger(event: string): void {
    for (const callback of this.callbacks.get(event) ?? []) callback();
  }
  update(state: PanelState | SweepState): void {
    this.state = state;
    this.trigger("change:state");
  }
  listeners(): number {
    return [...this.callbacks.values()].reduce((sum, set) => sum + set.size, 0);
  }
  stops(): unknown[] {
    return this.sent("stop");
  }
  sent(...types: string[]): unknown[] {
    return this.send.mock.calls.map(([content]) => content).filter((content) => types.includes(content.type));
  }
}

/** Mount a panel in the document; `q` finds one of its elements. */
export function show(state: unknown = RUNNING, manager?: { kernel?: unknown }) {
  const model = new MockModel(state, manager);
  const el = document.body.appendChild(document.createElement("div"));
  const life = new AbortController();
  const cleanup = panel.render({ model, el, signal: life.signal });
  const q = (selector: string): HTMLElement => {
    const found = el.querySelector<HTMLElement>(selector);
    if (!found) throw new Error(`No ${selector} in ${el.innerHTML}`);
    return found;
  };
  return { model, el, life, cleanup, q, button: q("button") };
}

/** Return the visible text. */
export function visibleText(el: HTMLElement): string {
  if (el.hidden) return "";
  return [...el.childNodes]
    .map((node) => (node instanceof HTMLElement ? visibleText(node) : (node.textContent ?? "")))
    .join(" ");
}

export const sweepRow = (id: string, more: Partial<SweepRow> = {}): SweepRow => ({
  ...agent(id, { stop: { now: false }, current: false }),
  run: `run-${id}`,
  state: "running",
  tokens: 0,
  score: null,
  ...more,
});

export const SWEEP: SweepState = {
  sweep: "ask",
  task: "Answer: {{q}}",
  status: "running",
  chip: "running",
  round: "3 of 12 rows",
  fraction: 0.25,
  bar: "Rows complete",
  in_flight: "score 0.5 ± 0.1 (2)",
  elapsed: "34 s · about 2 min to go",
  cost: "8,214 tokens · $0.041",
  counts: [
    { text: "1 failed", tone: "err", state: "failed" },
    { text: "2 at work", tone: "run", state: "running" },
    { text: "2 complete", tone: "ok", state: "complete" },
    { text: "7 to go", tone: "", state: "" },
  ],
  failures: [{ row: "bad-1", why: "The key is refused." }],
  more_failures: "",
  rows: [sweepRow("sky"), sweepRow("moon")],
  more_rows: "",
  open: null,
  button: { label: "Stop", now: false, title: "All is kept" },
  hold: "pause",
  steering: { says: "8 rows at a time", limit: 8, max_cost: null, timeout: null, models: [{ name: "openai", is_paused: false }], can_score: true, failed: 1 },
  notices: [],
  footer: ["ask", "here/ask"],
  card: "",
};
