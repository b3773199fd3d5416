/**
 * Follows turns and sweeps through the server extension: one stream for all on the page, because a
 * browser keeps six connections to a server open, over all its tabs, and JupyterLab needs them. A
 * page that nobody sees holds none.
 */

import type { PanelState, Status, SweepState } from "./panel-types";
import { readState } from "./state";
import { isSweep } from "./sweep-state";

export const TURN_MIME = "application/vnd.nb-agents.turn+json";
export const SWEEP_MIME = "application/vnd.nb-agents.sweep+json";

/** A mime bundle. */
export type Bundle = Readonly<Record<string, unknown>>;

/** What a bundle says of its turn or sweep. */
interface Facts {
  readonly path?: string;
  readonly state?: Status;
  /** Each answer on the card: as Markdown, or its lines in the bundle's: the first, and that after it. */
  readonly answers?: readonly (string | readonly [number, number])[];
  /** Whether it was complete before its cell ran, which then paid nothing. */
  readonly is_earlier?: boolean;
  /** A run that its cell had begun before, and that still worked. */
  readonly beside?: string;
}

export function factsOf(bundle: Bundle): Facts {
  const data = bundle[TURN_MIME] ?? bundle[SWEEP_MIME];
  return typeof data === "object" && data !== null ? data : {};
}

/** Where a bundle says that its turn or sweep is. */
export function pathOf(bundle: Bundle): string {
  return factsOf(bundle).path ?? "";
}

/** How it stood when the bundle was made. */
export function statusOf(bundle: Bundle): Status | undefined {
  return factsOf(bundle).state;
}

/** The answers on a card, as Markdown, in the card's order. */
export function answersOf(bundle: Bundle): readonly string[] {
  const { answers } = factsOf(bundle);
  const lines = String(bundle["text/markdown"] ?? "").split("\n");
  const written = (of: string | readonly [number, number]): string =>
    typeof of === "string" ? of : lines.slice(...of).join("\n");
  return Array.isArray(answers) ? answers.map(written) : [];
}

export type News =
  | { readonly kind: "state"; readonly state: PanelState | SweepState }
  /** It is over. */
  | { readonly kind: "card"; readonly bundle: Bundle }
  /** The server knows no such turn or sweep. */
  | { readonly kind: "unknown" }
  /** There is no server extension. */
  | { readonly kind: "absent" };

export type Listener = (news: News) => void;

/** Opens the stream of these turns and sweeps. */
export type Open = (ids: readonly string[], signal: AbortSignal) => Promise<Response>;

/** Many cells are drawn at once: what they show is asked for together. */
const GATHER_MS = 20;
const RETRY_MS = [500, 1000, 2000, 5000];

export class Watcher {
  private readonly listeners = new Map<string, Set<Listener>>();
  private stream: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;

  constructor(private readonly open: Open) {
    document.addEventListener("visibilitychange", () => this.plan(0));
  }

  /** Call back with the state of a turn or a sweep now, at each change, and with its card at the end. */
  watch(id: string, listener: Listener): () => void {
    const known = this.listeners.get(id) ?? new Set();
    this.listeners.set(id, known.add(listener));
    this.plan(GATHER_MS);
    return () => {
      known.delete(listener);
      if (known.size || this.listeners.get(id) !== known) return;
      this.listeners.delete(id);
      this.plan(GATHER_MS);
    };
  }

  private plan(delay: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.follow(), delay);
  }

  private async follow(): Promise<void> {
    this.stream?.abort();
    const ids = [...this.listeners.keys()];
    if (ids.length === 0 || document.hidden) return;
    const stream = (this.stream = new AbortController());
    try {
      const response = await this.open(ids, stream.signal);
      if (response.status === 404) return this.publishToAll({ kind: "absent" });
      if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
      for await (const { event, data } of messagesOf(response.body)) this.take(event, data);
    } catch (error) {
      if (!stream.signal.aborted) console.debug("nb_agents: the stream of runs broke off.", error);
    }
    if (stream.signal.aborted || this.listeners.size === 0) return;
    // The server restarts, or the network is away: what is shown stays, and it is tried again.
    this.plan(RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)] ?? 0);
  }

  private take(event: string, data: string): void {
    this.failures = 0;
    const { id, state, bundle } = JSON.parse(data) as { id: string; state?: unknown; bundle?: Bundle };
    if (event === "state") this.publish(id, { kind: "state", state: isSweep(state) ? state : readState(state) });
    else if (event === "card") this.publishLast(id, { kind: "card", bundle: bundle ?? {} });
    else if (event === "unknown") this.publishLast(id, { kind: "unknown" });
  }

  private publish(id: string, news: News): void {
    for (const listener of [...(this.listeners.get(id) ?? [])]) listener(news);
  }

  private publishLast(id: string, news: News): void {
    const listeners = this.listeners.get(id) ?? new Set();
    this.listeners.delete(id);
    for (const listener of listeners) listener(news);
  }

  private publishToAll(news: News): void {
    for (const id of [...this.listeners.keys()]) this.publishLast(id, news);
  }
}

interface Message {
  readonly event: string;
  readonly data: string;
}

/** Read server-sent events; ours have one line of data each. */
export async function* messagesOf(body: ReadableStream<Uint8Array>): AsyncGenerator<Message> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const fields = new Map(part.split("\n").map(split));
      const data = fields.get("data");
      if (data !== undefined) yield { event: fields.get("event") ?? "message", data };
    }
  }
}

function split(line: string): [string, string] {
  const at = line.indexOf(": ");
  return at < 0 ? [line, ""] : [line.slice(0, at), line.slice(at + 2)];
}
