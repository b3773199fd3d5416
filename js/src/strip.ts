/** A line above a cell's panel or card about an earlier run of the cell or a resume, with actions. */

import { make, setHidden, setText } from "./dom";
import { listen } from "./press";
import { trans } from "./text";

export interface Strip {
  readonly el: HTMLElement;
  /** Show that the result is an earlier one, for which nothing was paid. */
  offerAgain(): void;
  /** Show that an earlier run of the cell is still running, until it ends. */
  offerStop(): void;
  /** Show that the turn was resumed in a later one, and how that one is. */
  showResumed(turn: number, state: string): void;
  hide(): void;
}

export interface Offers {
  again(): void;
  stop(): void;
  show(): void;
}

export function makeStrip(life: AbortSignal, offers: Offers): Strip {
  const text = make("span");
  const button = (label: string, title: string, press: () => void): HTMLButtonElement => {
    const made = make("button");
    made.type = "button";
    made.textContent = label;
    made.title = title;
    listen(made, life, press);
    return made;
  };
  const again = button(trans.__("Run again"), trans.__("Run this cell again, at full cost"), offers.again);
  const stop = button(trans.__("Stop"), trans.__("Calls in flight may finish, and everything is saved"), offers.stop);
  const show = button(trans.__("Show"), trans.__("Go to its cell, or open it next to the notebook"), offers.show);
  const el = make("div", "nba-strip", text, again, stop, show);
  const say = (words: string, ...shown: HTMLElement[]): void => {
    setText(text, words);
    for (const each of [again, stop, show]) setHidden(each, !shown.includes(each));
    setHidden(el, words === "");
  };
  say("");
  return {
    el,
    offerAgain: () => say(trans.__("This is the result of an earlier run. Nothing was paid."), again),
    offerStop: () => say(trans.__("An earlier run of this cell is still running."), stop, show),
    showResumed: (turn, state) => say(trans.__("Resumed in turn %1: %2.", turn, state), show),
    hide: () => say(""),
  };
}
