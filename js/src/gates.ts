/** The questions of a recipe that a person must answer, each with a box for words and two buttons. */

import { make, setAttr, setHidden, setText } from "./dom";
import { newId } from "./kernel";
import { PATIENCE_MS, listen } from "./press";
import type { Gate } from "./state";

const MAX_LENGTH = 20_000;

/** Tells Python what a person has decided, and the words for the steps that follow. */
export type Decide = (gate: string, approved: boolean, text: string) => void;

interface Question {
  readonly el: HTMLElement;
  draw(gate: Gate): void;
}

export interface Gates {
  readonly el: HTMLElement;
  draw(gates: readonly Gate[]): void;
}

export function makeGates(life: AbortSignal, decide: Decide): Gates {
  const el = make("div", "gates");
  // Letters typed here are no shortcuts of the notebook's.
  el.dataset.lmSuppressShortcuts = "true";
  const questions = new Map<string, Question>();
  return {
    el,
    draw(gates) {
      const ids = new Set(gates.map((gate) => gate.id));
      for (const [id, question] of questions) {
        if (ids.has(id)) continue;
        question.el.remove();
        questions.delete(id);
      }
      for (const gate of gates) {
        const question = questions.get(gate.id) ?? makeQuestion(gate.id, life, decide);
        questions.set(gate.id, question);
        if (!question.el.isConnected) el.append(question.el);
        question.draw(gate);
      }
      setHidden(el, gates.length === 0);
    },
  };
}

function makeQuestion(id: string, life: AbortSignal, decide: Decide): Question {
  const title = make("strong");
  title.id = `nba-gate-${newId()}`;
  const countdown = make("small");
  const prompt = make("p", "prompt");
  prompt.dir = "auto";
  const input = makeInput();
  const approve = makeButton("approve", "The recipe goes on.");
  const deny = makeButton("deny", "The recipe stops. A resume asks again.");
  const box = make("div", "box", input, approve, deny);
  const el = make("section", "gate", make("div", "top", title, countdown), prompt, box);
  el.setAttribute("role", "group");
  el.setAttribute("aria-labelledby", title.id);
  let sent: boolean | null = null;

  const drawButtons = (): void => {
    setText(approve, sent === true ? "Approving…" : "Approve");
    setText(deny, sent === false ? "Denying…" : "Deny");
    // Not `disabled`, which would take the focus away.
    for (const button of [approve, deny]) setAttr(button, "aria-disabled", sent === null ? null : "true");
  };
  const press = (approved: boolean): void => {
    if (sent !== null) return;
    sent = approved;
    decide(id, approved, input.value.trim());
    drawButtons();
    const timer = setTimeout(() => {
      sent = null;
      drawButtons();
    }, PATIENCE_MS);
    life.addEventListener("abort", () => clearTimeout(timer), { once: true });
  };
  listen(approve, life, () => press(true));
  listen(deny, life, () => press(false));
  input.addEventListener("keydown", (event) => onKey(event, approve), { signal: life });
  drawButtons();
  return {
    el,
    draw(gate) {
      setText(title, `Approve “${gate.name}”?`);
      setText(countdown, gate.countdown);
      setText(prompt, gate.prompt);
      setHidden(prompt, gate.prompt === "");
    },
  };
}

/** Enter approves nothing by itself: it goes on to the button. Shift-Enter would run the cell. */
function onKey(event: KeyboardEvent, approve: HTMLButtonElement): void {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  event.stopPropagation();
  approve.focus();
}

function makeInput(): HTMLInputElement {
  const input = make("input");
  input.type = "text";
  input.dir = "auto";
  input.maxLength = MAX_LENGTH;
  input.placeholder = "Message for the steps that follow (optional)";
  input.autocomplete = "off";
  input.setAttribute("aria-label", "Message for the steps that follow");
  return input;
}

function makeButton(className: string, title: string): HTMLButtonElement {
  const button = make("button", className);
  button.type = "button";
  button.title = title;
  return button;
}
