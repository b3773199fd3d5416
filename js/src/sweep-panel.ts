/** The panel of a sweep: numbers of all rows, a list of live rows, and the panel of an open row. */

import { type ListTools, makeListTools } from "./sweep-list";
import { make, setAttr, setClass, setHidden, setLines, setText, setTextOrHide } from "./dom";
import { TONES, keepFocus, makeCard, makeHeader, makeMeter } from "./draw";
import { type RunRequests, type LivePanel, makeLivePanel, makeStopPress, withHint } from "./live";
import { listen } from "./press";
import { makeRows } from "./rows";
import { type SteerBody, makeSteering } from "./sweep-steering";
import { drawWhileVisible } from "./visibility";
import { isFinal } from "./state";
import type { PanelState, RowCount, SweepState } from "./panel-types";
import { trans } from "./text";

/** Sends the user's requests. None of the functions may throw. */
export interface SweepRequests {
  stop(now: boolean): void;
  hold(pause: boolean): void;
  /** Open a row; "" closes the open row. */
  open(row: string): void;
  stopRow(run: string, now: boolean): void;
  /** Change the limits of the sweep, pause models, or run rows again. */
  steer(body: SteerBody): void;
  /** The same as for a run. */
  unheard?(now: boolean): string;
  /** Return the request functions of a row's run. */
  of(run: string): RunRequests;
}

export interface SweepPanel {
  readonly el: HTMLElement;
  draw(state: SweepState): void;
}

interface Part {
  readonly el: HTMLElement;
  draw(state: SweepState): void;
}

export function makeSweepPanel(life: AbortSignal, requests: SweepRequests): SweepPanel {
  let state: SweepState | null = null;
  const header = makeHeader();
  const meter = makeMeter();
  const tools = makeListTools(life, () => {
    draw();
  });
  const counts = makeCounts(life, () => state?.hold ?? "", requests, tools);
  const steering = makeSteering(life, (body) => requests.steer(body));
  const failures = makeFailures();
  const rows = makeRows(
    life,
    (row, now) => {
      const run = state?.rows.find((each) => each.id === row)?.run;
      if (run) requests.stopRow(run, now);
    },
    {
      toggle: (row) => requests.open(state?.open?.row === row ? "" : row),
      isOpen: (row) => state?.rows.some((each) => each.id === row && each.current) ?? false,
    },
    {
      label: trans.__("Rows"),
      row: trans.__("Row"),
      stop: trans.__("Stop only this row, after its calls."),
      again: (row) => requests.steer({ requeue: row }),
    },
  );
  const more = make("p", "more");
  const opened = makeOpened(life, requests);
  const notices = make("div", "notices");
  notices.setAttribute("aria-live", "polite");
  const footer = make("footer");
  const parts = [counts.el, steering.el, failures.el, tools.el, rows.el, more, opened.el, notices, footer];
  const live = make("div", "live", header.el, meter.el, ...parts);
  const card = makeCard();
  const el = make("div", "nba sweep", live, card.el);
  el.setAttribute("role", "group");
  el.tabIndex = -1;

  const drawRows = (shown: SweepState): void => {
    const listed = tools.listed(shown.rows);
    rows.draw(listed);
    const [some, all] = [listed.length, shown.rows.length];
    setTextOrHide(more, some < all ? trans._n("%2 of %1 row shown", "%2 of %1 rows shown", all, some) : shown.more_rows);
  };
  const announce = (shown: SweepState): void => {
    header.announce(shown, TONES[shown.status]);
    setLines(notices, shown.notices, "p");
  };
  const draw = (): void => {
    if (life.aborted || state === null) return;
    const shown = withHint(state, stop, requests);
    keepFocus(el, () => {
      setAttr(el, "aria-label", trans.__("Sweep: %1", shown.task));
      announce(shown);
      header.draw(shown, stop.pending(shown));
      meter.draw(shown);
      for (const part of [tools, counts, steering, failures, opened]) part.draw(shown);
      drawRows(shown);
      setLines(footer, shown.footer, "span");
      card.draw(shown.card);
      // The chip stays in the document, visually hidden, so the end is announced.
      setClass(live, shown.card ? "live nba-sr" : "live");
      setHidden(meter.el, shown.card !== "");
      if (shown.card) for (const part of [...header.unspoken, ...parts]) setHidden(part, true);
    });
  };
  const redraw = drawWhileVisible(el, life, draw, () => {
    if (life.aborted || state === null) return;
    if (isFinal(state.status)) draw();
    else announce(withHint(state, stop, requests));
  });
  const stop = makeStopPress(header.button, life, () => state, (now) => requests.stop(now), redraw);
  return {
    el,
    draw(next) {
      state = next;
      redraw();
    },
  };
}

/** The numbers of rows by state, which filter the list, and the button that pauses all rows. */
function makeCounts(life: AbortSignal, hold: () => SweepState["hold"], requests: SweepRequests, tools: ListTools): Part {
  const list = make("span", "counts");
  list.setAttribute("role", "group");
  list.setAttribute("aria-label", trans.__("Filter by state"));
  const chips = new Map<string, HTMLElement>();
  const makeChip = (state: RowCount["state"]): HTMLElement => {
    if (!state) return make("span", "chip");
    const chip = make("button", "chip");
    chip.type = "button";
    listen(chip, life, () => tools.toggle(state));
    return chip;
  };
  const button = make("button", "one");
  button.type = "button";
  listen(button, life, () => {
    if (hold()) requests.hold(hold() === "pause");
  });
  return {
    el: make("div", "tally", list, button),
    draw(state) {
      const shown = new Set<HTMLElement>();
      let next = list.firstElementChild;
      for (const each of state.counts) {
        const chip = chips.get(each.state) ?? makeChip(each.state);
        chips.set(each.state, chip);
        shown.add(chip);
        if (chip === next) next = next.nextElementSibling;
        else list.insertBefore(chip, next);
        setText(chip, each.text);
        setClass(chip, each.tone ? `chip ${each.tone}` : "chip");
        if (each.state) setAttr(chip, "aria-pressed", String(tools.isOnly(each.state)));
      }
      for (const chip of chips.values()) if (!shown.has(chip)) chip.remove();
      setHidden(button, state.hold === "");
      const isPaused = state.hold === "unpause";
      setText(button, isPaused ? trans.__("Continue") : trans.__("Pause"));
      setAttr(button, "title", isPaused ? trans.__("Unpause all rows.") : trans.__("Start no more rows, and pause live rows."));
    },
  };
}

function makeFailures(): Part {
  const list = make("ul");
  const more = make("p", "more");
  const el = make("div", "failures", list, more);
  el.setAttribute("role", "region");
  el.setAttribute("aria-label", trans.__("Failed rows"));
  return {
    el,
    draw({ failures, more_failures }) {
      while (list.children.length > failures.length) list.lastElementChild?.remove();
      failures.forEach(({ row, why }, i) => {
        const item = (list.children[i] as HTMLElement | undefined) ?? list.appendChild(makeFailure());
        setText(item.children[0] as HTMLElement, row);
        setText(item.children[1] as HTMLElement, why);
      });
      setTextOrHide(more, more_failures);
      setAttr(el, "tabindex", failures.length > 3 ? "0" : null);
      setHidden(el, failures.length === 0);
    },
  };
}

function makeFailure(): HTMLElement {
  const name = make("strong", "chip err");
  const why = make("span");
  for (const each of [name, why]) each.dir = "auto";
  return make("li", "", name, why);
}

/** The panel of the open row's run. */
function makeOpened(life: AbortSignal, requests: SweepRequests): Part {
  const name = make("strong");
  name.dir = "auto";
  const close = make("button", "one");
  close.type = "button";
  close.textContent = trans.__("Close");
  listen(close, life, () => requests.open(""));
  const head = make("div", "top", name, close);
  const el = make("div", "opened", head);
  let panel: LivePanel | null = null;
  let shown = "";
  let own = new AbortController();
  life.addEventListener("abort", () => own.abort());
  const replace = (state: PanelState | undefined): void => {
    own.abort();
    own = new AbortController();
    panel?.el.remove();
    shown = state?.run ?? "";
    panel = state ? makeLivePanel(own.signal, requests.of(state.run)) : null;
    if (panel) el.append(panel.el);
  };
  return {
    el,
    draw({ open }) {
      setHidden(el, open === null);
      if ((open?.state.run ?? "") !== shown) replace(open?.state);
      if (!open) return;
      setText(name, open.title);
      panel?.draw(open.state);
    },
  };
}
