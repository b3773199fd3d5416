/** The line below the agents: the user's last message, and a box for the next one. */

import { make, setHidden, setText } from "./dom";
import type { PanelState } from "./panel-types";
import { trans } from "./text";

/** As `MAX_SAID` in nb_agents/turns/handle.py. */
const MAX_LENGTH = 20_000;

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
  input.placeholder = trans.__("Send a message to the agents…");
  input.autocomplete = "off";
  input.setAttribute("aria-label", trans.__("Send a message to the agents"));
  const button = make("button", "send");
  button.type = "button";
  button.textContent = trans.__("Send");
  button.title = trans.__("Each agent receives it with its next model call, and votes again.");
  const box = make("div", "box", input, button);
  const el = make("div", "say", last, box);
  // Typed letters must not trigger shortcuts of the notebook.
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
