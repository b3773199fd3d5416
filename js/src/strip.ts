/** A line above a cell's panel or card on what the cell did before, with what can be done about it. */

import { make, setHidden, setText } from "./dom";
import { listen } from "./press";

export interface Strip {
  readonly el: HTMLElement;
  /** Say that nothing was paid: what is shown was complete before. */
  offerAgain(): void;
  /** Say that a run which the cell had begun before still works; until it is over. */
  offerStop(): void;
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
  const again = button("Run again", "Run this cell anew, and pay for it", offers.again);
  const stop = button("Stop", "Calls in flight may finish, everything is kept", offers.stop);
  const show = button("Show", "Open it beside the notebook", offers.show);
  const el = make("div", "nba-strip", text, again, stop, show);
  const say = (words: string, ...shown: HTMLElement[]): void => {
    setText(text, words);
    for (const each of [again, stop, show]) setHidden(each, !shown.includes(each));
    setHidden(el, words === "");
  };
  say("");
  return {
    el,
    offerAgain: () => say("This cell had been run before: nothing was paid.", again),
    offerStop: () => say("An earlier run of this cell still works.", stop, show),
    hide: () => say(""),
  };
}
