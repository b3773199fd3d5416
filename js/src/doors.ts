/**
 * Takes what a person asks for to the kernel that may run the turn, or to the server, which reaches
 * any writer. The kernel knows a turn by "session/turn": "r1" may be another run by now.
 */

import type { Api } from "./api";
import type { Kernel } from "./kernel";
import { type Doors, doorsBy } from "./live";
import { type Ask, idOf, requestOf, sendOnControl } from "./send";

/** A kernel that has not loaded nb_agents never replies. */
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
export function makeDoors(target: () => Target, api: Pick<Api, "tryPost" | "timeline" | "transcript">, report: Report): Doors {
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
  api: Pick<Api, "tryPost">,
  report: Report,
): (now: boolean) => void {
  return (now) => {
    const { sweep, kernel } = target();
    const on = { sweep: sweep.split("/").at(-1) };
    void askAnywhere(kernel, on, sweep, "stop", { immediate: now }, api).then(report);
  };
}

/**
 * Ask one of them, and the other when that knows nothing of it; resolves to why it could not be done, or to "".
 *
 * A stop goes to the kernel first, which is sooner, and to the server, too, when the kernel is late: a stop
 * twice is a stop. A text twice would be two, so all else goes to the server first, which always replies.
 */
async function askAnywhere(
  kernel: Kernel | undefined,
  on: object,
  id: string,
  verb: string,
  body: object,
  api: Pick<Api, "tryPost">,
): Promise<string> {
  if (verb === "stop") {
    const heard = await askKernel(kernel, verb, { ...on, ...body });
    return heard ?? (await api.tryPost(id, verb, { ...body, source: "widget" })).refusal;
  }
  const { refusal, isUnknown } = await api.tryPost(id, verb, body);
  return (isUnknown ? await askKernel(kernel, verb, { ...on, ...body, ...idOf(verb) }) : undefined) ?? refusal;
}

/** Ask a kernel; nothing when there is none, none that replies in time, or it knows nothing of it. */
async function askKernel(kernel: Kernel | undefined, verb: string, content: object): Promise<string | undefined> {
  if (!kernel?.sendControlMessage) return undefined;
  const patience = verb === "stop" ? STOP_REPLY_MS : REPLY_MS;
  const late = new Promise<undefined>((resolve) => setTimeout(resolve, patience));
  try {
    const sent = sendOnControl(kernel, requestOf(verb), content);
    const reply = ((await Promise.race([sent, late])) as Reply | undefined)?.content;
    return reply?.is_unknown ? undefined : reply?.refusal;
  } catch {
    return undefined;
  }
}
