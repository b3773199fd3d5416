/** The line under the agents: what the person said last, and a box to say more. */

import { make, setHidden, setText } from "./dom";
import type { PanelState } from "./panel-types";

/** As `MAX_SAID` in nb_agents/runs/run.py. */
const MAX_LENGTH = 20_000;

const LABEL = "Say something to the agents";

export interface Say {
  readonly el: HTMLElement;
  readonly input: HTMLInputElement;
  readonly button: HTMLButtonElement;
  draw(state: PanelState): void;
}

export function makeSay(): Say {
  const text = make("bdi");
  const read = make("small");
  const last = make("p", "said", text, read);
  const input = make("input");
  input.type = "text";
  input.dir = "auto";
  input.maxLength = MAX_LENGTH;
  input.placeholder = `${LABEL}…`;
  input.autocomplete = "off";
  input.setAttribute("aria-label", LABEL);
  const button = make("button", "send");
  button.type = "button";
  button.textContent = "Send";
  button.title = "Each agent reads it with its next model call; votes are cast again.";
  const box = make("div", "box", input, button);
  const el = make("div", "say", last, box);
  // Letters typed here are no shortcuts of the notebook's.
  el.dataset.lmSuppressShortcuts = "true";
  return {
    el,
    input,
    button,
    draw(state) {
      setText(text, state.said ? `“${state.said.text}”` : "");
      setText(read, state.said?.read ?? "");
      setHidden(last, state.said === null);
      setHidden(box, !state.can_say);
      setHidden(el, state.said === null && !state.can_say);
    },
  };
}
