import { expect, test, vi } from "vitest";
import { tell } from "../src/notices";
import { liveRun } from "./mock";

const EVIL = "<img src=x onerror=alert(1)>";

function needs(seen: string[] = [], state: "complete" | "failed" | "stopped" = "complete") {
  const notify = vi.fn<(message: string, kind: string, how: object) => string>();
  const open = vi.fn<(id: string) => void>();
  return {
    notifications: { notify } as never,
    notify,
    open,
    isSeen: (id: string) => seen.includes(id),
    turn: vi.fn((id: string) => Promise.resolve(liveRun(id, { state, task: EVIL }))),
  };
}

test.each([
  ["complete", "Complete", "success"],
  ["failed", "Failed", "error"],
  ["stopped", "Stopped", "info"],
] as const)("a run that ended %s is told with its task as it stands", async (state, word, kind) => {
  const asked = needs([], state);
  await tell({ live: [], waiting: [], ended: [liveRun("a")] }, asked);
  expect(asked.notify).toHaveBeenCalledExactlyOnceWith(`${word}: ${EVIL}`, kind, expect.anything());
});

test("a run that waits for a person is told, and shown by the notification's button", async () => {
  const asked = needs();
  await tell({ live: [], waiting: [liveRun("a", { status: "awaiting" })], ended: [] }, asked);
  const [message, kind, how] = asked.notify.mock.calls[0] ?? [];
  expect([message, kind]).toEqual(["Waits for you: Compare caches", "warning"]);
  (how as { actions: { callback(): void }[] }).actions[0]?.callback();
  expect(asked.open).toHaveBeenCalledExactlyOnceWith("a");
});

test("who sees the notebook is told nothing, and nothing is asked of the server", async () => {
  const asked = needs(["a", "b"]);
  await tell({ live: [], waiting: [liveRun("a")], ended: [liveRun("b")] }, asked);
  expect(asked.notify).not.toHaveBeenCalled();
  expect(asked.turn).not.toHaveBeenCalled();
});

test("a long task is cut", async () => {
  const asked = needs();
  await tell({ live: [], waiting: [liveRun("a", { task: "x".repeat(300) })], ended: [] }, asked);
  expect(asked.notify.mock.calls[0]?.[0].length).toBeLessThan(140);
});
