import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { makeClaims } from "../src/claims";

beforeEach(() => vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

/** The browser's locks, as far as claims use them. All tabs of a host share them. */
class Locks {
  private readonly held = new Set<string>();
  async request(name: string, _how: object, act: (lock: object | null) => unknown): Promise<void> {
    if (this.held.has(name)) return void act(null);
    this.held.add(name);
    await act({});
    this.held.delete(name);
  }
}

function tabs(...servers: string[]) {
  const locks = new Locks() as unknown as LockManager;
  return servers.map((server) => makeClaims(server, locks));
}

/** Return each tab's result after all due timers. */
async function claimed(id: string, claims: ReturnType<typeof tabs>, after = 0): Promise<boolean[]> {
  const all = Promise.all(claims.map((claim) => claim(id)));
  await vi.advanceTimersByTimeAsync(after);
  return all;
}

test("only one of two tabs notifies about a run", async () => {
  const both = tabs("/", "/");
  expect(await claimed("a", both)).toEqual([true, false]);
  expect(await claimed("a", both)).toEqual([true, false]);
});

test("runs and servers of a host are claimed separately", async () => {
  const [one, two, other] = tabs("/user/ada/", "/user/ada/", "/user/ben/");
  if (!one || !two || !other) throw new Error();
  expect(await claimed("a", [one, other])).toEqual([true, true]);
  expect(await claimed("b", [two])).toEqual([true]);
});

test("a hidden tab does not notify a minute later, but may claim the next news", async () => {
  const [one, two] = tabs("/", "/");
  if (!one || !two) throw new Error();
  await claimed("a", [one]);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(await claimed("a", [two])).toEqual([false]);
  await vi.advanceTimersByTimeAsync(120_000);
  expect(await claimed("a", [two])).toEqual([true]);
});

test("a visible tab goes before a hidden one that knew first", async () => {
  const [hidden, seen] = tabs("/", "/");
  if (!hidden || !seen) throw new Error();
  const spy = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  const first = hidden("a");
  spy.mockReturnValue(false);
  await vi.advanceTimersByTimeAsync(1000);
  expect(await seen("a")).toBe(true);
  await vi.advanceTimersByTimeAsync(2000);
  expect(await first).toBe(false);
});

test("without locks, each tab notifies", async () => {
  expect(await makeClaims("/", undefined)("a")).toBe(true);
});
