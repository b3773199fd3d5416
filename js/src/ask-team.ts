/** Offers to ask the team about the error that a cell shows, with a new cell that the user runs. */

import type { YNotebook } from "@jupyter/ydoc";
import type { Cell, CodeCell } from "@jupyterlab/cells";
import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import { insertBelow } from "./cell-changes";
import { modelOf } from "./cells";
import { outputText } from "./cell-outputs";
import { make } from "./dom";
import { listen } from "./press";
import { trans } from "./text";

const MAX_ERROR = 3_000;
const USES_AGENTS = /^\s*(?:%%agents\b|%(?:re)?load_ext\s+nb_agents\b|(?:import|from)\s+nb_agents\b)/m;
const TEAM_OPTION = /\s(?:--config|-c|--model|-m)[\s=](?:"[^"\n]*"|'[^'\n]*'|\S+)/g;
const life = new AbortController().signal;

/** Offer it in all notebooks that use nb_agents. */
export function offerAskTeam(notebooks: INotebookTracker): void {
  const follow = (panel: NotebookPanel): void => {
    const offers = new Offers(panel);
    panel.content.modelContentChanged.connect(() => offers.drawSoon());
    void panel.context.ready.then(() => offers.drawSoon());
  };
  notebooks.forEach(follow);
  notebooks.widgetAdded.connect((_, panel) => follow(panel));
}

/** The buttons in one notebook. */
class Offers {
  private readonly buttons = new WeakMap<Cell, HTMLElement>();
  private isDrawPending = false;

  constructor(private readonly panel: NotebookPanel) {}

  drawSoon(): void {
    if (this.isDrawPending) return;
    this.isDrawPending = true;
    requestAnimationFrame(() => {
      this.isDrawPending = false;
      if (!this.panel.isDisposed && this.panel.content.model) this.draw();
    });
  }

  private draw(): void {
    const cells = this.panel.content.widgets.filter(modelOf);
    const failed = new Set<Cell>(cells.filter((cell) => errorOf(cell) !== ""));
    const isUsed = failed.size > 0 && cells.some(({ model }) => USES_AGENTS.test(model.sharedModel.getSource()));
    for (const cell of cells) {
      const shown = this.buttons.get(cell);
      if (!isUsed || !failed.has(cell)) {
        shown?.remove();
        this.buttons.delete(cell);
      } else if (!shown) {
        const added = makeOffer(() => ask(this.panel, cell));
        this.buttons.set(cell, added);
        cell.node.append(added);
      }
    }
  }
}

function makeOffer(press: () => void): HTMLElement {
  const button = make("button");
  button.type = "button";
  button.textContent = trans.__("Ask the team");
  button.title = trans.__("Adds a cell with a task about this error. Nothing is sent before you run it.");
  listen(button, life, press);
  const el = make("div", "nba-strip nba-ask-team", button);
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  for (const kind of ["keydown", "mousedown", "dblclick"]) el.addEventListener(kind, (event) => event.stopPropagation());
  return el;
}

/** Return the text of the error that a cell shows, or "". */
function errorOf(cell: Cell): string {
  const outputs = (modelOf(cell) as Partial<CodeCell["model"]> | null)?.outputs;
  if (!outputs || /^\s*%%?agents\b/.test(cell.model.sharedModel.getSource())) return "";
  for (let i = 0; i < outputs.length; i++)
    if (outputs.get(i)?.type === "error") return outputText([outputs.get(i).toJSON() as never]) || "Error";
  return "";
}

/** Add the cell with the task below a cell, unless it is there, and select it. */
function ask({ content }: NotebookPanel, cell: Cell): void {
  const notebook = content.model?.sharedModel as YNotebook;
  const index = content.widgets.indexOf(cell);
  const sources = notebook.cells.map((each) => each.getSource());
  const task = taskOf(sources, index, errorOf(cell));
  if (sources[index + 1] !== task) insertBelow(notebook, cell.model.id, task);
  content.activeCellIndex = index + 1;
  void content.scrollToItem(index + 1, "auto").catch(() => {});
}

/**
 * Return the cell that asks the team about an error. Cells are named by their positions after the insertion.
 *
 * @param sources The sources of all cells.
 * @param index The index of the cell with the error.
 * @param error The error's text, which is untrusted.
 */
export function taskOf(sources: readonly string[], index: number, error: string): string {
  const above = sources[index - 1]?.trim() ? [`@cell:${index}`] : [];
  const below = sources[index + 1]?.trim() ? [`@cell:${index + 3}`] : [];
  const neighbors = [...above, ...below].join(" and ");
  const more = neighbors ? ` The cells next to it: ${neighbors}.` : "";
  const task = `Explain this error of @cell:${index + 1}, and propose a fix.${more}`;
  const shown = error.length > MAX_ERROR ? `[…]\n${error.slice(-MAX_ERROR)}` : error;
  return `%%agents${teamOf(sources)} --notebook propose\n${task}\n\n${escaped(shown)}`;
}

/** Return the options of the last cell that started a team. */
function teamOf(sources: readonly string[]): string {
  const lines = sources.map((source) => source.split("\n", 1)[0] ?? "");
  const last = lines.filter((line) => /^%%agents\b(?!.*\s(?:--recipe|-r|--over)\b)/.test(line)).at(-1);
  return (last?.match(TEAM_OPTION) ?? []).join("");
}

/** Escape what nb_agents would replace: names of files and cells, and variables. */
function escaped(text: string): string {
  return text.replace(/@(?=\S)/g, "\\@").replace(/\{\{/g, "\\{{");
}
