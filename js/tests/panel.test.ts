import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import panel from "../src/panel";
import { MockKernel, MockModel, RUNNING, STOPPED, STOPPING, show, visibleText } from "./mock";

beforeEach(() => document.body.replaceChildren());
afterEach(() => vi.restoreAllMocks());

describe("mounting", () => {
  test("notifies Python with the id of the page", () => {
    const messages = [show(), show()].map(({ model }) => model.send.mock.calls[0]?.[0]);
    expect(messages[0]).toEqual({ type: "mounted", page: expect.stringMatching(/^[0-9a-f-]{32,36}$/) });
    expect(messages[1]).toEqual(messages[0]);
  });

  test("draws even if no message can be sent", () => {
    vi.spyOn(console, "warn").mockReturnValue();
    const model = new MockModel(RUNNING);
    model.send.mockImplementation(() => {
      throw new Error("comm closed");
    });
    const el = document.createElement("div");
    panel.render({ model, el });
    expect(el.textContent).toContain("Compare caches");
  });

  test("does nothing if the signal is already aborted", () => {
    const model = new MockModel(RUNNING);
    const el = document.createElement("div");
    panel.render({ model, el, signal: AbortSignal.abort() });
    expect(el.childElementCount + model.listeners()).toBe(0);
  });
});

describe("unmounting", () => {
  test.each(["signal", "cleanup"])("by the %s removes every listener", (way) => {
    const kernel = new MockKernel();
    const { button, cleanup, life, model, q } = show(RUNNING, { kernel });
    expect(model.listeners() + kernel.listeners()).toBe(4);
    if (way === "signal") life.abort();
    else cleanup();
    expect(model.listeners() + kernel.listeners()).toBe(0);
    model.update(STOPPING);
    expect(q("header .chip").textContent).toBe("running");
    button.click();
    expect(model.stops()).toEqual([]);
  });

  test("works without a signal", () => {
    const model = new MockModel(RUNNING);
    const cleanup = panel.render({ model, el: document.createElement("div") });
    cleanup();
    expect(model.listeners()).toBe(0);
  });

  test("ends the wait for an answer", () => {
    vi.useFakeTimers();
    const { button, life } = show();
    button.click();
    life.abort();
    expect(vi.getTimerCount()).toBe(0);
    vi.useRealTimers();
  });
});

describe("after the end of the kernel", () => {
  const LINE =
    "The kernel has ended. Saved work is on disk: run %agents show session_1/2 in a cell.";

  test.each(["restarting", "autorestarting", "terminating", "dead"])(
    "(%s) the panel says where the work is and has no button",
    (status) => {
      const kernel = new MockKernel();
      const { button, el, q } = show(STOPPING, { kernel });
      kernel.statusChanged.emit(kernel, status);
      expect(q(".notices").textContent).toBe(LINE);
      expect(button.hidden).toBe(true);
      expect(q("header .chip").className).toBe("chip cut");
      expect(q("header .chip").textContent).toBe("kernel stopped");
      expect(el.querySelector(".caret:not([hidden]), tbody .run")).toBeNull();
    },
  );

  test("(comm lost) the panel shows it", () => {
    const { model, q } = show();
    model.trigger("comm_live_update");
    expect(q(".notices").textContent).toBe(LINE);
  });

  test("(shut down) the panel shows it", () => {
    const kernel = new MockKernel();
    const { q } = show(RUNNING, { kernel });
    kernel.disposed.emit(kernel);
    expect(q(".notices").textContent).toBe(LINE);
  });

  test("a busy or idle kernel changes nothing", () => {
    const kernel = new MockKernel();
    const { el } = show(RUNNING, { kernel });
    kernel.statusChanged.emit(kernel, "busy");
    kernel.statusChanged.emit(kernel, "idle");
    expect(visibleText(el)).not.toContain("kernel");
  });

  test("a finished turn does not change", () => {
    const kernel = new MockKernel();
    const { q } = show({ ...STOPPED, status: "complete", chip: "complete" }, { kernel });
    kernel.statusChanged.emit(kernel, "dead");
    expect(q("header .chip").textContent).toBe("complete");
    expect(q(".notices").hidden).toBe(true);
  });
});
