/** The panel of a live run, whoever draws it: the drawing, and what a person asks for on it. */

import type { PanelState, Transcript } from "./panel-types";
import { makeView } from "./draw";
import { PATIENCE_MS, listen } from "./press";
import type { Ask } from "./send";
import { makeInSight } from "./sight";
import { type Pending, type StopState, isAnswered, isFinal } from "./state";

/** A kernel that hears a stop answers sooner. */
const UNANSWERED_MS = 1500;

/** Sends requests to the kernel or to the server. None of these may throw. */
export interface Doors {
  stop(now: boolean): void;
  stopAgent(agent: string, now: boolean): void;
  /** Read what an agent wrote and did, from a place in the turn's journal on; rejects when nobody can. */
  read(agent: string, after: number): Promise<Transcript>;
  /** Read the picture of what has happened so far; there is none where its points would lead nowhere. */
  readonly timeline?: () => Promise<string>;
  say(text: string): void;
  /** Decide this gate and no other: `text` goes to who asked, or to the steps that follow. */
  decide(gate: string, approved: boolean, text: string): void;
  /** The hint to show when a stop gets no answer; "" where there is nothing to be done about it. */
  unheard?(now: boolean): string;
}

/** Make the doors of a turn, of which each verb is asked in one way. */
export function doorsBy(ask: Ask, read: Doors["read"]): Doors {
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

/** What is written and not yet sent, by run: a front end may make the panel again at any moment. */
const unsent = new Map<string, string>();

export function makeLivePanel(life: AbortSignal, doors: Doors): LivePanel {
  const view = makeView(
    life,
    (gate, approved, text) => doors.decide(gate, approved, text),
    (agent, now) => doors.stopAgent(agent, now),
    (agent, after) => doors.read(agent, after),
    doors.timeline,
  );
  let state: PanelState | null = null;

  const draw = (): void => {
    if (life.aborted || state === null) return;
    view.draw(withHint(state, stop, doors), stop.pending(state));
  };
  // The end is drawn once, wherever it is.
  const redraw = makeInSight(view.el, life, draw, () => {
    if (life.aborted || state === null) return;
    if (isFinal(state.status)) draw();
    else view.announce(withHint(state, stop, doors));
  });
  const stop = makeStopPress(view.button, life, () => state, (now) => doors.stop(now), redraw);
  listenToText(view.say, life, (text) => {
    unsent.delete(state?.run ?? "");
    doors.say(text);
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

/** The state with a notice of where else a stop can be asked for, when one has had no answer. */
export function withHint<State extends StopState & { readonly notices: readonly string[] }>(
  state: State,
  stop: StopPress,
  doors: Pick<Doors, "unheard">,
): State {
  const unheard = stop.unheard(state);
  const hint = unheard && doors.unheard?.(unheard.now);
  return hint ? { ...state, notices: [...state.notices, hint] } : state;
}

export interface StopPress {
  /** The stop that this page has sent and the state doesn't answer. */
  pending(state: StopState): Pending | null;
  /** The same, once it should have been answered, and until it is. */
  unheard(state: StopState): Pending | null;
}

/**
 * Send a stop once for a press of the big button, which can be pressed again when nothing answers.
 *
 * @param redraw Called when the button is to look different.
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
 * Send what is written, on a click or Enter, and clear the box. No form: a page in a sandbox may
 * not submit one. An Enter that ends the writing of a composed letter sends nothing.
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
