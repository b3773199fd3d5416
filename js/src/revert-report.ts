/** Shows which changes a rewind took back, below the cell of the run. */

import type { NotebookPanel } from "@jupyterlab/notebook";
import type { LeftCell } from "./cell-changes";
import type { RevertPlan } from "./cells-api";
import { button, keepKeys, makeLines, text } from "./change-parts";
import type { CursorOwner } from "./cursors";
import { make, setHidden, setText } from "./dom";
import { trans } from "./text";

/** Says which changes were taken back after a rewind, and which cells stay. */
export class RevertReport {
  private readonly title = make("strong");
  private readonly force: HTMLButtonElement;
  private readonly details = make("div");
  private readonly el: HTMLElement;

  constructor(
    private readonly panel: NotebookPanel,
    private readonly host: HTMLElement,
    again: () => void,
  ) {
    this.force = button(trans.__("Take back here"), () => {
      this.el.remove();
      again();
    });
    this.force.hidden = true;
    const close = button(trans.__("Close"), () => this.el.remove());
    const head = make("header", "", this.title, make("span", "buttons", this.force, close));
    this.el = make("section", "nba-change nba-reverted", head, this.details);
    this.el.setAttribute("role", "status");
    keepKeys(this.el);
  }

  showOther(): void {
    setText(this.title, trans.__("Another page is taking back the changes after the checkpoint."));
    setHidden(this.force, false);
    this.host.append(this.el);
  }

  /**
   * @param count The number of cells whose changes were taken back.
   * @param kept The cells that the user had edited since.
   * @param left The cells that could not be changed at the last moment.
   */
  show(count: number, kept: NonNullable<RevertPlan["kept"]>, left: readonly LeftCell[]): void {
    if (!count && !kept.length && !left.length) return;
    setText(this.title, trans._n("The rewind took back the changes of %1 cell.", "The rewind took back the changes of %1 cells.", count));
    for (const { cell, agent, why, diff } of kept) {
      const index = this.panel.content.widgets.findIndex(({ model }) => model.id === cell);
      this.details.append(text("p", "", keptText(index, why === "gone", agent)));
      if (diff) this.details.append(makeLines(diff.split("\n").filter((line) => !line.startsWith("@@"))));
    }
    for (const { cell, cursor } of left) {
      const index = this.panel.content.widgets.findIndex(({ model }) => model.id === cell);
      this.details.append(text("p", "", leftText(index, cursor)));
    }
    this.host.append(this.el);
  }
}

/** Say why a change was not taken back. The index of a cell that is no longer there is -1. */
function keptText(index: number, isGone: boolean, agent: string): string {
  if (index < 0)
    return isGone
      ? trans.__("A cell is no longer there, so its change by %1 was not taken back.", agent)
      : trans.__("A cell stays, because you have edited it since. The change by %1 was not taken back.", agent);
  return isGone
    ? trans.__("Cell %1 is no longer there, so its change by %2 was not taken back.", index + 1, agent)
    : trans.__("Cell %1 stays, because you have edited it since. The change by %2 was not taken back.", index + 1, agent);
}

/** Say why a change was not taken back at the last moment. The index of a cell that is no longer there is -1. */
function leftText(index: number, cursor: CursorOwner | undefined): string {
  if (index < 0) return trans.__("A cell is no longer there, so its change was not taken back.");
  if (!cursor) return trans.__("Cell %1 stays, because it has just changed. Its change was not taken back.", index + 1);
  return cursor.name
    ? trans.__("Cell %1 stays, because the cursor of %2 is in it. Its change was not taken back.", index + 1, cursor.name)
    : trans.__("Cell %1 stays, because your cursor is in it. Its change was not taken back.", index + 1);
}
