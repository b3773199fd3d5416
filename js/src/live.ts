/** The panel of a live run: its view, and the user's requests. */

import type { PanelState, Transcript } from "./panel-types";
import { makeView } from "./draw";
import { PATIENCE_MS, listen } from "./press";
import type { Ask } from "./send";
import { drawWhileVisible } from "./visibility";
import { type Pending, type StopState, isAnswered, isFinal } from "./state";

/** Time after which a stop counts as unanswered. */
const UNANSWERED_MS = 1500;

/** Sends requests to the kernel or server. None of the functions may throw. */
export interface RunRequests {
  stop(now: boolean): void;
  stopAgent(agent: string, now: boolean): void;
  /** Get the transcript of an agent after a position of the turn's journal. Rejects on errors. */
  read(agent: string, after: number): Promise<Transcript>;
  /** Get the timeline so far. Undefined if its checkpoints could not be used. */
  readonly timeline?: () => Promise<string>;
  say(text: string): void;
  /** Decide a gate. `text` is sent to the agent, or to the next steps. */
  decide(gate: string, approved: boolean, text: string): void;
  /** The hint to show if a stop gets no answer, or "". */
  unheard?(now: boolean): string;
}

/** Create the request functions of a turn from one function that sends a verb. */
export function requestsBy(ask: Ask, read: RunRequests["read"]): RunRequests {
  return {
    read,
    stop: (now) => ask("stop", { immediate: now }),
    stopAgent: (agent, now) => ask("stop", { immediate: now, agent }),
    say: (text) => ask("say", { text }),
    decide: (gate, approved, text) => ask(approved ? "approve" : "deny", { gate, message: text }),
  };
}

export interface LivePanel {
  readonly el: HTMLElement;
  draw(state: PanelState): void;
}

/** Unsent messages by run, because a front end may recreate the panel at any time. */
const unsent = new Map<string, string>();

export function makeLivePanel(life: AbortSignal, requests: RunRequests): LivePanel {
  const view = makeView(
    life,
    (gate, approved, text) => requests.decide(gate, approved, text),
    (agent, now) => requests.stopAgent(agent, now),
    (agent, after) => requests.read(agent, after),
    requests.timeline,
  );
  let state: PanelState | null = null;

  const draw = (): void => {
    if (life.aborted || state === null) return;
    view.draw(withHint(state, stop, requests), stop.pending(state));
  };
  // The end is drawn even if the panel is not visible.
  const redraw = drawWhileVisible(view.el, life, draw, () => {
    if (life.aborted || state === null) return;
    if (isFinal(state.status)) draw();
    else view.announce(withHint(state, stop, requests));
  });
  const stop = makeStopPress(view.button, life, () => state, (now) => requests.stop(now), redraw);
  listenToText(view.say, life, (text) => {
    unsent.delete(state?.run ?? "");
    requests.say(text);
  });
  const { input } = view.say;
  input.addEventListener("input", () => unsent.set(state?.run ?? "", input.value), { signal: life });
  return {
    el: view.el,
    draw(next) {
      if (state === null) input.value = unsent.get(next.run) ?? "";
      state = next;
      redraw();
    },
  };
}

/** Add a notice about other ways to stop, if a stop was not answered. */
export function withHint<State extends StopState & { readonly notices: readonly string[] }>(
  state: State,
  stop: StopPress,
  requests: Pick<RunRequests, "unheard">,
): State {
  const unheard = stop.unheard(state);
  const hint = unheard && requests.unheard?.(unheard.now);
  return hint ? { ...state, notices: [...state.notices, hint] } : state;
}

export interface StopPress {
  /** A sent stop that the state does not reflect yet. */
  pending(state: StopState): Pending | null;
  /** The same stop, if its answer is overdue. */
  unheard(state: StopState): Pending | null;
}

/**
 * Send a stop for a press of the Stop button. Without an answer, it can be pressed again.
 *
 * @param redraw Called when the button must be redrawn.
 */
export function makeStopPress(
  button: HTMLButtonElement,
  life: AbortSignal,
  state: () => StopState | null,
  send: (now: boolean) => void,
  redraw: () => void,
): StopPress {
  let pending: Pending | null = null;
  let unheard: Pending | null = null;
  listen(button, life, () => {
    const offer = state()?.button;
    if (pending || !offer) return;
    const sent = { now: offer.now };
    pending = sent;
    send(sent.now);
    redraw();
    const timers = [
      setTimeout(() => {
        if (pending === sent) unheard = sent;
        redraw();
      }, UNANSWERED_MS),
      setTimeout(() => {
        if (pending === sent) pending = null;
        redraw();
      }, PATIENCE_MS),
    ];
    life.addEventListener("abort", () => timers.forEach(clearTimeout), { once: true });
  });
  return {
    pending(shown) {
      if (pending && isAnswered(pending, shown)) pending = null;
      return pending;
    },
    unheard(shown) {
      if (unheard && isAnswered(unheard, shown)) unheard = null;
      return unheard;
    },
  };
}

/**
 * Send the message on a click or Enter, and clear the box. Not a form, because a page in a sandbox may
 * not submit forms. An Enter that ends the composition of a character does not send.
 */
function listenToText(
  say: { readonly input: HTMLInputElement; readonly button: HTMLButtonElement },
  life: AbortSignal,
  send: (text: string) => void,
): void {
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
