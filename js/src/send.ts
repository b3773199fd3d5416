/**
 * What the panel tells Python: that it is mounted, and that a run is to stop.
 *
 * A stop goes out twice, because each way has a moment when it is deaf: the widget message waits
 * for a busy shell, the control message needs a front end that shows its kernel. Stops are
 * idempotent at the other side. No failure to send reaches the caller.
 */

import { type Kernel, type PanelModel, kernelOf, newId } from "./kernel";

const STOP_REQUEST = "nb_agents_stop_request";

/** Made once for each load of the page, so that Python can tell a reloaded page. */
const page = newId();

export function sendMounted(model: PanelModel): void {
  attempt("mounted", () => model.send({ type: "mounted", page }));
}

export function sendStop(model: PanelModel, run: string, now: boolean): void {
  attempt("stop, on the control channel", () => sendOnControl(kernelOf(model), run, now));
  attempt("stop", () => model.send({ type: "stop", run, now }));
}

function sendOnControl(kernel: Kernel | undefined, run: string, now: boolean): void {
  const future = kernel?.sendControlMessage?.(stopRequest(kernel, run, now), true, true);
  // A kernel which dies before it replies rejects `done`: the panel says so elsewhere.
  future?.done?.catch(() => {});
}

function stopRequest(kernel: Kernel, run: string, now: boolean): unknown {
  return {
    channel: "control",
    header: {
      msg_id: newId(),
      msg_type: STOP_REQUEST,
      session: kernel.clientId ?? "",
      username: kernel.username ?? "",
      date: new Date().toISOString(),
      version: "5.4",
    },
    parent_header: {},
    metadata: {},
    content: { run, now },
    buffers: [],
  };
}

function attempt(message: string, send: () => void): void {
  try {
    send();
  } catch (error) {
    console.warn(`nb_agents: could not send the message '${message}'.`, error);
  }
}
