/** Buttons that put the code blocks of an answer into the notebook, where the user may run them. */

import type { YNotebook } from "@jupyter/ydoc";
import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import { insertBelow, replaceSource } from "./cell-changes";
import { type Place, modelOf } from "./cells";
import { make } from "./dom";
import { listen } from "./press";
import { trans } from "./text";

const life = new AbortController().signal;

/** Puts code into the notebook of an output. */
export interface CodeActions {
  insert(output: Node, code: string): void;
  replace(output: Node, code: string): void;
  /** Name the cell that `replace` would change, such as "cell 3", or "". */
  target(output: Node): string;
}

/** Add the buttons to each code block of an answer. */
export function addCodeButtons(answer: HTMLElement, actions: CodeActions): void {
  for (const block of answer.querySelectorAll("pre")) {
    const code = (block.textContent ?? "").replace(/\n$/, "");
    if (code.trim() === "" || block.closest(".jp-RenderedMermaid")) continue;
    const insert = button(trans.__("Insert below"), () => actions.insert(block, code));
    insert.title = trans.__("Adds a cell with this code below the cell of the run.");
    const replace = button(trans.__("Replace cell"), () => actions.replace(block, code));
    const name = (): void => {
      const target = actions.target(block);
      replace.title = target
        ? trans.__("Replaces %1, the last one that you selected. Undo takes it back.", target)
        : trans.__("Select a cell first.");
    };
    for (const kind of ["pointerenter", "focus"]) replace.addEventListener(kind, name);
    const bar = make("div", "nba-code-buttons", insert, replace);
    bar.setAttribute("data-lm-suppress-shortcuts", "true");
    bar.addEventListener("keydown", (event) => event.stopPropagation());
    // A click must not select the cell of the run.
    bar.addEventListener("mousedown", (event) => {
      event.preventDefault();
      event.stopPropagation();
    });
    block.after(bar);
  }
}

function button(label: string, press: () => void): HTMLButtonElement {
  const element = make("button");
  element.type = "button";
  element.textContent = label;
  listen(element, life, press);
  return element;
}

/**
 * Return the actions in the open notebooks.
 *
 * @param find Finds the cell of an output.
 * @param report Shows a message to the user.
 */
export function codeActions(
  notebooks: INotebookTracker | null,
  find: (output: Node) => Place | undefined,
  report: (message: string) => void,
): CodeActions {
  // The ids of the last two selected cells. The last one may be that of the run, for example after a click.
  const selected = new WeakMap<NotebookPanel, readonly string[]>();
  notebooks?.activeCellChanged.connect((_, cell) => {
    const panel = notebooks.find((each) => each.content.activeCell === cell);
    const id = modelOf(cell)?.id;
    if (!panel || id === undefined) return;
    const earlier = (selected.get(panel) ?? []).filter((each) => each !== id);
    selected.set(panel, [id, ...earlier].slice(0, 2));
  });
  const targetOf = ({ panel, cell }: Place): number => {
    const id = selected.get(panel)?.find((each) => each !== cell.model.id);
    return panel.content.widgets.findIndex((each) => modelOf(each)?.id === id);
  };
  return {
    insert(output, code) {
      const place = find(output);
      if (!place) return;
      insertBelow(notebookOf(place), place.cell.model.id, code);
      place.panel.content.activeCellIndex = place.panel.content.widgets.indexOf(place.cell) + 1;
    },
    replace(output, code) {
      const place = find(output);
      const index = place ? targetOf(place) : -1;
      if (!place || index < 0) {
        report(trans.__("Select the cell to replace, then press Replace cell."));
        return;
      }
      replaceSource(notebookOf(place), index, code);
      place.panel.content.activeCellIndex = index;
    },
    target(output) {
      const place = find(output);
      const index = place ? targetOf(place) : -1;
      return index < 0 ? "" : trans.__("cell %1", index + 1);
    },
  };
}

function notebookOf({ panel }: Place): YNotebook {
  return panel.content.model!.sharedModel as YNotebook;
}
