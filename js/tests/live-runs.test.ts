import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Run } from "../src/api";
import { type Change, LiveRuns, statusText } from "../src/live-runs";
import { liveRun } from "./mock";

beforeEach(() => vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

/** A server with answers set by the test. */
async function begin(...first: readonly Run[]) {
  const server = { answer: first as readonly Run[] | undefined, asked: 0, fails: false };
  const runs = new LiveRuns(() => {
    server.asked++;
    return server.fails ? Promise.reject(new TypeError("network")) : Promise.resolve(server.answer);
  });
  const changes: Change[] = [];
  runs.listen((change) => changes.push(change));
  await vi.advanceTimersByTimeAsync(0);
  const asks = async (ms: number): Promise<number> => {
    const before = server.asked;
    await vi.advanceTimersByTimeAsync(ms);
    return server.asked - before;
  };
  return { server, runs, changes, asks };
}

test("an idle page polls seldom, and one with runs each second", async () => {
  const { server, runs, asks } = await begin();
  expect(await asks(10_000)).toBe(2);
  server.answer = [liveRun("a")];
  await runs.refresh();
  expect(await asks(10_000)).toBe(10);
});

test("a hidden page polls twice a minute, and immediately when it is visible again", async () => {
  const { server, asks } = await begin(liveRun("a"));
  const hidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  document.dispatchEvent(new Event("visibilitychange"));
  await asks(0);
  expect(await asks(60_000)).toBe(2);
  hidden.mockReturnValue(false);
  const before = server.asked;
  document.dispatchEvent(new Event("visibilitychange"));
  expect(server.asked).toBe(before + 1);
});

test("requests during a pending one share the next one", async () => {
  const { runs, server } = await begin();
  const before = runs.refresh();
  const after = Promise.all([runs.refresh(), runs.refresh()]);
  server.answer = [liveRun("a")];
  await before;
  expect(runs.live).toEqual([]);
  await after;
  expect(runs.live).toHaveLength(1);
  expect(server.asked).toBe(3);
});

test("a server without the extension is polled once", async () => {
  const { server, runs, asks } = await begin(liveRun("a"));
  server.answer = undefined;
  expect(await asks(600_000)).toBe(1);
  expect(runs.live).toEqual([]);
});

test("the last list stays while the server can't be reached", async () => {
  const { server, runs, asks } = await begin(liveRun("a"));
  vi.spyOn(console, "debug").mockReturnValue();
  server.fails = true;
  expect(await asks(3000)).toBe(3);
  expect(runs.live).toHaveLength(1);
});

test("waiting and ended runs are reported once", async () => {
  const { server, runs, changes } = await begin(liveRun("a"), liveRun("b"));
  server.answer = [liveRun("a", { status: "awaiting" })];
  await runs.refresh();
  await runs.refresh();
  const told = changes.slice(-2).map(({ waiting, ended }) => [waiting.map(({ id }) => id), ended.map(({ id }) => id)]);
  expect(told).toEqual([
    [["a"], ["b"]],
    [[], []],
  ]);
});

test("the first list contains no news", async () => {
  const { changes } = await begin(liveRun("a", { status: "awaiting" }));
  expect(changes[0]?.waiting).toEqual([]);
});

test.each([
  [[liveRun("a")], "1 run"],
  [[liveRun("a"), liveRun("b", { status: "awaiting" })], "2 runs · 1 waits for you"],
  [[liveRun("a", { status: "awaiting" }), liveRun("b", { status: "awaiting" })], "2 runs · 2 wait for you"],
  [[liveRun("a", { rows: { total: 9, done: 1, failed: 0 } })], "1 sweep"],
  [[liveRun("a"), liveRun("b"), liveRun("c", { rows: { total: 9, done: 1, failed: 0 } })], "2 runs, 1 sweep"],
])("runs are counted as text", (live, words) => {
  expect(statusText(live)).toBe(words);
});
