/** Which cell of which open notebook shows a turn or a sweep, so that a person can be taken to it. */

import type { Cell, CodeCell } from "@jupyterlab/cells";
import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import type { JSONObject } from "@lumino/coreutils";
import { serverId } from "./api";
import { pathOf } from "./watch";

export interface Place {
  readonly panel: NotebookPanel;
  readonly cell: CodeCell;
}

export class Cells {
  /** Of what was found: cells whose output was cleared are known by it. */
  private readonly known = new WeakMap<NotebookPanel, Map<string, string>>();

  constructor(
    private readonly notebooks: INotebookTracker | null,
    private readonly localPath: (path: string) => string,
  ) {}

  /**
   * Find the cell of a turn or a sweep.
   *
   * @param id As the server calls it.
   * @param isShown Whether the cell must show it still.
   */
  find(id: string, isShown: boolean): Place | undefined {
    let found: Place | undefined;
    this.notebooks?.forEach((panel) => {
      found ??= this.findIn(panel, id, isShown);
    });
    return found;
  }

  /** Say where it is, such as "report.ipynb, cell 3"; "" when no open notebook has it. */
  name(id: string): string {
    const place = this.find(id, false);
    if (!place) return "";
    const { panel, cell } = place;
    return `${panel.title.label}, cell ${panel.content.widgets.indexOf(cell) + 1}`;
  }

  /** Find the code cell that an output is in. */
  of(output: Node): Place | undefined {
    const panel = this.notebooks?.find((each) => each.node.contains(output));
    const cell = panel?.content.widgets.find((each) => each.node.contains(output));
    return panel && isCode(cell) ? { panel, cell } : undefined;
  }

  private findIn(panel: NotebookPanel, id: string, isShown: boolean): Place | undefined {
    const known = this.known.get(panel) ?? new Map<string, string>();
    this.known.set(panel, known);
    const notebook = this.localPath(panel.context.path);
    const codes = panel.content.widgets.filter(isCode);
    const shows = codes.find(({ model }) => {
      for (let i = 0; i < model.outputs.length; i++) {
        const path = pathOf(model.outputs.get(i).data as JSONObject);
        if (path && serverId(path, notebook) === id) return true;
      }
      return false;
    });
    if (shows) known.set(id, shows.model.id);
    const cell = shows ?? (isShown ? undefined : codes.find(({ model }) => model.id === known.get(id)));
    return cell && { panel, cell };
  }
}

function isCode(cell: Cell | undefined): cell is CodeCell {
  return cell?.model.type === "code";
}
