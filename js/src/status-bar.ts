/** The status bar's item: how many runs are live over all kernels, and how many wait for a person. */

import type { IStatusBar } from "@jupyterlab/statusbar";
import { Widget } from "@lumino/widgets";
import { make, setText } from "./dom";
import { type LiveRuns, inWords } from "./live-runs";

/** Make the item; a click opens what `open` opens. It takes no place while nothing runs. */
export function makeStatusItem(runs: LiveRuns, open: () => void): IStatusBar.IItem {
  const button = make("button", "nba-status-item");
  button.type = "button";
  button.title = "Show the sessions of agents";
  button.addEventListener("click", open);
  const item = new Widget({ node: make("div", "", button) });
  item.hide();
  const end = runs.listen(({ live }) => {
    setText(button, inWords(live));
    item.setHidden(live.length === 0);
  });
  item.disposed.connect(end);
  // Without `isActive` the bar would show it whenever it arranges its items.
  return { item, isActive: () => runs.live.length > 0, align: "left", rank: 10 };
}
