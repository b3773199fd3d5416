import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { MockKernel, RUNNING, STOPPED, STOPPING, SWEEP, show } from "./mock";

beforeEach(() => document.body.replaceChildren());
afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

const sent = (kernel: MockKernel) => kernel.sendControlMessage.mock.calls.map(([msg]) => msg);

describe("a click on Stop", () => {
  test("sends one control message and one model message", () => {
    const kernel = new MockKernel();
    const { button, model } = show(RUNNING, { kernel });
    button.click();
    expect(model.stops()).toEqual([{ type: "stop", run: "run-1", immediate: false }]);
    expect(kernel.sendControlMessage).toHaveBeenCalledExactlyOnceWith(
      {
        channel: "control",
        header: {
          msg_id: expect.stringMatching(/^[0-9a-f-]{32,36}$/),
          msg_type: "nb_agents_stop_request",
          session: "client-1",
          username: "ada",
          date: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
          version: "5.4",
        },
        parent_header: {},
        metadata: {},
        content: { run: "run-1", immediate: false },
        buffers: [],
      },
      true,
      true,
    );
  });

  test.each([
    ["no widget manager", undefined],
    ["no kernel", {}],
    ["a null kernel", { kernel: null }],
    ["a kernel without control channel", { kernel: {} }],
  ])("still sends the model message with %s", (_case, manager) => {
    const { button, model } = show(RUNNING, manager);
    button.click();
    expect(model.stops()).toHaveLength(1);
  });

  test("still sends the model message when the control channel throws", () => {
    vi.spyOn(console, "warn").mockReturnValue();
    const kernel = new MockKernel();
    kernel.sendControlMessage.mockImplementation(() => {
      throw new Error("Kernel is dead");
    });
    const { button, model } = show(RUNNING, { kernel });
    button.click();
    expect(model.stops()).toHaveLength(1);
  });

  test("does not fail when the kernel dies before it replies", async () => {
    const kernel = new MockKernel();
    const done = Promise.reject(new Error("Canceled future"));
    kernel.sendControlMessage.mockReturnValue({ done });
    const { button, model } = show(RUNNING, { kernel });
    button.click();
    await expect(done).rejects.toThrow("Canceled");
    expect(model.stops()).toHaveLength(1);
  });

  test("works without crypto.randomUUID, as on plain http", () => {
    vi.stubGlobal("crypto", {});
    const kernel = new MockKernel();
    const { button } = show(RUNNING, { kernel });
    button.click();
    expect(sent(kernel)[0].header.msg_id).toMatch(/^[0-9a-f]{32}$/);
  });

  test("shows the press immediately, and keeps the focus", () => {
    const { button } = show();
    button.focus();
    button.click();
    expect(button.textContent).toBe("Stopping…");
    expect(button.getAttribute("aria-disabled")).toBe("true");
    expect(document.activeElement).toBe(button);
  });

  test("is not sent again until Python answers", () => {
    const { button, model } = show();
    button.click();
    model.update({ ...RUNNING, elapsed: "Elapsed: 235s" });
    button.click();
    expect(model.stops()).toHaveLength(1);
    expect(button.textContent).toBe("Stopping…");
  });

  test("gives the button back after ten seconds without an answer", () => {
    vi.useFakeTimers();
    const { button, model } = show();
    button.click();
    vi.advanceTimersByTime(10_000);
    expect(button.textContent).toBe("Stop");
    expect(button.hasAttribute("aria-disabled")).toBe(false);
    button.click();
    expect(model.stops()).toHaveLength(2);
  });
});

describe("without an answer, as in VS Code while a cell is busy", () => {
  const HINT = "nb-agents stop session_1";
  beforeEach(() => vi.useFakeTimers());

  test("the panel shows the command that stops the run immediately, until the kernel answers", () => {
    const { button, model, q } = show(RUNNING);
    button.click();
    vi.advanceTimersByTime(1400);
    expect(q(".notices").textContent).not.toContain(HINT);
    vi.advanceTimersByTime(100);
    expect(q(".notices").textContent).toContain(HINT);
    vi.advanceTimersByTime(10_000); // the button can be pressed again
    expect(q(".notices").textContent).toContain(HINT);
    model.update(STOPPING);
    expect(q(".notices").textContent).toBe("");
    button.click();
    vi.advanceTimersByTime(1500);
    expect(q(".notices").textContent).toContain("nb-agents stop --now session_1");
    model.update(STOPPED);
    expect(q(".notices").textContent).toBe("");
  });

  test("a sweep's command contains its name", () => {
    const { button, q } = show(SWEEP);
    button.click();
    vi.advanceTimersByTime(1500);
    expect(q(".notices").textContent).toContain("nb-agents stop ask");
  });

  test("there is no hint with a control channel or after an answer", () => {
    for (const manager of [{ kernel: new MockKernel() }, undefined]) {
      const { button, model, q } = show(RUNNING, manager);
      button.click();
      if (!manager) model.update(STOPPING);
      vi.advanceTimersByTime(2000);
      expect(q(".notices").textContent).toBe("");
    }
  });
});

describe("a second click", () => {
  test("requests an immediate stop, and waits for the end", () => {
    const kernel = new MockKernel();
    const { button, model } = show(RUNNING, { kernel });
    button.click();
    model.update(STOPPING);
    expect(button.textContent).toBe("Stop now · 27 s");
    expect(button.hasAttribute("aria-disabled")).toBe(false);
    button.click();
    expect(model.stops()[1]).toEqual({ type: "stop", run: "run-1", immediate: true });
    expect(sent(kernel)[1].content).toEqual({ run: "run-1", immediate: true });
    model.update(STOPPING);
    expect(button.textContent).toBe("Stopping now…");
    expect(button.getAttribute("aria-disabled")).toBe("true");
    model.update(STOPPED);
    expect(button.hidden).toBe(true);
  });

  test("does nothing when it is the second half of a double click", () => {
    const { button, model } = show();
    button.dispatchEvent(new MouseEvent("click", { detail: 1 }));
    model.update(STOPPING);
    button.dispatchEvent(new MouseEvent("click", { detail: 2 }));
    expect(model.stops()).toHaveLength(1);
    button.dispatchEvent(new MouseEvent("click", { detail: 3 }));
    expect(model.stops()).toHaveLength(2);
  });

  test("is not triggered by holding Enter down", () => {
    const { button } = show();
    const press = (repeat: boolean) => {
      const event = new KeyboardEvent("keydown", { key: "Enter", repeat, cancelable: true });
      button.dispatchEvent(event);
      return event.defaultPrevented;
    };
    expect(press(false)).toBe(false);
    expect(press(true)).toBe(true);
  });
});
