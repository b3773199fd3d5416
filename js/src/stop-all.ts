/** The button on each notebook's toolbar that stops all live runs: a click gracefully, the next one at once. */

import { Widget } from "@lumino/widgets";
import type { Api, Run } from "./api";
import { make, setAttr, setClass, setText } from "./dom";
import { type LiveRuns, counted } from "./live-runs";
import { listen } from "./press";

const GRACEFULLY = "All runs of agents, over all kernels: calls in flight may finish, everything is kept";
const NOW = "All runs of agents, over all kernels: calls in flight are cut, what they wrote is kept";

/** Stop all runs, those too that began a moment ago; resolves to why that could not be, or to "". */
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

/** Whether all of them are on their way to a graceful end, so that the next stop is meant to cut. */
export function areStopping(live: readonly Run[]): boolean {
  return live.length > 0 && live.every((run) => run.state === "stopping");
}

/** Make the button; `press` gets whether to stop at once. It takes no place while nothing runs. */
export function makeStopButton(runs: LiveRuns, press: (now: boolean) => void): Widget {
  const button = make("button");
  button.type = "button";
  const life = new AbortController();
  const draw = (): void => {
    const { live } = runs;
    const now = areStopping(live);
    setClass(button, now ? "nba-stop-all now" : "nba-stop-all");
    setText(button, `Stop ${counted(live)}${now ? " now" : ""}`);
    setAttr(button, "title", now ? NOW : GRACEFULLY);
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
