/** The anywidget module: it joins the model and the live panel, of a run or of a sweep. */

import { type PanelModel, onKernelGone } from "./kernel";
import { type Doors, makeLivePanel } from "./live";
import {
  sendAgentStop,
  sendDecision,
  sendHold,
  sendMounted,
  sendOpen,
  sendStop,
  sendSweepStop,
  sendText,
} from "./send";
import { readState, withoutKernel } from "./state";
import { makeSweepPanel } from "./sweep-panel";
import { type SweepState, isSweep, sweepWithoutKernel } from "./sweep-state";

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
  const panel = makeLivePanel(life, doorsOf(model, () => readState(model.get("state")).run));
  return {
    el: panel.el,
    draw(isKernelGone) {
      const state = readState(model.get("state"));
      panel.draw(isKernelGone ? withoutKernel(state) : state);
    },
  };
}

function drawSweep(model: PanelModel, life: AbortSignal): Drawn {
  const read = (): SweepState => model.get("state") as SweepState;
  const panel = makeSweepPanel(life, {
    stop: (now) => sendSweepStop(model, read().sweep, now),
    hold: (pause) => sendHold(model, pause),
    open: (row) => sendOpen(model, row),
    stopRow: (run, now) => sendStop(model, run, now),
    of: (run) => doorsOf(model, () => run),
  });
  return {
    el: panel.el,
    draw(isKernelGone) {
      panel.draw(isKernelGone ? sweepWithoutKernel(read()) : read());
    },
  };
}

function doorsOf(model: PanelModel, run: () => string): Doors {
  return {
    stop: (now) => sendStop(model, run(), now),
    stopAgent: (agent, now) => sendAgentStop(model, run(), agent, now),
    say: (text) => sendText(model, run(), text),
    decide: (gate, approved, text) => sendDecision(model, run(), gate, approved, text),
  };
}

export default { render };
