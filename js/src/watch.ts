/**
 * Follows turns and sweeps through the server extension, with one stream per page. A browser opens at most
 * six connections to a server for all tabs, and JupyterLab needs them. A hidden page has no stream.
 */

import type { PanelState, Status, SweepState } from "./panel-types";
import { readState } from "./state";
import { isSweep } from "./sweep-state";

export const TURN_MIME = "application/vnd.nb-agents.turn+json";
export const SWEEP_MIME = "application/vnd.nb-agents.sweep+json";

/** A mime bundle. */
export type Bundle = Readonly<Record<string, unknown>>;

/** The data about a turn or sweep in its bundle. */
interface Facts {
  readonly path?: string;
  readonly state?: Status;
  /** Each answer on the card: as Markdown, or as the range of its lines in the bundle's Markdown. */
  readonly answers?: readonly (string | readonly [number, number])[];
  /** Whether it is an earlier result, for which the cell paid nothing. */
  readonly is_earlier?: boolean;
  /** An earlier run of the cell that was still running. */
  readonly earlier_run?: string;
  /** Data of extensions, by name. */
  readonly parts?: Readonly<Record<string, unknown>>;
}

export function factsOf(bundle: Bundle): Facts {
  const data = bundle[TURN_MIME] ?? bundle[SWEEP_MIME];
  return typeof data === "object" && data !== null ? data : {};
}

/** Return the path of a bundle's turn or sweep. */
export function pathOf(bundle: Bundle): string {
  return factsOf(bundle).path ?? "";
}

/** Return the state of a bundle's turn or sweep. */
export function statusOf(bundle: Bundle): Status | undefined {
  return factsOf(bundle).state;
}

/** Return the answers on a card as Markdown, in their order. */
export function answersOf(bundle: Bundle): readonly string[] {
  const { answers } = factsOf(bundle);
  const lines = String(bundle["text/markdown"] ?? "").split("\n");
  const written = (of: string | readonly [number, number]): string =>
    typeof of === "string" ? of : lines.slice(...of).join("\n");
  return Array.isArray(answers) ? answers.map(written) : [];
}

export type News =
  | { readonly kind: "state"; readonly state: PanelState | SweepState }
  /** It has ended. */
  | { readonly kind: "card"; readonly bundle: Bundle }
  /** The server does not know the turn or sweep. */
  | { readonly kind: "unknown" }
  /** The server does not have the extension. */
  | { readonly kind: "absent" };

export type Listener = (news: News) => void;

/** Opens the stream of these turns and sweeps. */
export type Open = (ids: readonly string[], signal: AbortSignal) => Promise<Response>;

/** Delay that collects the requests of many cells. */
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

  /** Call back with the state of a turn or sweep now and at each change, and with its card at the end. */
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
    // The server is restarting or the network is down: keep the display, and retry.
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

/** Parse server-sent events. Ours have one data line each. */
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
