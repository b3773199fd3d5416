/** Help for users who run a cell again, or clear its output during its run. */

import { Notification } from "@jupyterlab/apputils";
import { type Cells, type Place, modelOf } from "./cells";
import type { LiveRuns } from "./live-runs";
import type { Actions } from "./session-rows";
import { trans } from "./text";
import { factsOf } from "./watch";

/** Delay after which a cell that was run again shows its new run, with a notice about the old one. */
const CLEARED_MS = 1500;

const FIRST_LINE = /^(\s*%%agents\b)/m;

/** Run the cell of an output again with `--fresh`, without changing its source. */
export function runAgain(cells: Cells, output: Node): void {
  const place = cells.of(output);
  const kernel = place?.panel.sessionContext.session?.kernel;
  if (!place || !kernel) {
    Notification.info(trans.__("The notebook has no kernel. Start one, and run the cell with --fresh."));
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

/** Notify that a run with a cleared output is still running, and offer to stop it. */
export async function notifyIfCleared(turn: string, { panel, cell }: Place, { runs, actions }: Page): Promise<void> {
  if (!runs.live.some((run) => run.id === turn)) return;
  await new Promise((resolve) => setTimeout(resolve, CLEARED_MS));
  await runs.refresh();
  const live = runs.live.find((run) => run.id === turn);
  if (!live || panel.isDisposed || cell.isDisposed || !modelOf(cell) || tellsOf(cell.model.outputs)) return;
  Notification.info(trans.__("A run whose output was cleared is still running: %1", live.task.slice(0, 70)), {
    autoClose: false,
    actions: [
      { label: trans.__("Stop"), caption: trans.__("Calls in flight may finish, and everything is saved"), callback: () => void actions.stop(turn, false) },
      { label: trans.__("Show"), caption: trans.__("Open it next to the notebook"), callback: () => actions.open(turn) },
    ],
  });
}

/** Whether a cell shows a run, such as its new one, which has a notice about the old one. */
function tellsOf(outputs: Place["cell"]["model"]["outputs"]): boolean {
  for (let i = 0; i < outputs.length; i++) {
    if (factsOf(outputs.get(i).data as Parameters<typeof factsOf>[0]).path) return true;
  }
  return false;
}
