/** The anywidget module: it joins the model and the live panel. */

import { type PanelModel, onKernelGone } from "./kernel";
import { makeLivePanel } from "./live";
import { sendAgentStop, sendDecision, sendMounted, sendStop, sendText } from "./send";
import { readState, withoutKernel } from "./state";

interface RenderProps {
  readonly model: PanelModel;
  readonly el: HTMLElement;
  readonly signal?: AbortSignal;
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
  const run = (): string => readState(model.get("state")).run;
  const panel = makeLivePanel(life, {
    stop: (now) => sendStop(model, run(), now),
    stopAgent: (agent, now) => sendAgentStop(model, run(), agent, now),
    say: (text) => sendText(model, run(), text),
    decide: (gate, approved, text) => sendDecision(model, run(), gate, approved, text),
  });
  let isKernelGone = false;
  const draw = (): void => {
    const state = readState(model.get("state"));
    panel.draw(isKernelGone ? withoutKernel(state) : state);
  };
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

export default { render };
