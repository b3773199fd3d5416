import { expect, test, vi } from "vitest";
import type { Run } from "../src/api";
import { announce } from "../src/notices";
import { liveRun } from "./mock";

const EVIL = "<img src=x onerror=alert(1)>";

function needs(seen: string[] = [], state: "complete" | "failed" | "stopped" = "complete") {
  const notify = vi.fn<(message: string, kind: string, how: object) => string>();
  const open = vi.fn<(run: Run) => void>();
  return {
    notifications: { notify } as never,
    notify,
    open,
    claim: vi.fn((_id: string) => Promise.resolve(true)),
    isSeen: (id: string) => seen.includes(id),
    run: vi.fn((id: string) => Promise.resolve(liveRun(id, { state, task: EVIL }))),
  };
}

test.each([
  ["complete", "Complete", "success"],
  ["failed", "Failed", "error"],
  ["stopped", "Stopped", "info"],
] as const)("a notification about a run that ended %s contains its task", async (state, word, kind) => {
  const asked = needs([], state);
  await announce({ live: [], waiting: [], ended: [liveRun("a")] }, asked);
  expect(asked.notify).toHaveBeenCalledExactlyOnceWith(`${word}: ${EVIL}`, kind, expect.anything());
});

test("a notification about a waiting run has a button that shows it", async () => {
  const asked = needs();
  await announce({ live: [], waiting: [liveRun("a", { status: "awaiting" })], ended: [] }, asked);
  const [message, kind, how] = asked.notify.mock.calls[0] ?? [];
  expect([message, kind]).toEqual(["Waits for you: Compare caches", "warning"]);
  (how as { actions: { callback(): void }[] }).actions[0]?.callback();
  expect(asked.open).toHaveBeenCalledExactlyOnceWith(liveRun("a", { status: "awaiting" }));
});

test("there is no notification and no request if the notebook is visible", async () => {
  const asked = needs(["a", "b"]);
  await announce({ live: [], waiting: [liveRun("a")], ended: [liveRun("b")] }, asked);
  expect(asked.notify).not.toHaveBeenCalled();
  expect(asked.run).not.toHaveBeenCalled();
});

test("there is no notification about a run that its cell shows by now", async () => {
  const seen: string[] = [];
  const asked = needs(seen);
  asked.run.mockImplementation((id) => (seen.push(id), Promise.resolve(liveRun(id, { state: "stopped" }))));
  await announce({ live: [], waiting: [], ended: [liveRun("a")] }, asked);
  expect(asked.notify).not.toHaveBeenCalled();
});

test("a long task is cut", async () => {
  const asked = needs();
  await announce({ live: [], waiting: [liveRun("a", { task: "x".repeat(300) })], ended: [] }, asked);
  expect(asked.notify.mock.calls[0]?.[0].length).toBeLessThan(140);
});

test("a sweep has one notification, with the outcome of its rows", async () => {
  const asked = needs();
  const rows = { total: 500, done: 498, failed: 2 };
  const over = liveRun("s", { state: "complete", says: "500 of 500 rows · 2 failed", rows });
  asked.run.mockResolvedValue(over);
  await announce({ live: [], waiting: [], ended: [liveRun("s", { rows })] }, asked);
  const said = "Complete, 500 of 500 rows · 2 failed: Compare caches";
  expect(asked.notify).toHaveBeenCalledExactlyOnceWith(said, "success", expect.anything());
});

test("there is no notification and no request if another tab notifies", async () => {
  const asked = needs();
  asked.claim.mockResolvedValue(false);
  await announce({ live: [], waiting: [liveRun("a")], ended: [liveRun("b")] }, asked);
  expect(asked.notify).not.toHaveBeenCalled();
  expect(asked.run).not.toHaveBeenCalled();
});

test("a tab that shows it claims it, so other tabs do not notify", async () => {
  const asked = needs(["a"]);
  await announce({ live: [], waiting: [], ended: [liveRun("a")] }, asked);
  expect(asked.claim).toHaveBeenCalledExactlyOnceWith("a");
});
