import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RUNNING, STOPPED, STOPPING, SWEEP, agent, show, sweepRow } from "./mock";

/** An observer that is told by the test which elements are visible. */
class FakeObserver {
  static readonly made: FakeObserver[] = [];
  readonly observe = vi.fn();
  readonly disconnect = vi.fn();
  constructor(private readonly callback: (entries: { isIntersecting: boolean }[]) => void) {
    FakeObserver.made.push(this);
  }
  static tell(...isIntersecting: boolean[]): void {
    FakeObserver.made.at(-1)?.callback(isIntersecting.map((each) => ({ isIntersecting: each })));
  }
}

beforeEach(() => {
  document.body.replaceChildren();
  vi.stubGlobal("IntersectionObserver", FakeObserver);
});
afterEach(() => vi.unstubAllGlobals());

const says = (text: string) => ({ ...RUNNING, elapsed: `Elapsed: ${text}`, agents: [agent("ada", { says: text })] });

test("a panel out of sight is not drawn, and shows the last state when it becomes visible", () => {
  const { el, model, q } = show(says("one"));
  FakeObserver.tell(true, false);
  const before = el.innerHTML;
  model.update(says("two"));
  model.update(says("three"));
  expect(el.innerHTML).toBe(before);
  FakeObserver.tell(true);
  expect(q(".says").textContent).toBe("three");
  model.update(says("four"));
  expect(q(".says").textContent).toBe("four");
});

test("stops and notices are announced out of sight, and the end is drawn", () => {
  const { model, q } = show(says("one"));
  FakeObserver.tell(false);
  model.update({ ...STOPPING, notices: ["The disk is full."], agents: says("two").agents });
  expect(q("header .chip").textContent).toBe(STOPPING.chip);
  expect(q(".notices").textContent).toBe("The disk is full.");
  expect(q(".says").textContent).toBe("one");
  expect(q("header button").textContent).toBe("Stop");
  model.update({ ...STOPPED, card: "<p>The card</p>" });
  expect(q(".card").textContent).toBe("The card");
});

test("a sweep out of sight is not drawn", () => {
  const { el, model, q } = show(SWEEP);
  FakeObserver.tell(false);
  const before = el.innerHTML;
  model.update({ ...SWEEP, round: "4 of 12 rows", rows: [sweepRow("moon")] });
  expect(el.innerHTML).toBe(before);
  model.update({ ...SWEEP, status: "stopping", chip: "stopping" });
  expect(q("header .chip").textContent).toBe("stopping");
  FakeObserver.tell(true);
  model.update({ ...SWEEP, round: "5 of 12 rows" });
  expect(q(".round").textContent).toBe("5 of 12 rows");
});

test("a removed panel is no longer observed", () => {
  const { life } = show();
  life.abort();
  expect(FakeObserver.made.at(-1)?.disconnect).toHaveBeenCalled();
});
