/** The status bar's item: the numbers of live runs in all kernels, and of waiting ones. */

import type { IStatusBar } from "@jupyterlab/statusbar";
import { Widget } from "@lumino/widgets";
import { make, setText } from "./dom";
import { type LiveRuns, statusText } from "./live-runs";
import { trans } from "./text";

/** Create the item. A click calls `open`. It is hidden while nothing runs. */
export function makeStatusItem(runs: LiveRuns, open: () => void): IStatusBar.IItem {
  const button = make("button", "nba-status-item");
  button.type = "button";
  button.title = trans.__("Show agent sessions");
  button.addEventListener("click", open);
  const item = new Widget({ node: make("div", "", button) });
  item.hide();
  const end = runs.listen(({ live }) => {
    setText(button, statusText(live));
    item.setHidden(live.length === 0);
  });
  item.disposed.connect(end);
  // Without `isActive`, the bar would show it whenever it arranges its items.
  return { item, isActive: () => runs.live.length > 0, align: "left", rank: 10 };
}
