/** The open gates, each with a text box and two buttons. */

import { make, setAttr, setHidden, setText, setTextOrHide } from "./dom";
import { newId } from "./kernel";
import { PATIENCE_MS, listen } from "./press";
import type { Asked, GateQuestion } from "./panel-types";
import { trans } from "./text";

const MAX_LENGTH = 20_000;

interface ButtonWords {
  readonly label: string;
  readonly sent: string;
  readonly title: string;
}

interface Words {
  readonly title: (name: string) => string;
  readonly input: string;
  readonly placeholder: string;
  readonly approve: ButtonWords;
  readonly deny: ButtonWords;
}

function wordsOf(asked: Asked): Words {
  const approve = { label: trans.__("Approve"), sent: trans.__("Approving…") };
  const deny = { label: trans.__("Deny"), sent: trans.__("Denying…") };
  const words: Record<Asked, Words> = {
    stage: {
      title: (name) => trans.__("Approve “%1”?", name),
      input: trans.__("Message for the next steps"),
      placeholder: trans.__("Message for the next steps (optional)"),
      approve: { ...approve, title: trans.__("The recipe continues.") },
      deny: { ...deny, title: trans.__("The recipe stops. A resume asks again.") },
    },
    approval: {
      title: (name) => trans.__("Approve %1?", name),
      input: trans.__("Why"),
      placeholder: trans.__("Why (optional)"),
      approve: { ...approve, title: trans.__("The call runs.") },
      deny: { ...deny, title: trans.__("The call does not run, and the agent receives the reason.") },
    },
    budget: {
      title: () => trans.__("Raise the budget?"),
      input: trans.__("Another amount"),
      placeholder: trans.__("Another amount (optional)"),
      approve: { label: trans.__("Raise"), sent: trans.__("Raising…"), title: trans.__("The agents continue with the higher budget.") },
      deny: { label: trans.__("Stop"), sent: trans.__("Stopping…"), title: trans.__("The run stops. A resume asks again.") },
    },
    text: {
      title: () => trans.__("A question for you"),
      input: trans.__("Your answer"),
      placeholder: trans.__("Your answer"),
      approve: { label: trans.__("Answer"), sent: trans.__("Answering…"), title: trans.__("Send this text as the answer.") },
      deny: { label: trans.__("Refuse"), sent: trans.__("Refusing…"), title: trans.__("Report that there is no answer.") },
    },
  };
  return words[asked];
}

/** Sends a decision to Python, with a message for the agent or for the next steps. */
export type Decide = (gate: string, approved: boolean, text: string) => void;

interface Question {
  readonly el: HTMLElement;
  draw(gate: GateQuestion): void;
}

export interface Gates {
  readonly el: HTMLElement;
  draw(gates: readonly GateQuestion[]): void;
}

export function makeGates(life: AbortSignal, decide: Decide): Gates {
  const el = make("div", "gates");
  // Typed letters must not trigger shortcuts of the notebook.
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
        const question = questions.get(gate.id) ?? makeQuestion(gate, life, decide);
        questions.set(gate.id, question);
        if (!question.el.isConnected) el.append(question.el);
        question.draw(gate);
      }
      setHidden(el, gates.length === 0);
    },
  };
}

function makeQuestion({ id, asks }: GateQuestion, life: AbortSignal, decide: Decide): Question {
  const words = wordsOf(asks);
  const title = make("strong");
  title.id = `nba-gate-${newId()}`;
  const countdown = make("small");
  const prompt = make("p", "prompt");
  prompt.dir = "auto";
  const input = makeInput(words);
  const approve = makeButton("approve", words.approve.title);
  const deny = makeButton("deny", words.deny.title);
  const code = make("pre", "code");
  code.tabIndex = 0; // it scrolls
  const box = make("div", "box", input, approve, deny);
  const el = make("section", "gate", make("div", "top", title, countdown), prompt, code, box);
  el.setAttribute("role", "group");
  el.setAttribute("aria-labelledby", title.id);
  let sent: boolean | null = null;

  const drawButtons = (): void => {
    setText(approve, sent === true ? words.approve.sent : words.approve.label);
    setText(deny, sent === false ? words.deny.sent : words.deny.label);
    // Not `disabled`, which would remove the focus.
    for (const button of [approve, deny]) setAttr(button, "aria-disabled", sent === null ? null : "true");
  };
  const press = (approved: boolean): void => {
    if (sent !== null) return;
    const text = input.value.trim();
    if (asks === "text" && approved && text === "") {
      input.focus();
      return;
    }
    sent = approved;
    decide(id, approved, text);
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
      setText(title, words.title(gate.name));
      setText(countdown, gate.countdown);
      const [about, source] = asks === "approval" ? splitCode(gate.prompt) : [gate.prompt, ""];
      setTextOrHide(prompt, about);
      setTextOrHide(code, source);
    },
  };
}

/** Split a question into its first line and the code below it, such as that of a cell. */
function splitCode(prompt: string): readonly [string, string] {
  const end = prompt.indexOf(":\n");
  return end < 0 ? [prompt, ""] : [prompt.slice(0, end + 1), prompt.slice(end + 2)];
}

/** Enter moves the focus to the button instead of approving. Shift-Enter would run the cell. */
function onKey(event: KeyboardEvent, approve: HTMLButtonElement): void {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  event.stopPropagation();
  approve.focus();
}

function makeInput(words: Words): HTMLInputElement {
  const input = make("input");
  input.type = "text";
  input.dir = "auto";
  input.maxLength = MAX_LENGTH;
  input.placeholder = words.placeholder;
  input.autocomplete = "off";
  input.setAttribute("aria-label", words.input);
  return input;
}

function makeButton(className: string, title: string): HTMLButtonElement {
  const button = make("button", className);
  button.type = "button";
  button.title = title;
  return button;
}
