/**
 * What has happened in a live turn so far: a line, and when it is open a picture whose points lead back. What
 * is closed, or out of sight, is not asked for.
 */

import { make, setAttr, setHidden, setText } from "./dom";
import type { PanelState } from "./panel-types";
import { makeReachable, pointOf, reach } from "./points";
import { listen } from "./press";

/** Reads the picture, which is HTML that Python has made and escaped. */
export type ReadTimeline = () => Promise<string>;

/** At least so long between two reads. */
const NEWS_MS = 1000;

/** The runs whose timeline is open: a front end may make the panel again at any moment. */
const opened = new Set<string>();

export interface TimelinePart {
  readonly el: HTMLElement;
  draw(state: PanelState): void;
  close(): void;
}

/** @param read Nothing where nobody can draw it, or where its points would lead nowhere. */
export function makeTimeline(life: AbortSignal, read: ReadTimeline | undefined): TimelinePart {
  const label = make("span");
  setText(label, "Timeline");
  const button = make("button", "open", label);
  button.type = "button";
  button.title = "What has happened so far; each point of it leads back to that moment";
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
      setText(problem, shown ? "" : "Nothing has happened yet.");
    } catch (error) {
      setText(problem, `It can't be read: ${error instanceof Error ? error.message : String(error)}`);
    } finally {
      isReading = false;
      readAt = performance.now();
      setHidden(problem, !opened.has(run) || problem.textContent === "");
    }
  };
  const show = (html: string): void => {
    // A point under the pointer stays, or else a press of it would be lost, and its words with it.
    if (html === shown || life.aborted || picture.querySelector("[data-point]:hover")) return;
    const focused = picture.contains(document.activeElement) ? pointOf(document.activeElement) : "";
    picture.innerHTML = shown = html;
    makeReachable(picture);
    if (focused) reach(picture, focused);
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
