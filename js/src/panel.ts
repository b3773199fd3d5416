/** The anywidget module: it joins the model, the drawing, the Stop button, the gates and the text box. */

import { type View, makeView } from "./draw";
import { type PanelModel, onKernelGone } from "./kernel";
import { PATIENCE_MS, listen } from "./press";
import { sendAgentStop, sendDecision, sendMounted, sendStop, sendText } from "./send";
import { type Pending, isAnswered, readState, withoutKernel } from "./state";

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
  const view = makeView(
    life,
    (gate, approved, text) => sendDecision(model, run(), gate, approved, text),
    (agent, now) => sendAgentStop(model, run(), agent, now),
  );
  let pending: Pending | null = null;
  let isKernelGone = false;

  const draw = (): void => {
    if (life.aborted) return;
    const state = readState(model.get("state"));
    if (pending && isAnswered(pending, state)) pending = null;
    view.draw(isKernelGone ? withoutKernel(state) : state, pending);
  };
  const stop = (): void => {
    const { run, button } = readState(model.get("state"));
    if (pending || !button) return;
    const sent = { now: button.now };
    pending = sent;
    sendStop(model, run, button.now);
    draw();
    const timer = setTimeout(() => {
      if (pending === sent) pending = null;
      draw();
    }, PATIENCE_MS);
    life.addEventListener("abort", () => clearTimeout(timer), { once: true });
  };

  listen(view.button, life, stop);
  listenToText(view.say, life, (text) => {
    sendText(model, run(), text);
  });
  model.on("change:state", draw);
  life.addEventListener("abort", () => model.off("change:state", draw));
  onKernelGone(model, life, () => {
    isKernelGone = true;
    draw();
  });
  draw();
  el.append(view.el);
  sendMounted(model);
}

/**
 * Send what is written, on a click or Enter, and clear the box. No form: a page in a sandbox may
 * not submit one. An Enter that ends the writing of a composed letter sends nothing.
 */
function listenToText(say: View["say"], life: AbortSignal, send: (text: string) => void): void {
  const { input, button } = say;
  const submit = (): void => {
    const text = input.value.trim();
    if (text === "") return;
    input.value = "";
    input.focus();
    send(text);
  };
  const onKeydown = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    // Shift-Enter would run the cell.
    event.stopPropagation();
    submit();
  };
  input.addEventListener("keydown", onKeydown, { signal: life });
  button.addEventListener("click", submit, { signal: life });
}

export default { render };
