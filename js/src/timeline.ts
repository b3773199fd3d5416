/**
 * The timeline of a live turn: a line that opens a picture with checkpoints to rewind to. It is requested only
 * while open and visible.
 */

import { make, setAttr, setHidden, setText } from "./dom";
import type { PanelState } from "./panel-types";
import { enableKeyboard, pointOf, focusPoint } from "./points";
import { listen } from "./press";
import { trans } from "./text";

/** Gets the picture as HTML, made and escaped by Python. */
export type ReadTimeline = () => Promise<string>;

/** Minimum time between two requests. */
const NEWS_MS = 1000;

/** The checkbox that makes a crowded picture wider. */
const SPREAD = ".nb-spread > input";

/** The runs with an open timeline, because a front end may recreate the panel at any time. */
const opened = new Set<string>();

export interface TimelinePart {
  readonly el: HTMLElement;
  draw(state: PanelState): void;
  close(): void;
}

/** @param read Undefined if there is no timeline, or if its checkpoints could not be used. */
export function makeTimeline(life: AbortSignal, read: ReadTimeline | undefined): TimelinePart {
  const label = make("span");
  setText(label, trans.__("Timeline"));
  const button = make("button", "open", label);
  button.type = "button";
  button.title = trans.__("The timeline so far. Click a checkpoint to rewind to it.");
  const picture = make("div", "picture");
  const problem = make("p", "more");
  const el = make("div", "timeline", button, problem, picture);
  let run = "";
  let shown = "";
  let isReading = false;
  let readAt = Number.NEGATIVE_INFINITY;

  const draw = (): void => {
    const isOpen = opened.has(run);
    setAttr(button, "aria-expanded", String(isOpen));
    setHidden(picture, !isOpen);
    setHidden(problem, !isOpen || problem.textContent === "");
    if (isOpen) void follow();
  };
  const follow = async (): Promise<void> => {
    if (!read || isReading || performance.now() - readAt < NEWS_MS) return;
    isReading = true;
    try {
      show(await read());
      setText(problem, shown ? "" : trans.__("Nothing has happened yet."));
    } catch (error) {
      setText(problem, trans.__("The timeline can't be read: %1", error instanceof Error ? error.message : String(error)));
    } finally {
      isReading = false;
      readAt = performance.now();
      setHidden(problem, !opened.has(run) || problem.textContent === "");
    }
  };
  const show = (html: string): void => {
    // A checkpoint under the pointer is not redrawn, because its click and tooltip would be lost.
    if (html === shown || life.aborted || picture.querySelector("[data-point]:hover")) return;
    const focused = picture.contains(document.activeElement) ? pointOf(document.activeElement) : "";
    const isSpread = picture.querySelector<HTMLInputElement>(SPREAD)?.checked ?? false;
    picture.innerHTML = shown = html;
    const spread = picture.querySelector<HTMLInputElement>(SPREAD);
    if (spread) spread.checked = isSpread;
    enableKeyboard(picture);
    if (focused) focusPoint(picture, focused);
  };

  listen(button, life, () => {
    if (!opened.delete(run)) opened.add(run);
    readAt = Number.NEGATIVE_INFINITY;
    draw();
  });
  return {
    el,
    draw(state) {
      run = state.run;
      setHidden(el, read === undefined);
      draw();
    },
    close: () => opened.delete(run),
  };
}
