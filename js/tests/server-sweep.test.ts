import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { DRAW, type Drawing } from "../src/drawing";
import { makeServerSweep } from "../src/server-sweep";
import type { SweepState } from "../src/panel-types";
import { type Listener, type News, TURN_MIME } from "../src/watch";
import { MockKernel, RUNNING, SWEEP, sweepRow, visibleText } from "./mock";

beforeEach(() => {
  vi.useFakeTimers();
  document.body.replaceChildren();
});
afterEach(() => vi.useRealTimers());

const LIVE: SweepState = { ...SWEEP, rows: [sweepRow("sky", { run: "sky/1" }), sweepRow("moon", { run: "moon/2" })] };

/** A panel with a kernel that sends this reply, or none. */
function shown(reply?: object) {
  const kernel = new MockKernel();
  const done = reply ? Promise.resolve({ content: reply }) : new Promise(() => {});
  kernel.sendControlMessage.mockReturnValue({ done });
  const post = vi.fn().mockResolvedValue("");
  const tryPost = async (id: string, verb: string, body: object) => ({ refusal: (await post(id, verb, body)) as string, isUnknown: false });
  const report = vi.fn();
  const watched = new Map<string, Listener>();
  const watch = (id: string, listener: Listener) => {
    watched.set(id, listener);
    return () => void watched.delete(id);
  };
  const life = new AbortController();
  const panel = makeServerSweep(life.signal, { id: "a/asked", api: { post, tryPost, timeline: vi.fn(), transcript: vi.fn() }, watcher: { watch }, kernel: () => kernel, report });
  document.body.append(panel.el);
  panel.draw(LIVE);
  const all = (selector: string): HTMLElement[] => [...panel.el.querySelectorAll<HTMLElement>(selector)];
  const q = (selector: string): HTMLElement => {
    const [found] = all(selector);
    if (!found) throw new Error(`There is no ${selector}.`);
    return found;
  };
  const news = (id: string, told: News): void => watched.get(id)?.(told);
  return { panel, kernel, post, report, watched, life, all, q, news };
}

const settle = (): Promise<unknown> => vi.advanceTimersByTimeAsync(400);

test("a stop goes only to the kernel if it runs the sweep", async () => {
  const { q, kernel, post } = shown({ refusal: "" });
  q("header button").click();
  await settle();
  expect(kernel.sendControlMessage.mock.calls[0]?.[0].content).toEqual({ sweep: "asked", immediate: false });
  expect(post).not.toHaveBeenCalled();
});

test.each([[undefined], [{ refusal: "No sweep.", is_unknown: true }]])("a stop that the kernel can't handle goes to the server", async (reply) => {
  const { q, post, report } = shown(reply);
  post.mockResolvedValue("It is over.");
  q("header button").click();
  await settle();
  expect(post).toHaveBeenCalledWith("a/asked", "stop", { immediate: false, source: "widget" });
  expect(report).toHaveBeenCalledWith("It is over.");
});

test("a row is stopped by its turn's id, not by its name", async () => {
  const { all, kernel, post } = shown({ refusal: "" });
  all(".rows button.one:not(.again)")[1]?.click();
  await settle();
  expect(kernel.sendControlMessage).not.toHaveBeenCalled();
  expect(post).toHaveBeenCalledWith("a/asked/moon/turn_2", "stop", { immediate: false, source: "widget" });
});

test("all rows are paused and unpaused through the server", async () => {
  const { panel, q, post, report } = shown();
  post.mockResolvedValue("It is over.");
  q(".tally button.one").click();
  panel.draw({ ...LIVE, hold: "unpause" });
  q(".tally button.one").click();
  await settle();
  expect(post.mock.calls).toEqual([
    ["a/asked", "pause", {}],
    ["a/asked", "unpause", {}],
  ]);
  expect(report).toHaveBeenCalledWith("It is over.");
});

test("an open row is followed like its turn, and closed by its name", () => {
  const { all, q, news, watched } = shown();
  all(".rows button.open")[0]?.click();
  expect([...watched.keys()]).toEqual(["a/asked/sky/turn_1"]);
  news("a/asked/sky/turn_1", { kind: "state", state: { ...RUNNING, task: "Why is the sky blue?" } });
  expect(q(".opened .task").textContent).toBe("Why is the sky blue?");
  expect(all(".rows button.open")[0]?.getAttribute("aria-expanded")).toBe("true");
  all(".rows button.open")[0]?.click();
  expect(watched.size).toBe(0);
  expect(all(".opened .nba")).toEqual([]);
});

test("another opened row replaces the first one", () => {
  const { all, q, news, watched } = shown();
  for (const button of all(".rows button.open")) button.click();
  expect([...watched.keys()]).toEqual(["a/asked/moon/turn_2"]);
  news("a/asked/moon/turn_2", { kind: "state", state: { ...RUNNING, task: "How far?" } });
  expect(q(".opened .task").textContent).toBe("How far?");
});

test("requests for an open row go to its turn", async () => {
  const { all, q, news, post } = shown({ refusal: "" });
  all(".rows button.open")[0]?.click();
  news("a/asked/sky/turn_1", { kind: "state", state: RUNNING });
  (q(".opened .say input") as HTMLInputElement).value = "Be short";
  q(".opened .say button").click();
  q(".opened header button").click();
  await settle();
  expect(post.mock.calls).toEqual([
    ["a/asked/sky/turn_1", "say", { text: "Be short" }],
    ["a/asked/sky/turn_1", "stop", { immediate: false, source: "widget" }],
  ]);
});

test("an open row that ends shows its card", () => {
  for (const isSeen of [true, false]) {
    const { all, q, news } = shown();
    all(".rows button.open")[0]?.click();
    if (isSeen) news("a/asked/sky/turn_1", { kind: "state", state: RUNNING });
    news("a/asked/sky/turn_1", { kind: "card", bundle: { "text/html": "<b>card</b>", [TURN_MIME]: { state: "stopped" } } });
    expect(q(".opened .card").innerHTML).toBe("<b>card</b>");
    expect(q(".opened header .chip").textContent).toBe("stopped");
    expect(visibleText(q(".opened"))).not.toContain(RUNNING.task);
  }
});

test("a row that has disappeared is closed", () => {
  const { all, news } = shown();
  all(".rows button.open")[0]?.click();
  news("a/asked/sky/turn_1", { kind: "unknown" });
  expect(all(".opened .nba")).toEqual([]);
});

test("nothing is followed after the end of the panel", () => {
  const { all, life, watched } = shown();
  all(".rows button.open")[0]?.click();
  life.abort();
  expect(watched.size).toBe(0);
});

test("the answers of an ended row are rendered as Markdown", () => {
  const { panel, q, news } = shown();
  const asked: unknown[] = [];
  panel.el.addEventListener(DRAW, (event) => asked.push((event as CustomEvent<Drawing>).detail.answers));
  q("button.open").click();
  news("a/asked/sky/turn_1", { kind: "state", state: RUNNING });
  const bundle = {
    "text/html": "<p class=nb-answer>so</p>",
    "text/markdown": "# Sky\n\nIt is **so**.\n\nEnd",
    [TURN_MIME]: { state: "complete", answers: [[2, 3]] },
  };
  news("a/asked/sky/turn_1", { kind: "card", bundle });
  expect(asked).toEqual([["It is **so**."]]);
});
