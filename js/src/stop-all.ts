/** The toolbar button that stops all live runs: gracefully, and immediately with the next click. */

import { Widget } from "@lumino/widgets";
import type { Api, Run } from "./api";
import { make, setAttr, setClass, setText } from "./dom";
import { type LiveRuns, countText } from "./live-runs";
import { listen } from "./press";
import { trans } from "./text";

/** Stop all runs, including those that have just started. Resolves to an error message, or to "". */
export async function stopAll(api: Pick<Api, "post">, runs: LiveRuns, now: boolean): Promise<string> {
  const known = runs.live;
  const [problem] = await Promise.all([stop(api, known, now), runs.refresh()]);
  const late = runs.live.filter(({ id }) => !known.some((run) => run.id === id));
  const more = await stop(api, late, now);
  await runs.refresh();
  return problem || more;
}

async function stop(api: Pick<Api, "post">, live: readonly Run[], now: boolean): Promise<string> {
  const body = { immediate: now, source: "widget" };
  const problems = await Promise.all(live.map((run) => api.post(run.id, "stop", body)));
  return [...new Set(problems.filter(Boolean))].join(" ");
}

/** Whether all runs are stopping gracefully, so the next stop is immediate. */
export function areStopping(live: readonly Run[]): boolean {
  return live.length > 0 && live.every((run) => run.state === "stopping");
}

function titleOf(now: boolean): string {
  return now
    ? trans.__("All agent runs of all kernels: calls in flight are interrupted, and their text is saved")
    : trans.__("All agent runs of all kernels: calls in flight may finish, and everything is saved");
}

/** Create the button. `press` receives whether to stop immediately. It is hidden while nothing runs. */
export function makeStopButton(runs: LiveRuns, press: (now: boolean) => void): Widget {
  const button = make("button");
  button.type = "button";
  const life = new AbortController();
  const draw = (): void => {
    const { live } = runs;
    const now = areStopping(live);
    setClass(button, now ? "nba-stop-all now" : "nba-stop-all");
    setText(button, now ? trans.__("Stop %1 now", countText(live)) : trans.__("Stop %1", countText(live)));
    setAttr(button, "title", titleOf(now));
    item.setHidden(live.length === 0);
  };
  const item = new Widget({ node: make("div", "", button) });
  const end = runs.listen(draw);
  listen(button, life.signal, () => press(areStopping(runs.live)));
  item.disposed.connect(() => {
    life.abort();
    end();
  });
  draw();
  return item;
}
