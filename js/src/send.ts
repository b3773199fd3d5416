/**
 * What the panel sends to Python: that it is mounted, that a run or a sweep is to stop, a follow-up
 * text, what a person decides at a gate, what of a sweep is to be seen or held.
 *
 * What must not wait goes out twice, because each way may be deaf: the control message needs a front
 * end that shows its kernel, and the widget message waits for a busy shell unless the kernel looks at
 * it before. Stops are idempotent at the other side, the others are so by their id. No failure to send
 * reaches the caller.
 */

import { type Kernel, type PanelModel, kernelOf, newId } from "./kernel";
import type { Transcript } from "./panel-types";

export const STOP_REQUEST = "nb_agents_stop_request";
export const SAY_REQUEST = "nb_agents_say_request";
export const DECIDE_REQUEST = "nb_agents_decide_request";
export const DRAWN_REQUEST = "nb_agents_drawn_request";

/** A kernel that runs no cell answers sooner. */
const READ_MS = 5000;

/** Made once for each load of the page, so that Python can recognise a reloaded page. */
const page = newId();

export function sendMounted(model: PanelModel): void {
  attempt("mounted", () => model.send({ type: "mounted", page }));
}

export function sendStop(model: PanelModel, run: string, now: boolean): void {
  sendTwice(model, "stop", STOP_REQUEST, { run, now });
}

/** Stop one agent; the others go on. */
export function sendAgentStop(model: PanelModel, run: string, agent: string, now: boolean): void {
  sendTwice(model, "stop", STOP_REQUEST, { run, agent, now });
}

/** Stop all rows of a sweep. */
export function sendSweepStop(model: PanelModel, sweep: string, now: boolean): void {
  sendTwice(model, "stop", STOP_REQUEST, { sweep, now });
}

/** Pause or continue all rows of a sweep. */
export function sendHold(model: PanelModel, pause: boolean): void {
  attempt("hold", () => model.send({ type: "hold", pause }));
}

/** Have the state of a sweep's row sent, which is drawn below; of none when it is "". */
export function sendOpen(model: PanelModel, row: string): void {
  attempt("open", () => model.send({ type: "open", row }));
}

/** Ask the kernel for an agent's transcript, from a place on; a busy kernel answers when its cell is over. */
export function askTranscript(model: PanelModel, run: string, agent: string, after: number): Promise<Transcript> {
  const id = newId();
  return new Promise((resolve, reject) => {
    const end = (): void => {
      clearTimeout(timer);
      model.off("msg:custom", take);
    };
    const take = (content?: unknown): void => {
      const reply = content as { readonly type?: string; readonly id?: string; readonly transcript?: Transcript };
      if (reply.type !== "transcript" || reply.id !== id || !reply.transcript) return;
      end();
      resolve(reply.transcript);
    };
    const timer = setTimeout(() => {
      end();
      reject(new Error("the kernel is busy, or gone."));
    }, READ_MS);
    model.on("msg:custom", take);
    attempt("read", () => model.send({ type: "read", run, agent, after, id }));
  });
}

export function sendText(model: PanelModel, run: string, text: string): void {
  sendTwice(model, "say", SAY_REQUEST, { run, id: newId(), text });
}

/** Decide this gate and no other: `text` goes to the steps that follow. */
export function sendDecision(model: PanelModel, run: string, gate: string, approved: boolean, text: string): void {
  sendTwice(model, "decide", DECIDE_REQUEST, { run, gate, approved, text, id: newId() });
}

function sendTwice(model: PanelModel, type: string, request: string, content: object): void {
  void sendOnControl(kernelOf(model), request, content).catch((error: unknown) => warn(`${type}, on the control channel`, error));
  attempt(type, () => model.send({ type, ...content }));
}

/** Send a message which even a busy kernel reads; resolves to its reply, if it is one that replies. */
export async function sendOnControl(kernel: Kernel | undefined, type: string, content: object): Promise<unknown> {
  const future = kernel?.sendControlMessage?.(controlMessage(kernel, type, content), true, true);
  try {
    return await future?.done;
  } catch {
    return undefined; // it died before: the panel says so elsewhere
  }
}

function controlMessage(kernel: Kernel, type: string, content: object): unknown {
  return {
    channel: "control",
    header: {
      msg_id: newId(),
      msg_type: type,
      session: kernel.clientId ?? "",
      username: kernel.username ?? "",
      date: new Date().toISOString(),
      version: "5.4",
    },
    parent_header: {},
    metadata: {},
    content,
    buffers: [],
  };
}

function attempt(message: string, send: () => void): void {
  try {
    send();
  } catch (error) {
    warn(message, error);
  }
}

function warn(message: string, error: unknown): void {
  console.warn(`nb_agents: could not send the message '${message}'.`, error);
}
