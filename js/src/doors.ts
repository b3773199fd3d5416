/**
 * Takes what a person asks for to the kernel that may run the turn, or to the server, which reaches
 * any writer. The kernel knows a turn by "session/turn": "r1" may be another run by now.
 */

import type { Api } from "./api";
import { type Kernel, newId } from "./kernel";
import type { Doors } from "./live";
import { DECIDE_REQUEST, SAY_REQUEST, STOP_REQUEST, sendOnControl } from "./send";

/** A kernel that has not loaded nb_agents never replies. A stop twice is a stop, a text twice is two. */
const STOP_REPLY_MS = 300;
const REPLY_MS = 1500;

/** Of the replies, as nb_agents/jupyter/kernel.py makes them. */
interface Reply {
  readonly content?: { readonly run_status?: string; readonly refusal?: string };
}

export interface Target {
  /** The turn as the server calls it. */
  readonly turn: string;
  /** The turn as its kernel calls it. */
  readonly run: string;
  readonly kernel: Kernel | undefined;
}

/** Called with why something could not be done, or "" */
export type Report = (problem: string) => void;

/** Make the doors of a turn. */
export function makeDoors(target: () => Target, api: Pick<Api, "post" | "transcript">, report: Report): Doors {
  const stop = async (more: object, body: object): Promise<void> => {
    const { turn, run, kernel } = target();
    report(await stopAnywhere(kernel, { run, ...more }, () => api.post(turn, "stop", { ...body, source: "widget" })));
  };
  const once = async (request: string, content: object, action: string, body: object): Promise<void> => {
    const { turn, run, kernel } = target();
    const refusal = (await ask(kernel, request, { run, id: newId(), ...content }, REPLY_MS))?.refusal;
    const isElsewhere = refusal === undefined || refusal.startsWith("No run named");
    report(isElsewhere ? await api.post(turn, action, body) : refusal);
  };
  return {
    stop: (now) => void stop({ now }, { immediate: now }),
    stopAgent: (agent, now) => void stop({ now, agent }, { immediate: now, agent }),
    read: (agent, after) => api.transcript(target().turn, agent, after),
    say: (text) => void once(SAY_REQUEST, { text }, "say", { text }),
    decide: (gate, approved, text) =>
      void once(DECIDE_REQUEST, { gate, approved, text }, approved ? "approve" : "deny", { gate, message: text }),
  };
}

/** Make the door that stops all of a sweep; its kernel knows it by its directory's own name. */
export function makeSweepStop(
  target: () => { readonly sweep: string; readonly kernel: Kernel | undefined },
  api: Pick<Api, "post">,
  report: Report,
): (now: boolean) => void {
  const stop = async (now: boolean): Promise<void> => {
    const { sweep, kernel } = target();
    const name = sweep.split("/").at(-1);
    const post = (): Promise<string> => api.post(sweep, "stop", { immediate: now, source: "widget" });
    report(await stopAnywhere(kernel, { sweep: name, now }, post));
  };
  return (now) => void stop(now);
}

/** Ask the kernel for a stop, and the server when that knows nothing of it; resolves to why it could not be done. */
async function stopAnywhere(kernel: Kernel | undefined, content: object, post: () => Promise<string>): Promise<string> {
  const status = (await ask(kernel, STOP_REQUEST, content, STOP_REPLY_MS))?.run_status;
  return status === undefined || status === "unknown" ? post() : "";
}

/** Ask a kernel; nothing when there is none, or none that replies in time. */
async function ask(
  kernel: Kernel | undefined,
  request: string,
  content: object,
  patience: number,
): Promise<Reply["content"]> {
  if (!kernel?.sendControlMessage) return undefined;
  const late = new Promise<undefined>((resolve) => setTimeout(resolve, patience));
  try {
    return ((await Promise.race([sendOnControl(kernel, request, content), late])) as Reply | undefined)?.content;
  } catch {
    return undefined;
  }
}
