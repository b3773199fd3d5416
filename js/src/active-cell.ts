/** Keeps the cursor in its cell while other cells are moved. */

import type { YNotebook } from "@jupyter/ydoc";
import type { NotebookPanel } from "@jupyterlab/notebook";

/** What is used of a transaction of Yjs. */
interface Transaction {
  /** The changed values. */
  readonly changed: ReadonlyMap<unknown, unknown>;
}

/** A notebook's way to change its mode and leave the focus where it is, which is protected. */
interface Modal {
  setMode(mode: "command" | "edit", options: { readonly focus: boolean }): void;
}

/**
 * Keep the active cell of a notebook, and the cursor in it, when other cells are moved.
 *
 * A move removes a cell from the shared notebook and inserts it again, in one transaction. JupyterLab 4.6 updates its
 * widgets in two steps. After each of them, `Notebook._onCellsChanged` looks for the active cell in the shared notebook,
 * where both steps are done. So a neighbor of the active cell becomes active, and in edit mode gets the cursor, also with
 * a delay. In command mode, no cursor moves.
 */
export function keepActiveCell({ content, disposed }: NotebookPanel): void {
  const { ydoc } = content.model!.sharedModel as YNotebook;
  const cells = ydoc.getArray("cells");
  let before: { readonly id: string; readonly mode: typeof content.mode } | undefined;
  const hold = ({ changed }: Transaction): void => {
    const id = content.activeCell?.model?.id;
    if (id === undefined || !changed.has(cells)) return;
    before = { id, mode: content.mode };
    (content as unknown as Modal).setMode("command", { focus: false });
  };
  const release = (): void => {
    if (!before) return;
    const { id, mode } = before;
    before = undefined;
    const index = content.widgets.findIndex(({ model }) => model?.id === id);
    if (index >= 0) content.activeCellIndex = index;
    content.mode = mode;
  };
  ydoc.on("beforeObserverCalls", hold);
  ydoc.on("afterTransaction", release);
  disposed.connect(() => {
    ydoc.off("beforeObserverCalls", hold);
    ydoc.off("afterTransaction", release);
  });
}
