/** The controls that change a running sweep: its limits, paused models, rows to run again, and scores so far. */

import { make, setAttr, setHidden, setText } from "./dom";
import type { SweepModel, SweepState, SweepSteering } from "./panel-types";
import { listen } from "./press";
import { trans } from "./text";

/** The body of the request `steer`, as in the server's openapi.json. */
export interface SteerBody {
  readonly limit?: number;
  readonly max_cost?: number;
  readonly timeout?: number;
  readonly pause_model?: string;
  readonly unpause_model?: string;
  readonly requeue?: string;
  readonly score?: boolean;
}

export interface Steering {
  readonly el: HTMLElement;
  draw(state: SweepState): void;
}

type LimitName = "limit" | "max_cost" | "timeout";

interface LimitField {
  readonly name: LimitName;
  readonly label: HTMLLabelElement;
  readonly input: HTMLInputElement;
}

/** Requeues all failed rows. */
const ALL_FAILED = "failed";

export function makeSteering(life: AbortSignal, steer: (body: SteerBody) => void): Steering {
  let shown: SweepSteering | null = null;
  let isEdited = false;
  const says = make("span", "says");
  const summary = make("summary", "", textNode(trans.__("Limits")), says);
  const fields = [
    makeField("limit", trans.__("Rows at a time"), "1"),
    makeField("max_cost", trans.__("Budget in US dollars"), "any"),
    makeField("timeout", trans.__("Seconds for each row"), "any"),
  ];
  const apply = makeButton(trans.__("Apply"));
  apply.type = "submit";
  const form = make("form", "limits", ...fields.map(({ label }) => label), apply);
  form.noValidate = true;
  const problem = make("p", "problem");
  problem.setAttribute("role", "alert");
  const models = makeModels(life, steer);
  const again = makeButton(trans.__("Retry failed"));
  const score = makeButton(trans.__("Score so far"));
  setAttr(score, "title", trans.__("Score what the running rows have written so far."));
  const more = make("div", "acts", again, score);
  const el = make("details", "steer", summary, form, problem, models.el, more);
  // JupyterLab's shortcuts must not act on typed keys.
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  const edit = (): void => {
    isEdited = true;
    setHidden(problem, true);
  };
  form.addEventListener("input", edit, { signal: life });
  const submit = (event: Event): void => {
    event.preventDefault();
    if (life.aborted || !shown) return;
    const wrong = fields.find(({ name, input }) => !isValid(name, input.value));
    setHidden(problem, !wrong);
    if (wrong) {
      setText(problem, wrong.name === "limit" ? trans.__("Enter a whole number from 1 to 1,000.") : trans.__("Enter a number above 0."));
      wrong.input.focus();
      return;
    }
    const body = changed(fields, shown);
    if (Object.keys(body).length) steer(body);
    isEdited = false;
  };
  form.addEventListener("submit", submit, { signal: life });
  listen(again, life, () => steer({ requeue: ALL_FAILED }));
  listen(score, life, () => steer({ score: true }));
  setHidden(problem, true);
  return {
    el,
    draw(state) {
      shown = state.steering;
      setHidden(el, shown === null);
      if (!shown) return;
      setText(says, shown.says);
      if (!isEdited) for (const { name, input } of fields) setValue(input, shown[name]);
      models.draw(shown.models);
      setHidden(again, shown.failed === 0);
      setHidden(score, !shown.can_score);
      setHidden(more, again.hidden && score.hidden);
    },
  };
}

function textNode(text: string): HTMLElement {
  const node = make("strong");
  node.textContent = text;
  return node;
}

function makeButton(text: string): HTMLButtonElement {
  const button = make("button", "one");
  button.type = "button";
  button.textContent = text;
  return button;
}

function makeField(name: LimitName, title: string, step: string): LimitField {
  const input = make("input");
  Object.assign(input, { type: "number", min: name === "limit" ? "1" : "0", step, inputMode: step === "1" ? "numeric" : "decimal" });
  if (name !== "limit") input.placeholder = trans.__("none");
  const label = make("label", "", textOf(title), input);
  return { name, label, input };
}

function textOf(text: string): HTMLElement {
  const node = make("span");
  node.textContent = text;
  return node;
}

/** An empty field of a limit that is not set stays as it is. */
function isValid(name: LimitName, text: string): boolean {
  if (text.trim() === "") return name !== "limit";
  const value = Number(text);
  return name === "limit" ? Number.isInteger(value) && value >= 1 && value <= 1000 : value > 0 && Number.isFinite(value);
}

function changed(fields: readonly LimitField[], shown: SweepSteering): SteerBody {
  const body: Partial<Record<LimitName, number>> = {};
  for (const { name, input } of fields) {
    if (input.value.trim() !== "" && Number(input.value) !== shown[name]) body[name] = Number(input.value);
  }
  return body;
}

function setValue(input: HTMLInputElement, value: number | null): void {
  const text = value === null ? "" : String(value);
  if (input.value !== text && document.activeElement !== input) input.value = text;
}

/** A button for each model and provider, pressed while its rows are paused. */
function makeModels(life: AbortSignal, steer: (body: SteerBody) => void): { el: HTMLElement; draw(models: readonly SweepModel[]): void } {
  const el = make("div", "models");
  el.setAttribute("role", "group");
  el.setAttribute("aria-label", trans.__("Pause rows by model"));
  const buttons = new Map<string, HTMLButtonElement>();
  let paused = new Set<string>();
  const makeModel = (name: string): HTMLButtonElement => {
    const button = makeButton("");
    button.dir = "auto";
    listen(button, life, () => steer(paused.has(name) ? { unpause_model: name } : { pause_model: name }));
    return button;
  };
  return {
    el,
    draw(models) {
      paused = new Set(models.filter((each) => each.is_paused).map((each) => each.name));
      const names = new Set(models.map((each) => each.name));
      for (const [name, button] of buttons) {
        if (names.has(name)) continue;
        button.remove();
        buttons.delete(name);
      }
      for (const { name, is_paused } of models) {
        const button = buttons.get(name) ?? makeModel(name);
        buttons.set(name, button);
        if (!button.isConnected) el.append(button);
        setText(button, is_paused ? trans.__("Continue %1", name) : trans.__("Pause %1", name));
        setAttr(button, "aria-pressed", String(is_paused));
        setAttr(button, "title", is_paused ? trans.__("Continue the rows that use this model.") : trans.__("Pause the rows that use this model, after their calls."));
      }
      setHidden(el, models.length === 0);
    },
  };
}
