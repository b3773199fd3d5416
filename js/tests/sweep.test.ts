import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { SweepState } from "../src/panel-types";
import { MockKernel, RUNNING, STOPPED, SWEEP, show, sweepRow as row, visibleText } from "./mock";

const STOPPING: SweepState = {
  ...SWEEP,
  status: "stopping",
  chip: "Stopping… (after the calls in flight)",
  button: { label: "Stop now", now: true, title: "Cut" },
  hold: "",
  steering: null,
};
const OPEN: SweepState = {
  ...SWEEP,
  rows: [row("sky", { current: true }), row("moon")],
  open: { row: "sky", title: "sky", state: { ...RUNNING, run: "run-sky", task: "Why is the sky blue?" } },
};

beforeEach(() => document.body.replaceChildren());
afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

/** Record all changes of the document made by a call. */
function changes(el: HTMLElement, act: () => void): MutationRecord[] {
  const observer = new MutationObserver(() => undefined);
  observer.observe(el, { subtree: true, childList: true, characterData: true, attributes: true });
  act();
  const found = observer.takeRecords();
  observer.disconnect();
  return found;
}

describe("the panel of a sweep", () => {
  test("shows the numbers of rows, failures and live rows", () => {
    const { el, q } = show(SWEEP);
    const text = visibleText(el);
    for (const words of ["Answer: {{q}}", "3 of 12 rows", "7 to go", "bad-1", "The key is refused.", "sky", "$0.041", "score 0.5 ± 0.1 (2)", "here/ask"]) {
      expect(text).toContain(words);
    }
    expect(q("[role=progressbar]").getAttribute("aria-valuenow")).toBe("25");
    expect([...el.querySelectorAll(".counts .chip")].map((chip) => chip.className)).toEqual([
      "chip err",
      "chip run",
      "chip ok",
      "chip",
    ]);
    expect(q(".opened").hidden).toBe(true);
  });

  test("shows HTML in texts as text", () => {
    const evil = "<img src=x onerror=alert(1)>";
    const { el } = show({
      ...SWEEP,
      task: evil,
      failures: [{ row: evil, why: evil }],
      rows: [row(evil, { says: evil, model: evil })],
      open: { row: evil, title: evil, state: { ...RUNNING, task: evil } },
    });
    expect(el.querySelector("img")).toBeNull();
    expect(visibleText(el)).toContain(evil);
  });

  test("changes only differences, and keeps existing rows", () => {
    const { el, model, q } = show(OPEN);
    expect(changes(el, () => model.update({ ...OPEN }))).toEqual([]);
    const moon = el.querySelectorAll(".rows tr")[2];
    const inner = q(".opened .nba");
    const found = changes(el, () => model.update({ ...OPEN, rows: [row("sky", { current: true }), row("moon", { says: "and more" })] }));
    expect(found).not.toEqual([]);
    expect(found.filter(({ target }) => !moon?.contains(target))).toEqual([]);
    expect(el.querySelectorAll(".rows tr")[2]).toBe(moon);
    expect(q(".opened .nba")).toBe(inner);
  });

  test("is replaced by the card at the end", () => {
    const { el, model, q } = show(OPEN);
    model.update({ ...SWEEP, status: "stopped", chip: "stopped", button: null, hold: "", card: "<b>card</b>" });
    expect(q(".card").innerHTML).toBe("<b>card</b>");
    expect(q("header .chip").textContent).toBe("stopped");
    expect(visibleText(el)).not.toContain("bad-1");
    expect(el.querySelector(".opened .nba")).toBeNull();
  });

  test("has no requests after the end of the kernel, and says how to continue", () => {
    const kernel = new MockKernel();
    const { el, q } = show(OPEN, { kernel });
    kernel.statusChanged.emit(kernel, "dead");
    expect(q(".notices").textContent).toContain("run the cell again");
    const shown = [...el.querySelectorAll("button")].filter((each) => !each.closest("[hidden]"));
    expect(shown.map((each) => each.className)).toEqual(["chip err", "chip run", "chip ok", "open", "open"]);
    expect(el.querySelector(".caret:not([hidden])")).toBeNull();
  });

  test("leaves no listener and no timer behind", () => {
    vi.useFakeTimers();
    const kernel = new MockKernel();
    const { life, model, q } = show(OPEN, { kernel });
    q("header button").click();
    q(".opened header button").click();
    life.abort();
    expect(vi.getTimerCount()).toBe(0);
    expect(model.listeners() + kernel.listeners()).toBe(0);
    model.send.mockClear();
    for (const each of document.querySelectorAll("button")) each.click();
    expect(model.send).not.toHaveBeenCalled();
  });
});

describe("the controls of a running sweep", () => {
  const type = (input: Element, value: string): void => {
    (input as HTMLInputElement).value = value;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const last = (model: { send: { mock: { calls: unknown[][] } } }): unknown => model.send.mock.calls.at(-1)?.[0];

  test("send only changed limits, and say what is wrong with a number", () => {
    const { el, model, q } = show(SWEEP);
    const [limit, budget, seconds] = [...el.querySelectorAll(".steer input")];
    if (!limit || !budget || !seconds) throw new Error("no fields");
    expect([(limit as HTMLInputElement).value, (budget as HTMLInputElement).value]).toEqual(["8", ""]);
    type(limit, "0");
    q(".steer .limits button").click();
    expect(q(".steer .problem").textContent).toContain("from 1 to 1,000");
    type(limit, "3");
    type(budget, "2.5");
    q(".steer .limits button").click();
    expect(q(".steer .problem").hidden).toBe(true);
    expect(last(model)).toMatchObject({ type: "steer", sweep: "ask", limit: 3, max_cost: 2.5 });
    expect(last(model)).not.toHaveProperty("timeout");
  });

  test("keep what is being typed while the state changes", () => {
    const { el, model } = show(SWEEP);
    const [limit] = [...el.querySelectorAll<HTMLInputElement>(".steer input")];
    if (!limit) throw new Error("no field");
    type(limit, "5");
    model.update({ ...SWEEP, cost: "9,000 tokens" });
    expect(limit.value).toBe("5");
  });

  test("pause models, run failed rows again, and score so far", () => {
    const { el, model, q } = show({ ...SWEEP, rows: [row("bad", { state: "failed", stop: null, again: true }), row("sky")] });
    const press = (text: string): void => [...el.querySelectorAll("button")].find((each) => each.textContent === text)?.click();
    press("Pause openai");
    expect(last(model)).toMatchObject({ type: "steer", pause_model: "openai" });
    model.update({ ...SWEEP, steering: { ...SWEEP.steering, models: [{ name: "openai", is_paused: true }] } as SweepState["steering"] });
    expect(q(".models button").getAttribute("aria-pressed")).toBe("true");
    press("Continue openai");
    expect(last(model)).toMatchObject({ unpause_model: "openai" });
    press("Retry failed");
    expect(last(model)).toMatchObject({ requeue: "failed" });
    press("Score so far");
    expect(last(model)).toMatchObject({ score: true });
  });

  test("run one row again", () => {
    const { el, model } = show({ ...SWEEP, rows: [row("bad", { state: "failed", stop: null, again: true }), row("sky")] });
    const [bad, sky] = [...el.querySelectorAll<HTMLButtonElement>(".rows button.again")];
    expect(sky?.hidden).toBe(true);
    bad?.click();
    expect(last(model)).toMatchObject({ type: "steer", requeue: "bad" });
  });

  test("are hidden when the sweep stops", () => {
    const { q } = show(STOPPING);
    expect(q(".steer").hidden).toBe(true);
  });
});

describe("the list of rows", () => {
  const ROWS = [
    row("moon-1", { name: "How far is the moon?", tokens: 5 }),
    row("sky-2", { name: "Why is the sky blue?", state: "complete", chip: "complete", tone: "ok", stop: null, tokens: 90, score: 1 }),
    row("emma-3", { name: "Who wrote Emma?", state: "complete", chip: "complete", tone: "ok", stop: null, tokens: 40, score: 7 }),
    row("bad-4", { name: "Bad key", state: "failed", chip: "failed", tone: "err", stop: null }),
    row("pnp-5", { name: "Is P = NP?", model: "lang: de" }),
  ];
  const MANY: SweepState = { ...SWEEP, rows: ROWS };
  const titles = (el: HTMLElement): unknown[] => [...el.querySelectorAll(".rows .id")].map((each) => each.textContent);
  const choose = (q: (selector: string) => HTMLElement, order: string): void => {
    (q(".find select") as HTMLSelectElement).value = order;
    q(".find select").dispatchEvent(new Event("change"));
  };

  test("is titled by the rows' values, and is filtered by the chips of states", () => {
    const { el, model } = show(MANY);
    expect(titles(el)).toContain("Who wrote Emma?");
    const chip = (): HTMLButtonElement => el.querySelector(".counts button.ok") as HTMLButtonElement;
    expect(chip().getAttribute("aria-pressed")).toBe("false");
    chip().click();
    expect(titles(el)).toEqual(["Why is the sky blue?", "Who wrote Emma?"]);
    expect(chip().getAttribute("aria-pressed")).toBe("true");
    expect(visibleText(el)).toContain("2 of 5 rows shown");
    model.update({ ...MANY, rows: ROWS.slice(1) });
    expect(titles(el)).toEqual(["Why is the sky blue?", "Who wrote Emma?"]);
    chip().click();
    expect(titles(el)).toHaveLength(4);
  });

  test("is searched in titles, other values and answers", () => {
    const { el, q } = show(MANY);
    const search = q(".find input") as HTMLInputElement;
    search.value = "np DE";
    search.dispatchEvent(new Event("input"));
    expect(titles(el)).toEqual(["Is P = NP?"]);
  });

  test("is sorted by title, tokens or score", () => {
    const { el, q } = show(MANY);
    choose(q, "tokens");
    expect(titles(el).slice(0, 2)).toEqual(["Why is the sky blue?", "Who wrote Emma?"]);
    choose(q, "score");
    expect(titles(el)[0]).toBe("Who wrote Emma?");
    choose(q, "title");
    expect(titles(el)[0]).toBe("Bad key");
  });

  test("of a small sweep has no search", () => {
    expect(show(SWEEP).q(".find").hidden).toBe(true);
  });
});

describe("requests for a sweep", () => {
  test("a stop is sent on both channels, is shown immediately, and becomes an immediate one", () => {
    const kernel = new MockKernel();
    const { model, q } = show(SWEEP, { kernel });
    const button = q("header button");
    button.click();
    button.click();
    expect(button.textContent).toBe("Stopping…");
    expect(model.stops()).toEqual([{ type: "stop", sweep: "ask", immediate: false }]);
    const [message] = kernel.sendControlMessage.mock.calls[0] ?? [];
    expect(message.header.msg_type).toBe("nb_agents_stop_request");
    expect(message.content).toEqual({ sweep: "ask", immediate: false });
    model.update(STOPPING);
    expect(button.textContent).toBe("Stop now");
    button.click();
    expect(model.stops()[1]).toEqual({ type: "stop", sweep: "ask", immediate: true });
  });

  test("the Stop of a row stops its run", () => {
    const kernel = new MockKernel();
    const { el, model } = show(SWEEP, { kernel });
    const button = [...el.querySelectorAll<HTMLButtonElement>(".rows button.one:not(.again)")][1];
    expect(button?.title).toBe("Stop only this row, after its calls.");
    button?.click();
    expect(model.stops()).toEqual([{ type: "stop", run: "run-moon", immediate: false }]);
    expect(kernel.sendControlMessage.mock.calls[0]?.[0].content).toEqual({ run: "run-moon", immediate: false });
  });

  test("all rows are paused and unpaused", () => {
    const { model, q } = show(SWEEP);
    const button = q(".tally button.one");
    expect(button.textContent).toBe("Pause");
    button.click();
    model.update({ ...SWEEP, chip: "paused", hold: "unpause" });
    expect(button.textContent).toBe("Continue");
    button.click();
    expect(model.sent("pause", "unpause")).toEqual([
      { type: "pause", sweep: "ask", id: expect.any(String) as string },
      { type: "unpause", sweep: "ask", id: expect.any(String) as string },
    ]);
    model.update(STOPPING);
    expect(button.hidden).toBe(true);
  });

  test("a row is opened by its name, and closed by it or by its button", () => {
    const { el, model, q } = show(SWEEP);
    const name = (): HTMLElement => q(".rows button.open");
    expect(name().getAttribute("aria-expanded")).toBe("false");
    name().click();
    model.update(OPEN);
    expect(name().getAttribute("aria-expanded")).toBe("true");
    expect(q(".opened .task").textContent).toBe("Why is the sky blue?");
    name().click();
    q(".opened > .top button").click();
    expect(model.sent("open")).toEqual([
      { type: "open", row: "sky" },
      { type: "open", row: "" },
      { type: "open", row: "" },
    ]);
    model.update(SWEEP);
    expect(el.querySelector(".opened .nba")).toBeNull();
  });

  test("the panel of an open row sends requests for its run only", () => {
    const { model, q } = show(OPEN);
    q(".opened header button").click();
    expect(model.stops()).toEqual([{ type: "stop", run: "run-sky", immediate: false }]);
    const input = q(".opened .say input") as HTMLInputElement;
    input.value = "Be short";
    q(".opened .say button").click();
    expect(model.sent("say")).toEqual([expect.objectContaining({ run: "run-sky", text: "Be short" })]);
    expect(q("header button").textContent).toBe("Stop");
  });

  test("another opened row has a separate panel", () => {
    const { model, q } = show(OPEN);
    const first = q(".opened .nba");
    q(".opened header button").click();
    model.update({ ...OPEN, open: { row: "moon", title: "moon", state: { ...STOPPED, run: "run-moon" } } });
    expect(q(".opened .nba")).not.toBe(first);
    expect(q(".opened header .chip").textContent).toBe("stopped");
  });
});
