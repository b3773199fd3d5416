/** Buttons, texts and diffs for the boxes at changed cells. Their texts are untrusted. */

import { diffLines } from "./cell-diff";
import { make } from "./dom";
import { listen } from "./press";

const life = new AbortController().signal;

export function button(label: string, press: () => void): HTMLButtonElement {
  const element = make("button");
  element.type = "button";
  element.textContent = label;
  listen(element, life, press);
  return element;
}

export function text(tag: "p" | "span", className: string, content: string): HTMLElement {
  const element = make(tag, className);
  element.dir = "auto";
  element.textContent = content;
  element.hidden = content === "" && tag === "p";
  return element;
}

/** Keep clicks and keys from the notebook, which would select or edit the cell. */
export function keepKeys(el: HTMLElement): void {
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  for (const kind of ["keydown", "mousedown", "dblclick"]) el.addEventListener(kind, (event) => event.stopPropagation());
}

export function caption(label: string): HTMLElement {
  return text("p", "caption", label);
}

/** Show the lines of a unified diff. */
export function makeLines(diff: readonly string[]): HTMLElement {
  const kinds: Readonly<Record<string, string>> = { "+": "added", "-": "removed" };
  const lines = diff.map((line) => {
    const row = text("span", kinds[line[0] ?? ""] ?? "same", line.slice(1));
    row.dataset.sign = line[0] ?? " ";
    return row;
  });
  const el = make("pre", "diff", ...lines);
  el.tabIndex = 0; // it scrolls
  return el;
}

export function makeDiff(before: string, after: string): HTMLElement {
  const lines = diffLines(before, after).map(({ kind, text: line }) => {
    const row = text("span", kind, line);
    row.dataset.sign = { same: " ", removed: "-", added: "+" }[kind];
    return row;
  });
  const diff = make("pre", "diff", ...lines);
  diff.tabIndex = 0; // it scrolls
  return diff;
}
