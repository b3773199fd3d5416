/**
 * Sends the user's requests to the kernel that may run the turn, or to the server, which reaches any
 * writer. The kernel gets "session/turn", because a run id such as "r1" may belong to another run now.
 */

import type { Api } from "./api";
import type { Kernel } from "./kernel";
import { type RunRequests, requestsBy } from "./live";
import { type Ask, idOf, requestOf, sendOnControl } from "./send";

/** A kernel that has not loaded nb_agents never replies. */
const STOP_REPLY_MS = 300;
const REPLY_MS = 1500;

/** A reply, made by nb_agents/jupyter/kernel.py. */
interface Reply {
  readonly content?: { readonly refusal?: string; readonly is_unknown?: boolean };
}

export interface Target {
  /** The server's id of the turn. */
  readonly turn: string;
  /** The kernel's name of the turn. */
  readonly run: string;
  readonly kernel: Kernel | undefined;
}

/** Called with an error message, or "". */
export type Report = (problem: string) => void;

/** Create the functions that send requests for a turn. */
export function makeRequests(target: () => Target, api: Pick<Api, "tryPost" | "timeline" | "transcript">, report: Report): RunRequests {
  const ask: Ask = (verb, body) => {
    const { turn, run, kernel } = target();
    void askAnywhere(kernel, { run }, turn, verb, body, api).then(report);
  };
  return {
    ...requestsBy(ask, (agent, after) => api.transcript(target().turn, agent, after)),
    timeline: () => api.timeline(target().turn),
  };
}

/** Create the function that stops a sweep. Its kernel identifies it by the name of its directory. */
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
 * Send a request to kernel or server, and to the other one if the first does not know the turn. Resolves to
 * an error message, or to "".
 *
 * A stop goes to the kernel first, which is faster, and also to the server if the kernel is slow, because stops
 * are idempotent. Other requests are not. They go to the server first, which always replies.
 */
async function askAnywhere(
  kernel: Kernel | undefined,
  on: object,
  id: string,
  verb: string,
  body: object,
  api: Pick<Api, "tryPost"> & Partial<Pick<Api, "userName">>,
): Promise<string> {
  if (verb === "stop") {
    const user = api.userName?.() ?? ""; // the server knows it, but the kernel does not
    const heard = await askKernel(kernel, verb, { ...on, ...body, ...(user ? { reason: `requested by ${user}` } : {}) });
    return heard ?? (await api.tryPost(id, verb, { ...body, source: "widget" })).refusal;
  }
  const { refusal, isUnknown } = await api.tryPost(id, verb, body);
  return (isUnknown ? await askKernel(kernel, verb, { ...on, ...body, ...idOf(verb) }) : undefined) ?? refusal;
}

/** Send a request to a kernel. Undefined if there is no reply in time, or the kernel does not know the turn. */
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
