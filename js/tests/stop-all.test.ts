import { expect, test, vi } from "vitest";
import { LiveRuns } from "../src/live-runs";
import { makeStatusItem } from "../src/status-bar";
import { makeStopButton, stopAll } from "../src/stop-all";
import { liveRun } from "./mock";

/** Successive lists of runs from the server. The last list is repeated. */
async function runsOf(...lists: ReturnType<typeof liveRun>[][]): Promise<LiveRuns> {
  const runs = new LiveRuns(() => Promise.resolve(lists.length > 1 ? lists.shift() : lists[0]));
  await new Promise<void>((resolve) => runs.listen(() => resolve()));
  return runs;
}

test("every run is stopped, including one that has just started", async () => {
  const runs = await runsOf([liveRun("a")], [liveRun("a"), liveRun("b")]);
  const post = vi.fn().mockResolvedValue("");
  expect(await stopAll({ post }, runs, false)).toBe("");
  const body = { immediate: false, source: "widget" };
  expect(post.mock.calls).toEqual([
    ["a", "stop", body],
    ["b", "stop", body],
  ]);
});

test("an error of a stop is reported once", async () => {
  const runs = await runsOf([liveRun("a"), liveRun("b")]);
  const post = vi.fn().mockResolvedValue("The Jupyter server can't be reached.");
  expect(await stopAll({ post }, runs, true)).toBe("The Jupyter server can't be reached.");
});

test("the button stops gracefully, and immediately if all are stopping", async () => {
  const stopping = liveRun("a", { state: "stopping" });
  const runs = await runsOf([liveRun("a")], [stopping, liveRun("b")], [stopping]);
  const press = vi.fn();
  const item = makeStopButton(runs, press);
  const button = item.node.querySelector("button");
  expect(button?.textContent).toBe("Stop 1 run");
  button?.click();
  await runs.refresh();
  expect(button?.textContent).toBe("Stop 2 runs");
  await runs.refresh();
  expect(button?.textContent).toBe("Stop 1 run now");
  button?.dispatchEvent(new MouseEvent("click", { detail: 2 })); // the second half of a double click
  button?.click();
  expect(press.mock.calls).toEqual([[false], [true]]);
});

test("button and status item are hidden while nothing runs", async () => {
  const runs = await runsOf([], [liveRun("a")], []);
  const button = makeStopButton(runs, () => {});
  const { item, isActive } = makeStatusItem(runs, () => {});
  expect([button.isHidden, item.isHidden, isActive?.()]).toEqual([true, true, false]);
  await runs.refresh();
  expect([button.isHidden, item.isHidden, isActive?.()]).toEqual([false, false, true]);
  expect(item.node.textContent).toBe("1 run");
  await runs.refresh();
  expect([button.isHidden, item.isHidden, isActive?.()]).toEqual([true, true, false]);
});

test("the button of a closed notebook has no listeners", async () => {
  const runs = await runsOf([liveRun("a")], [liveRun("a"), liveRun("b")]);
  const item = makeStopButton(runs, () => {});
  const { node } = item;
  item.dispose();
  await runs.refresh();
  expect(node.textContent).toBe("Stop 1 run");
});
