/**
 * What the panel sends to Python: that it is mounted, which row of a sweep is to be seen, and the verbs
 * that a person asks for.
 *
 * A verb goes out twice, because each way may be deaf: the control message needs a front end that shows
 * its kernel, and the widget message waits for a busy shell unless the kernel looks at it before. No
 * failure to send reaches the caller.
 */

import { type Kernel, type PanelModel, kernelOf, newId } from "./kernel";
import type { Transcript } from "./panel-types";

export const DRAWN_REQUEST = "nb_agents_drawn_request";
export const RESUME_REQUEST = "nb_agents_resume_turn_request";

/** A kernel that runs no cell answers sooner. */
const READ_MS = 5000;

/** Made once for each load of the page, so that Python can recognise a reloaded page. */
const page = newId();

export function sendMounted(model: PanelModel): void {
  attempt("mounted", () => model.send({ type: "mounted", page }));
}

/** What is asked of a run or a sweep by a verb, as the server's openapi.json has it. */
export type Ask = (verb: string, body: object) => void;

/** Ask something of the run or sweep that `on` names. */
export function sendAsk(model: PanelModel, on: object, verb: string, body: object): void {
  const content = { ...on, ...body, ...idOf(verb) };
  void sendOnControl(kernelOf(model), requestOf(verb), content).catch((error: unknown) =>
    warn(`${verb}, on the control channel`, error),
  );
  attempt(verb, () => model.send({ type: verb, ...content }));
}

export function requestOf(verb: string): string {
  return `nb_agents_${verb}_request`;
}

/** By which the kernel knows a message that comes twice. A stop twice is a stop, and waits for nothing. */
export function idOf(verb: string): { readonly id?: string } {
  return verb === "stop" ? {} : { id: newId() };
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
