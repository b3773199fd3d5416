import { afterEach, expect, test, vi } from "vitest";
import { DEFAULTS, followSettings, setSettings, settings } from "../src/settings";
import { announce } from "../src/notices";
import { setBundle, trans } from "../src/text";

afterEach(() => setSettings({}));

test("invalid settings are replaced by the defaults", () => {
  setSettings({ stopLevel: "kill", notifications: "waiting", rowLimit: -3 });
  expect(settings()).toEqual({ ...DEFAULTS, notifications: "waiting" });
  setSettings(undefined);
  expect(settings()).toEqual(DEFAULTS);
});

test("changed settings are followed", async () => {
  const loaded = { composite: { rowLimit: 5 }, changed: { connect: vi.fn() } };
  await followSettings({ load: async () => loaded } as never, "p");
  expect(settings().rowLimit).toBe(5);
  loaded.composite = { rowLimit: 7 };
  loaded.changed.connect.mock.calls[0]?.[0]();
  expect(settings().rowLimit).toBe(7);
});

test.each([
  ["all", 2],
  ["waiting", 1],
  ["none", 0],
])("with notifications %s, a change is notified %i times", async (notifications, times) => {
  setSettings({ notifications });
  const run = { id: "a", task: "t", status: "awaiting", state: "running", says: "", cost: null } as const;
  const notify = vi.fn();
  const needs = { notifications: { notify }, claim: async () => true, isSeen: () => false, run: async () => run, open: () => {} };
  await announce({ live: [run], waiting: [run], ended: [run] } as never, needs as never);
  expect(notify).toHaveBeenCalledTimes(times);
});

test("texts come from the bundle of the user's language", () => {
  setBundle({ __: (text) => `«${text}»`, _n: (one) => one }, "de_DE");
  expect(trans.__("Go back")).toBe("«Go back»");
});
