/**
 * The panel's DOM. It is built once, and `draw` changes only differences, up to ten times per second.
 * Text is set as `textContent`. Only the card is HTML, made and escaped by Python.
 */

import type { PanelState, Status, Tone } from "./panel-types";
import { make, setAttr, setClass, setHidden, setLines, setText, setTextOrHide } from "./dom";
import { askToDraw } from "./drawing";
import { type Decide, makeGates } from "./gates";
import { type StopAgent, makeRows } from "./rows";
import { makeSay } from "./say";
import { type ReadTimeline, makeTimeline } from "./timeline";
import { type ReadTranscript, makeTranscripts } from "./transcripts";
import { type Pending, pendingLabel } from "./state";
import { trans } from "./text";

export const TONES: Record<Status, Tone> = {
  running: "run",
  stopping: "ing",
  stopped: "cut",
  failed: "err",
  "timed out": "ing",
  complete: "ok",
};

export interface View {
  readonly el: HTMLElement;
  readonly button: HTMLButtonElement;
  /** The box for messages, and its button. */
  readonly say: { readonly input: HTMLInputElement; readonly button: HTMLButtonElement };
  draw(state: PanelState, pending: Pending | null): void;
  /** Update only the parts that screen readers announce. */
  announce(state: PanelState): void;
}

export function makeView(
  life: AbortSignal,
  decide: Decide,
  stopAgent: StopAgent,
  read: ReadTranscript,
  readTimeline: ReadTimeline | undefined,
): View {
  const header = makeHeader();
  const meter = makeMeter();
  const gates = makeGates(life, decide);
  const transcripts = makeTranscripts(life, read, (id) => rows.below(id));
  const rows = makeRows(life, stopAgent, transcripts);
  const summary = make("div", "summary");
  const timeline = makeTimeline(life, readTimeline);
  const say = makeSay();
  const notices = make("div", "notices");
  notices.setAttribute("aria-live", "polite");
  const footer = make("footer");
  const parts = [gates.el, summary, rows.el, transcripts.el, timeline.el, say.el, notices, footer];
  const live = make("div", "live", header.el, meter.el, ...parts);
  const card = makeCard();
  const el = make("div", "nba", live, card.el);
  el.setAttribute("role", "group");
  el.tabIndex = -1;
  const announce = (state: PanelState): void => {
    header.announce(state, state.gates.length || state.waits ? "ing" : TONES[state.status]);
    setLines(notices, state.notices, "p");
  };
  return {
    el,
    button: header.button,
    say,
    announce,
    draw(state, pending) {
      keepFocus(el, () => {
        setAttr(el, "aria-label", trans.__("Agents: %1", state.task));
        announce(state);
        header.draw(state, pending);
        meter.draw(state);
        gates.draw(state.gates);
        setTextOrHide(summary, state.summary ?? "");
        rows.draw(state.agents);
        for (const part of [transcripts, timeline]) {
          if (state.card) part.close();
          else part.draw(state);
        }
        say.draw(state);
        setLines(footer, state.footer, "span");
        card.draw(state.card, state.answers);
        // The chip stays in the document, visually hidden, so the end is announced.
        setClass(live, state.card ? "live nba-sr" : "live");
        setHidden(meter.el, state.card !== "");
        if (state.card) for (const part of [...header.unspoken, ...parts]) setHidden(part, true);
      });
    },
  };
}

/** Move the focus to the panel, not to the page's body, if a focused part disappears. */
export function keepFocus(el: HTMLElement, change: () => void): void {
  const focused = document.activeElement;
  const isOurs = focused instanceof HTMLElement && focused !== el && el.contains(focused);
  change();
  if (isOurs && (!el.contains(focused) || focused.closest("[hidden]"))) {
    el.focus({ preventScroll: true });
  }
}

/** The state of the header and meter, for a run or sweep. */
export type HeaderState = Pick<PanelState, "task" | "chip" | "status" | "button">;
export type MeterState = Pick<PanelState, "status" | "round" | "fraction" | "bar" | "in_flight" | "elapsed" | "cost">;

interface Meter {
  readonly el: HTMLElement;
  draw(state: MeterState): void;
}

export interface Header {
  readonly el: HTMLElement;
  readonly button: HTMLButtonElement;
  /** Parts that are hidden from screen readers when there is a card. */
  readonly unspoken: readonly HTMLElement[];
  /** Update the status, which screen readers announce. */
  announce(state: HeaderState, tone: Tone): void;
  /** Update everything else. */
  draw(state: HeaderState, pending: Pending | null): void;
}

export function makeHeader(): Header {
  const task = make("strong", "task");
  task.dir = "auto";
  const chip = make("span", "chip");
  const status = make("span", "status", chip);
  status.setAttribute("role", "status");
  status.setAttribute("aria-live", "polite");
  const button = make("button");
  button.type = "button";
  return {
    el: make("header", "", task, status, button),
    button,
    unspoken: [task, button],
    announce(state, tone) {
      setTextOrHide(chip, state.chip);
      setClass(chip, `chip ${tone}`);
    },
    draw(state, pending) {
      setTextOrHide(task, state.task);
      setAttr(task, "title", state.task);
      drawButton(button, state, pending);
    },
  };
}

function drawButton(button: HTMLButtonElement, state: HeaderState, pending: Pending | null): void {
  const { button: stop } = state;
  setHidden(button, stop === null);
  if (stop === null) return;
  const label = pending ? pendingLabel(pending) : stop.label;
  setText(button, label);
  // The label excludes the countdown in "Stop now · 27 s", because each change would be announced.
  setAttr(button, "aria-label", label.split(" · ")[0] ?? label);
  setAttr(button, "title", stop.title);
  // Not `disabled`, which would remove the focus.
  setAttr(button, "aria-disabled", pending ? "true" : null);
  setClass(button, (pending ?? stop).now ? "stop now" : "stop");
}

export function makeMeter(): Meter {
  const round = make("span", "round");
  const fill = make("i");
  const bar = make("span", "bar", fill);
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  const inFlight = make("span", "flight");
  const elapsed = make("span");
  const cost = make("span");
  return {
    el: make("div", "meter", round, bar, inFlight, elapsed, cost),
    draw(state) {
      const percent = Math.min(100, Math.max(0, 100 * state.fraction)).toFixed(1);
      const width = `${percent}%`;
      if (fill.style.width !== width) fill.style.width = width;
      setClass(fill, TONES[state.status]);
      setAttr(bar, "aria-label", state.bar);
      setAttr(bar, "aria-valuenow", String(Math.round(Number(percent))));
      setTextOrHide(round, state.round);
      setTextOrHide(inFlight, state.in_flight);
      setTextOrHide(elapsed, state.elapsed);
      setTextOrHide(cost, state.cost);
    },
  };
}

export function makeCard(): { el: HTMLElement; draw(html: string, answers?: readonly string[]): void } {
  const el = make("div", "card");
  let shown = "";
  return {
    el,
    draw(html, answers = []) {
      setHidden(el, html === "");
      // Compared with the given HTML, not with `innerHTML`, so opened details stay open.
      if (html === shown) return;
      el.innerHTML = shown = html;
      if (html) askToDraw(el, { markdown: "", agent: "", answers });
    },
  };
}
