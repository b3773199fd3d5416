/**
 * Takes what a person asks for to the kernel that may run the turn, or to the server, which reaches
 * any writer. The kernel knows a turn by "session/turn": "r1" may be another run by now.
 */

import type { Api } from "./api";
import type { Kernel } from "./kernel";
import { type Doors, doorsBy } from "./live";
import { type Ask, idOf, requestOf, sendOnControl } from "./send";

/** A kernel that has not loaded nb_agents never replies. A stop twice is a stop, a text twice is two. */
const STOP_REPLY_MS = 300;
const REPLY_MS = 1500;

/** Of the replies, as nb_agents/jupyter/kernel.py makes them. */
interface Reply {
  readonly content?: { readonly refusal?: string; readonly is_unknown?: boolean };
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
export function makeDoors(target: () => Target, api: Pick<Api, "post" | "timeline" | "transcript">, report: Report): Doors {
  const ask: Ask = (verb, body) => {
    const { turn, run, kernel } = target();
    void askAnywhere(kernel, { run }, turn, verb, body, api).then(report);
  };
  return {
    ...doorsBy(ask, (agent, after) => api.transcript(target().turn, agent, after)),
    timeline: () => api.timeline(target().turn),
  };
}

/** Make the door that stops all of a sweep; its kernel knows it by its directory's own name. */
export function makeSweepStop(
  target: () => { readonly sweep: string; readonly kernel: Kernel | undefined },
  api: Pick<Api, "post">,
  report: Report,
): (now: boolean) => void {
  return (now) => {
    const { sweep, kernel } = target();
    const on = { sweep: sweep.split("/").at(-1) };
    void askAnywhere(kernel, on, sweep, "stop", { immediate: now }, api).then(report);
  };
}

/** Ask the kernel, and the server when that knows nothing of it; resolves to why it could not be done, or to "". */
async function askAnywhere(
  kernel: Kernel | undefined,
  on: object,
  id: string,
  verb: string,
  body: object,
  api: Pick<Api, "post">,
): Promise<string> {
  const reply = await askKernel(kernel, verb, { ...on, ...body, ...idOf(verb) });
  if (reply?.refusal !== undefined && !reply.is_unknown) return reply.refusal;
  return api.post(id, verb, verb === "stop" ? { ...body, source: "widget" } : body);
}

/** Ask a kernel; nothing when there is none, or none that replies in time. */
async function askKernel(kernel: Kernel | undefined, verb: string, content: object): Promise<Reply["content"]> {
  if (!kernel?.sendControlMessage) return undefined;
  const patience = verb === "stop" ? STOP_REPLY_MS : REPLY_MS;
  const late = new Promise<undefined>((resolve) => setTimeout(resolve, patience));
  try {
    const sent = sendOnControl(kernel, requestOf(verb), content);
    return ((await Promise.race([sent, late])) as Reply | undefined)?.content;
  } catch {
    return undefined;
  }
}
