/**
 * Messages of the panel to Python: that it is mounted, which row of a sweep to open, and the user's
 * requests.
 *
 * A request is sent twice, because each channel may fail: the control message needs a front end that
 * exposes its kernel, and the widget message may wait for a busy shell. Errors do not reach the caller.
 */

import { type Kernel, type PanelModel, kernelOf, newId } from "./kernel";
import type { Transcript } from "./panel-types";
import { trans } from "./text";

export const DRAWN_REQUEST = "nb_agents_drawn_request";
export const RESUME_REQUEST = "nb_agents_resume_turn_request";

/** Time limit for the reply of an idle kernel. */
const READ_MS = 5000;

/** Created once per page load, so that Python recognises a reloaded page. */
const page = newId();

export function sendMounted(model: PanelModel): void {
  attempt("mounted", () => model.send({ type: "mounted", page }));
}

/** The body of a verb's request, as in the server's openapi.json. */
export type Ask = (verb: string, body: object) => void;

/** Send a request to the run or sweep named in `on`. */
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

/** An id by which the kernel recognises a duplicate. Stops need none, because they are idempotent. */
export function idOf(verb: string): { readonly id?: string } {
  return verb === "stop" ? {} : { id: newId() };
}

/** Open a sweep's row, or close it with "". */
export function sendOpen(model: PanelModel, row: string): void {
  attempt("open", () => model.send({ type: "open", row }));
}

/** Request a transcript from the kernel. A busy kernel answers after its cell. */
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
      reject(new Error(trans.__("the kernel is busy or has ended.")));
    }, READ_MS);
    model.on("msg:custom", take);
    attempt("read", () => model.send({ type: "read", run, agent, after, id }));
  });
}

/** Send a message on the control channel, which a busy kernel also reads. Resolves to the reply. */
export async function sendOnControl(kernel: Kernel | undefined, type: string, content: object): Promise<unknown> {
  const future = kernel?.sendControlMessage?.(controlMessage(kernel, type, content), true, true);
  try {
    return await future?.done;
  } catch {
    return undefined; // the kernel has died, which the panel shows elsewhere
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
