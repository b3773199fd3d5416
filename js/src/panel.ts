/** The anywidget module, which connects the model and the live panel of a run or sweep. */

import type { PanelState, SweepState } from "./panel-types";
import { type PanelModel, kernelOf, onKernelGone } from "./kernel";
import { type RunRequests, requestsBy, makeLivePanel } from "./live";
import { type Ask, askTranscript, sendAsk, sendMounted, sendOpen } from "./send";
import { readState, withoutKernel } from "./state";
import { makeSweepPanel } from "./sweep-panel";
import { isSweep, sweepWithoutKernel } from "./sweep-state";
import { trans } from "./text";

interface RenderProps {
  readonly model: PanelModel;
  readonly el: HTMLElement;
  readonly signal?: AbortSignal;
}

interface Drawn {
  readonly el: HTMLElement;
  draw(isKernelGone: boolean): void;
}

function render({ model, el, signal }: RenderProps): () => void {
  const life = new AbortController();
  const unmount = (): void => life.abort();
  signal?.addEventListener("abort", unmount, { signal: life.signal });
  if (signal?.aborted) unmount();
  else mount(model, el, life.signal);
  return unmount;
}

function mount(model: PanelModel, el: HTMLElement, life: AbortSignal): void {
  const panel = isSweep(model.get("state")) ? drawSweep(model, life) : drawRun(model, life);
  let isKernelGone = false;
  const draw = (): void => panel.draw(isKernelGone);
  model.on("change:state", draw);
  life.addEventListener("abort", () => model.off("change:state", draw));
  onKernelGone(model, life, () => {
    isKernelGone = true;
    draw();
  });
  draw();
  el.append(panel.el);
  sendMounted(model);
}

function drawRun(model: PanelModel, life: AbortSignal): Drawn {
  const read = (): PanelState => readState(model.get("state"));
  const unheard = (now: boolean): string => hintOf(model, read().session, now);
  const panel = makeLivePanel(life, { ...requestsOf(model, () => read().run), unheard });
  return {
    el: panel.el,
    draw(isKernelGone) {
      panel.draw(isKernelGone ? withoutKernel(read()) : read());
    },
  };
}

function drawSweep(model: PanelModel, life: AbortSignal): Drawn {
  const read = (): SweepState => model.get("state") as SweepState;
  const ask: Ask = (verb, body) => sendAsk(model, { sweep: read().sweep }, verb, body);
  const panel = makeSweepPanel(life, {
    stop: (now) => ask("stop", { immediate: now }),
    hold: (pause) => ask(pause ? "pause" : "unpause", {}),
    open: (row) => sendOpen(model, row),
    stopRow: (run, now) => requestsOf(model, () => run).stop(now),
    steer: (body) => ask("steer", body),
    unheard: (now) => hintOf(model, read().sweep, now),
    of: (run) => requestsOf(model, () => run),
  });
  return {
    el: panel.el,
    draw(isKernelGone) {
      panel.draw(isKernelGone ? sweepWithoutKernel(read()) : read());
    },
  };
}

function requestsOf(model: PanelModel, run: () => string): RunRequests {
  return requestsBy(
    (verb, body) => sendAsk(model, { run: run() }, verb, body),
    (agent, after) => askTranscript(model, run(), agent, after),
  );
}

/** The hint for a stop without an answer. Without the control channel, a cell blocks the kernel. */
function hintOf(model: PanelModel, name: string, now: boolean): string {
  if (kernelOf(model)?.sendControlMessage) return "";
  return (
    trans.__(
      "The kernel has not received the stop yet. In this front end, it does when its cell has ended. To stop it now, run this in a terminal in the notebook's folder: %1",
      `nb-agents stop ${now ? "--now " : ""}${name}`,
    )
  );
}

export default { render };
