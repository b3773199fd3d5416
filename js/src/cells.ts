/** Finds the cells of open notebooks that show a turn or sweep. */

import type { Cell, CodeCell } from "@jupyterlab/cells";
import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import type { JSONObject } from "@lumino/coreutils";
import { serverId } from "./api";
import { trans } from "./text";
import { pathOf } from "./watch";

export interface Place {
  readonly panel: NotebookPanel;
  readonly cell: CodeCell;
}

export class Cells {
  /** Cells found earlier, by id. They are still found after their output was cleared. */
  private readonly known = new WeakMap<NotebookPanel, Map<string, string>>();

  constructor(
    private readonly notebooks: INotebookTracker | null,
    private readonly localPath: (path: string) => string,
  ) {}

  /**
   * Find the cell of a turn or a sweep.
   *
   * @param id The server's id.
   * @param isShown Whether the cell must still show it.
   */
  find(id: string, isShown: boolean): Place | undefined {
    let found: Place | undefined;
    this.notebooks?.forEach((panel) => {
      found ??= this.findIn(panel, id, isShown);
    });
    return found;
  }

  /** Return the notebook and cell, such as "report.ipynb, cell 3", or "" if no open notebook has it. */
  name(id: string): string {
    const place = this.find(id, false);
    if (!place) return "";
    const { panel, cell } = place;
    return trans.__("%1, cell %2", panel.title.label, panel.content.widgets.indexOf(cell) + 1);
  }

  /** Find the code cell of an output. */
  of(output: Node): Place | undefined {
    const panel = this.notebooks?.find((each) => each.node.contains(output));
    const cell = panel?.content.widgets.find((each) => each.node.contains(output));
    return panel && isCode(cell) ? { panel, cell } : undefined;
  }

  /** Find a cell that shows any turn of the same session. */
  ofSession(turn: string): Place | undefined {
    let found: Place | undefined;
    this.notebooks?.forEach((panel) => {
      found ??= this.showing(panel, (id) => sessionOf(id) === sessionOf(turn));
    });
    return found;
  }

  private findIn(panel: NotebookPanel, id: string, isShown: boolean): Place | undefined {
    const known = this.known.get(panel) ?? new Map<string, string>();
    this.known.set(panel, known);
    const shown = this.showing(panel, (each) => each === id);
    if (shown) known.set(id, shown.cell.model.id);
    if (shown || isShown) return shown;
    const cell = panel.content.widgets.filter(isCode).find(({ model }) => model.id === known.get(id));
    return cell && { panel, cell };
  }

  /** Find the first cell with an output of a turn or sweep. */
  private showing(panel: NotebookPanel, isWanted: (id: string) => boolean): Place | undefined {
    const notebook = this.localPath(panel.context.path);
    const cell = panel.content.widgets.filter(isCode).find(({ model }) => {
      for (let i = 0; i < model.outputs.length; i++) {
        const path = pathOf(model.outputs.get(i).data as JSONObject);
        if (path && isWanted(serverId(path, notebook))) return true;
      }
      return false;
    });
    return cell && { panel, cell };
  }
}

function sessionOf(turn: string): string {
  return turn.slice(0, turn.lastIndexOf("/"));
}

function isCode(cell: Cell | undefined): cell is CodeCell {
  return modelOf(cell)?.type === "code";
}

/** Return a cell's model. A cell that is being removed has none, although it is still in the notebook. */
export function modelOf(cell: Cell | null | undefined): Cell["model"] | null {
  return cell?.model ?? null;
}
