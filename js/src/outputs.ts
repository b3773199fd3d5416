/** What a person is helped with who runs a cell again, or clears its output while its run works. */

import { Notification } from "@jupyterlab/apputils";
import type { Cells, Place } from "./cells";
import type { LiveRuns } from "./live-runs";
import type { Actions } from "./session-rows";
import { factsOf } from "./watch";

/** A cell that is run again shows its new run by then, which tells of the old one. */
const CLEARED_MS = 1500;

const FIRST_LINE = /^(\s*%%agents\b)/m;

/** Run the cell of an output anew: its line with `--fresh`, which its source does not get. */
export function runAgain(cells: Cells, output: Node): void {
  const place = cells.of(output);
  const kernel = place?.panel.sessionContext.session?.kernel;
  if (!place || !kernel) {
    Notification.info("The notebook has no kernel. Start one, and run the cell with --fresh.");
    return;
  }
  const { cell } = place;
  const code = cell.model.sharedModel.getSource().replace(FIRST_LINE, "$1 --fresh");
  cell.outputArea.future = kernel.requestExecute({ code, stop_on_error: true }, false, { cellId: cell.model.id });
}

interface Page {
  readonly runs: LiveRuns;
  readonly actions: Pick<Actions, "stop" | "open">;
}

/** Say that a run still works whose output was cleared, and offer to stop it. */
export async function tellIfCleared(turn: string, { panel, cell }: Place, { runs, actions }: Page): Promise<void> {
  if (!runs.live.some((run) => run.id === turn)) return;
  await new Promise((resolve) => setTimeout(resolve, CLEARED_MS));
  await runs.refresh();
  const live = runs.live.find((run) => run.id === turn);
  if (!live || panel.isDisposed || cell.isDisposed || tellsOf(cell.model.outputs)) return;
  Notification.info(`A run whose output was cleared still works: ${live.task.slice(0, 70)}`, {
    autoClose: false,
    actions: [
      { label: "Stop", caption: "Calls in flight may finish, everything is kept", callback: () => void actions.stop(turn, false) },
      { label: "Show", caption: "Open it beside the notebook", callback: () => actions.open(turn) },
    ],
  });
}

/** Whether a cell shows a run by now: its new one, which tells of the old one itself. */
function tellsOf(outputs: Place["cell"]["model"]["outputs"]): boolean {
  for (let i = 0; i < outputs.length; i++) {
    if (factsOf(outputs.get(i).data as Parameters<typeof factsOf>[0]).path) return true;
  }
  return false;
}
